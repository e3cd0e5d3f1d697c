"""The steps of a start that write nothing: its facts, its plan, and all that it refuses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from penstock.base.retry import SYSTEM_CLOCK, Clock
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.config.model import JobConfig
from penstock.errors import Refusals
from penstock.graph.keys import check_copartitioning, check_keys
from penstock.graph.specs import ApplicationGraph
from penstock.graph.topology import plan_topology
from penstock.job.identity import known_uid
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.start.fit import check_config, order_warnings
from penstock.start.inputs import with_matches
from penstock.start.job_streams import JobStreams
from penstock.start.layout import store_layout
from penstock.start.part import StartPart, complete, start_parts
from penstock.start.plan import StartFacts, StartPlan, StartRequest, plan_start, read_requests, resolver
from penstock.start.startpoints.decide import JobInputs
from penstock.start.startpoints.manager import StartpointManager
from penstock.start.startpoints.request import StartpointRequest
from penstock.state.backends.registry import BackendAdmins
from penstock.system.base import System

logger = logging.getLogger(__name__)
REFUSED = "the start is refused"
_ANY_START = StartRequest("")


@dataclass(frozen=True, slots=True)
class StartSources:
    """The places that a start reads its facts from, and the parts of wings that take part in it."""

    streams: JobStreams
    startpoints: StartpointManager
    read_log: Callable[[], LogView]
    """Reads the checkpoint log."""
    parts: Sequence[StartPart]


def check_start(
    graph: ApplicationGraph,
    config: JobConfig,
    objects: ObjectStore,
    given: Mapping[str, System] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    request: StartRequest = _ANY_START,
    more: Sequence[StartpointRequest] = (),
    backends: bool = False,
) -> StartPlan:
    """The plan of a start now. Raises the error by which `prepare` would refuse it. Writes nothing.

    Args:
        graph: the application, with its patterns.
        given: systems that are open already, by name.
        request: the wishes of who starts it.
        more: startpoints that nobody has written yet.
        backends: look at what the backends of the state have already, too.
    """
    paths, parts = JobPaths(config.job.name, config.job.id), start_parts()
    graph = with_matches(complete(graph, config), config, given)
    startpoints = StartpointManager(objects, paths, config.job.startpoint_ttl_ms, clock.now_ms)
    with closing(JobStreams.open(graph, config, given)) as streams:
        sources = StartSources(streams, startpoints, CheckpointLog(objects, paths).read, parts)
        facts, plan = decide(graph, config, sources, request, more)
        if backends:
            _check_backends(facts, plan, streams, objects, parts)
    return plan


def _check_backends(
    facts: StartFacts, plan: StartPlan, streams: JobStreams, objects: ObjectStore, parts: Sequence[StartPart]
) -> None:
    uid = known_uid(objects, JobPaths(facts.config.job.name, facts.config.job.id))
    with closing(backend_admins(facts, plan, streams, objects, uid, parts)) as admins:
        admins.check()


def backend_admins(
    facts: StartFacts, plan: StartPlan, streams: JobStreams, objects: ObjectStore, uid: str, parts: Sequence[StartPart]
) -> BackendAdmins:
    """The admins of the backends of all stores that are backed up."""
    graph, config = plan.graph or facts.graph, facts.config
    stores = [*store_layout(graph), *(store for part in parts for store in part.backed_up(graph, config))]
    paths, tasks = JobPaths(config.job.name, config.job.id), len(facts.inputs.tasks)
    return BackendAdmins(config, paths, objects, tasks, stores, streams.systems, uid, facts.view.restorable)


def decide(
    graph: ApplicationGraph,
    config: JobConfig,
    sources: StartSources,
    request: StartRequest,
    more: Sequence[StartpointRequest] = (),
) -> tuple[StartFacts, StartPlan]:
    """Read the facts, and decide where the run begins. Steps that do not need each other note what they refuse; all of
    it is raised as one error.

    Args:
        graph: the application, completed and without patterns.
        more: startpoints that nobody has written yet.
    """
    config = config.with_columns(spec.name for spec in graph.stores if spec.by_column)
    streams, refusals = sources.streams, Refusals(REFUSED)
    for part in sources.parts:
        with refusals.noted():
            graph = part.connect(graph, config)
    with refusals.noted():
        check_config(graph, config, sources.parts)
    with refusals.noted():
        plan_topology(graph, config.task.dead_letter_stream, streams.exactly_once)
    with refusals.noted():
        streams.check_outputs()
    with refusals.noted():
        facts = _read_facts(graph, config, sources, request, refusals)
        facts = replace(facts, requests=replace(facts.requests, live=(*facts.requests.live, *more)))
        plan = plan_start(facts, resolver(streams.admins))
    refusals.check()
    return facts, plan


def _read_facts(
    graph: ApplicationGraph,
    config: JobConfig,
    sources: StartSources,
    request: StartRequest,
    refusals: Refusals,
) -> StartFacts:
    """Read the facts. What does not fit the streams is among the refusals then."""
    streams = sources.streams
    with refusals.noted():
        check_keys(graph, {op.stream for op in graph.inputs if not streams.systems[op.stream.system].has_keys})
    identities = streams.identities()  # before all that is decided about the streams
    ends = streams.ends()
    grouping = streams.group(ends)
    for part in sources.parts:
        with refusals.noted():
            part.check_streams(graph, streams.admins, grouping.count)
    with refusals.noted():
        streams.check_columns(graph)
    with refusals.noted():
        check_copartitioning(graph, ends, grouping.count, streams.broadcast)
    for warning in order_warnings(graph, streams.keeps_order):
        logger.warning("%s", warning)
    view = sources.read_log()
    if view.latest is not None:
        streams.check_left(view.latest.streams)
    return StartFacts(
        graph,
        config,
        JobInputs(grouping.tasks, ends, streams.without_startpoints(graph, config), identities, streams.patterns),
        view,
        read_requests(sources.startpoints, view, config),
        request.from_checkpoint,
        request.reset_operators,
    )
