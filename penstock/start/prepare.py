"""From an application and a configuration to a job that is claimed and can run.

The log gets notes about the plan: the startpoints, times, operators and stores that it changes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.api.ssp import SystemStream
from penstock.base.retry import SYSTEM_CLOCK, Clock
from penstock.base.wording import argument, counted, listed, utc_text
from penstock.checkpoint.log import CheckpointLog, OnDamage
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import Claim
from penstock.checkpoint.streams import IntermediateStream
from penstock.config.model import JobConfig
from penstock.errors import RetryableError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.topology import plan_topology
from penstock.job.identity import OwnedStreams, owner_of_intermediates, settle, writer_name
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.runtime.settings import RuntimeSettings, StepLimits
from penstock.start.check import StartSources, backend_admins, decide
from penstock.start.job import ClaimedJob, JobPlan
from penstock.start.job_streams import JobStreams
from penstock.start.part import DecidedStart, StartPart, start_parts
from penstock.start.plan import StartFacts, StartPlan, StartRequest
from penstock.start.positions import StartTimes, begin_streams, declared_streams
from penstock.start.startpoint_manager import StartpointManager
from penstock.start.startpoint_request import StartpointRequest
from penstock.start.startpoints import passing_over

logger = logging.getLogger(__name__)


def report(plan: StartPlan, facts: StartFacts) -> None:
    record, latest = plan.restore_from, facts.view.latest
    if facts.from_checkpoint is not None and record is not None and latest is not None and record.id != latest.id:
        logger.warning(
            "this start begins with checkpoint %s (batch %d), and not with the last one, %s (batch %d): all that came "
            "behind the older one is read again",
            record.id,
            record.batch,
            latest.id,
            latest.batch,
        )
    if unfollowed := facts.graph.unfollowed:
        logger.warning(
            "no operator follows %s: the results are dropped. If they matter, send them to an output with "
            ".send_to(app.output(...))",
            listed([f"`{op.id}`" for op in unfollowed]),
        )
    _report_startpoints(plan, facts)
    _report_times(plan.times)
    _report_stores(plan)
    if plan.reset.operators:
        logger.warning(
            "this start drops what waits in operator %s, and the totals of an aggregate among them. It keeps all other "
            "state. Each start with %s does so again",
            listed([f"`{operator}`" for operator in plan.reset.operators]),
            argument("reset_operators", list(plan.reset.operators)),
        )


def _report_startpoints(plan: StartPlan, facts: StartFacts) -> None:
    decision = plan.decision
    for request in facts.requests.expired:
        logger.warning("the startpoint for %s has expired (job.startpoint.ttl.ms) and is deleted", request)
    for request in facts.requests.live:
        if request.from_future:
            logger.warning(
                "the startpoint for %s was made at %s, which is in the future by the clock of this host: one of two "
                "clocks is wrong, and any other startpoint for the partition goes before it",
                request,
                utc_text(request.startpoint.creation_timestamp),
            )
    applied: dict[StartpointRequest, set[int]] = {}
    for at, request in decision.requests.items():
        applied.setdefault(request, set()).add(plan.positions[at])
    for request, offsets in applied.items():
        logger.info("the startpoint for %s is applied: offset %s", request, ", ".join(map(str, sorted(offsets))))
    if text := passing_over(decision.passed_over):
        logger.warning("%s", text)
    if decision.requests and decision.restore_from is not None:
        logger.info("state: %s, checkpoint %s", decision.with_state, decision.restore_from.id)
    if plan.quiet_until:
        left = sum(max(0, until - plan.positions.get(at, until)) for at, until in plan.quiet_until.items())
        logger.warning(
            "nothing is sent to outputs before %s have been read again, up to the old positions of all inputs",
            counted(left, "offset"),
        )


def _report_times(times: StartTimes) -> None:
    for ssp in times.grown:
        logger.info("`%s` had ended, and has new messages: they are read", ssp)
    for ssp in sorted({at.ssp for at in times.late}):
        logger.warning(
            "`%s` was moved back, and the state is kept: the messages that are read again are late where an operator's "
            "watermark has passed them. A startpoint with the state `clear` or `nearest` begins event time again",
            ssp,
        )


def _report_stores(plan: StartPlan) -> None:
    if plan.restore_from is None:
        return
    for store in sorted(plan.deleted):
        logger.info("store `%s` of checkpoint %s is dropped: the application deletes it", store, plan.restore_from.id)
    for store in sorted(plan.filled):
        logger.warning(
            "the job wrote store `%s` until checkpoint %s. Side inputs or a pushed table fill the store now, and its "
            "earlier content is not used",
            store,
            plan.restore_from.id,
        )


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
    """Claim the log. Raises RetryableError if there is a checkpoint that the decision does not know: the next start
    knows it."""
    claim = log.claim(run_id, on_damage)
    if log.known().latest_before(claim) != decided_on.latest:
        raise RetryableError("another driver wrote a checkpoint while this one started: start again")
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
        partial_aggregates=config.job.partial_aggregates_enabled,
    )
