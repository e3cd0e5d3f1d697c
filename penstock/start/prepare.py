"""From an application and a configuration to a job that is claimed and can run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.api.ssp import SystemStream
from penstock.base.clock import SYSTEM_CLOCK, Clock
from penstock.checkpoint.intermediate import IntermediateStream
from penstock.checkpoint.log import CheckpointLog, OnDamage
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import Claim
from penstock.config.model import JobConfig
from penstock.errors import IncompatibleError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.topology import plan_topology
from penstock.job.identity import settle, writer_name
from penstock.job.owned_streams import OwnedStreams, owner_of_intermediates
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.runtime.settings import RuntimeSettings, StepLimits
from penstock.start.check import StartSources, backend_admins, decide
from penstock.start.facts import StartRequest
from penstock.start.job import ClaimedJob
from penstock.start.job_plan import JobPlan
from penstock.start.part import DecidedStart, StartPart, start_parts
from penstock.start.report import report
from penstock.start.startpoints.manager import StartpointManager
from penstock.start.streams.intermediate import begin_streams, declared_streams
from penstock.start.streams.job_streams import JobStreams

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MadeStreams:
    """The streams of a start, once all of them are there."""

    intermediate: dict[SystemStream, IntermediateStream]
    """Where the run begins in each durable intermediate stream."""
    output_partitions: dict[str, int]


def prepare(
    graph: ApplicationGraph,
    config: JobConfig,
    objects: ObjectStore,
    streams: JobStreams,
    log: CheckpointLog,
    request: StartRequest,
    clock: Clock = SYSTEM_CLOCK,
) -> ClaimedJob:
    """Read the facts, decide where the run begins, make its streams, and claim the log. The lease is held already.

    Nothing is written before the application, its inputs and the checkpoint are known to fit.

    Raises:
        ConfigError, IncompatibleError: the application or the streams do not fit each other or the checkpoint.
        NotFoundError: an input, a side input, the named checkpoint, or an operator of `reset_operators` does not exist.
    """
    paths, parts = JobPaths(config.job.name, config.job.id), start_parts()
    startpoints = StartpointManager(objects, paths, config.job.startpoint_ttl_ms, clock.now_ms)
    # A caller who names a checkpoint may go on from a log whose last record is damaged.
    on_damage: OnDamage = "raise" if request.from_checkpoint is None else "report"

    def read_log() -> LogView:
        return log.read(on_damage)

    facts, plan = decide(graph, config, StartSources(streams, startpoints, read_log, parts), request)
    report(plan, facts)
    topology = plan_topology(plan.graph or facts.graph, config.task.dead_letter_stream, streams.exactly_once)
    uid = settle(objects, paths, config.job.root)
    start = DecidedStart(facts, plan, topology, uid, streams, writer_name(paths, uid), read_log)
    for part in parts:
        start = part.settle(start)
    made = make_streams(start, OwnedStreams(objects, paths))
    claim = claim_log(log, request.run_id, on_damage, facts.view)
    job_plan = plan_job(start, made, claim, request, parts)
    for part in parts:
        part.claimed(job_plan, objects)
    admins = backend_admins(facts, plan, start.streams, objects, uid, parts)
    return ClaimedJob(job_plan, objects, log, start.streams, startpoints, admins, clock, parts)


def make_streams(start: DecidedStart, owned: OwnedStreams) -> MadeStreams:
    """Make the streams that the job writes and that are missing. Raises as `JobStreams.create_intermediates` and
    `JobStreams.create_outputs`."""
    streams, tasks = start.streams, start.tasks
    new = streams.create_intermediates(tasks, owner_of_intermediates(owned.paths.root, start.uid), owned)
    declared = declared_streams(start.topology.graph)
    intermediate = begin_streams(declared, start.plan.kept, streams.intermediate_ends(), new)
    partitions = streams.create_outputs(tasks, owned)
    for stream in set(streams.outputs) - set(streams.fenced):
        logger.warning(
            "the system of the output `%s` does not fence writers: a driver that lost this job may still append to it",
            stream,
        )
    return MadeStreams(intermediate, partitions)


def claim_log(log: CheckpointLog, run_id: str, on_damage: OnDamage, decided_on: LogView) -> Claim:
    """Claim the log. Raises IncompatibleError if there is a checkpoint that the decision does not know."""
    claim = log.claim(run_id, on_damage)
    if log.known().latest_before(claim) != decided_on.latest:
        raise IncompatibleError("another driver wrote a checkpoint while this one started: start again")
    return claim


def plan_job(
    start: DecidedStart, made: MadeStreams, claim: Claim, request: StartRequest, parts: Sequence[StartPart]
) -> JobPlan:
    """Everything that the run needs, as values."""
    config, inputs, graph = start.facts.config, start.facts.inputs, start.topology.graph
    values = {part.wing: part.for_containers(graph) for part in parts}
    return JobPlan(
        config=config,
        paths=start.paths,
        uid=start.uid,
        topology=start.topology,
        settings=runtime_settings(start, made, request.run_id),
        claim=claim,
        start=start.plan,
        inputs=start.streams.inputs,
        intermediate=made.intermediate,
        until={ssp: end.upcoming for ssp, end in inputs.ends.items()} if request.until_latest else None,
        close=request.close,
        publisher=start.publisher,
        identities=inputs.identities,
        recorded_identities={**start.streams.output_identities(), **inputs.identities},
        for_containers={name: value for name, value in values.items() if value is not None},
    )


def runtime_settings(start: DecidedStart, made: MadeStreams, run_id: str) -> RuntimeSettings:
    """The part of the configuration, and the facts about streams, that stages and tasks need."""
    config, graph = start.facts.config, start.topology.graph
    return RuntimeSettings(
        job_name=config.job.name,
        tasks=start.tasks,
        output_partitions=made.output_partitions,
        output_limits=start.streams.record_limits(),
        cache_entries={spec.name: config.store(spec.name).object_cache_size for spec in graph.stores},
        dead_letter=config.task.dead_letter_stream is not None,
        identities={str(stream): identity for stream, identity in start.facts.inputs.identities.items()},
        config=config.for_tasks(),
        max_ahead_ms=config.job.watermark_max_ahead_ms if graph.uses_time else None,
        window_ms=config.task.window_ms,
        step_limits=StepLimits(config.task.callback_drain_timeout_ms, config.task.callback_watermark_timeout_ms),
        run_id=run_id,
    )
