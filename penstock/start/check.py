"""The steps of a start that write nothing: its facts, its plan, and all that it refuses. An application that does not
fit its configuration is refused as well."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from penstock.api.ssp import SystemStream
from penstock.base.retry import SYSTEM_CLOCK, Clock
from penstock.base.wording import listed
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.streams import CHANGELOG_STREAM
from penstock.checkpoint.task_values import V2
from penstock.config.model import JobConfig
from penstock.config.settings import StreamSettings
from penstock.errors import ConfigError, Refusals
from penstock.graph.keys import check_copartitioning, check_keys
from penstock.graph.specs import ApplicationGraph, OperatorSpec
from penstock.graph.topology import plan_topology
from penstock.job.identity import known_uid
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.start.inputs import with_matches
from penstock.start.job_streams import JobStreams
from penstock.start.layout import store_layout
from penstock.start.part import StartPart, complete, start_parts
from penstock.start.plan import StartFacts, StartPlan, StartRequest, plan_start, read_requests, resolver
from penstock.start.startpoint_manager import StartpointManager
from penstock.start.startpoint_request import StartpointRequest
from penstock.start.startpoints import JobInputs
from penstock.state.backends.registry import BackendAdmins
from penstock.system.base import System


def check_config(graph: ApplicationGraph, config: JobConfig, parts: Iterable[StartPart]) -> None:
    """Raise ConfigError, with all reasons, if the configuration does not fit the application's stores and outputs."""
    outputs = {spec.stream for spec in graph.outputs} | {config.task.dead_letter_stream}
    refusals = Refusals("the configuration does not fit the application")
    refusals.note_all(_unknown_stores(graph, config))
    refusals.note_all(_retained_others(config, outputs))
    refusals.note_all(_wrong_guarantees(graph, config, outputs))
    for part in parts:
        refusals.note_all(part.misfits(graph, config))
    refusals.note_all(_skipped_losses(graph, config))
    refusals.note_all(_unread_versions((spec.name for spec in graph.written_stores), config))
    refusals.check()


def _unknown_stores(graph: ApplicationGraph, config: JobConfig) -> Iterator[ConfigError]:
    known = {spec.name for spec in graph.stores}
    for name in config.store_names:
        if name not in known:
            stores = ", ".join(f"`{store}`" for store in sorted(known)) or "none"
            yield ConfigError(f"`stores.{name}.*` is configured, but the application has the stores: {stores}")


def _retained_others(config: JobConfig, outputs: Container[SystemStream | None]) -> Iterator[ConfigError]:
    for stream in config.retained_streams:
        if stream not in outputs:
            yield ConfigError(
                f"`streams.{stream}.retention.*` is configured, but `{stream}` is not an output of the application. "
                f"Change the retention of other streams with `penstock stream retain {stream}`"
            )


def _wrong_guarantees(
    graph: ApplicationGraph, config: JobConfig, outputs: Container[SystemStream | None]
) -> Iterator[ConfigError]:
    """The configuration wants exactly-once output in streams that are no outputs."""
    between = {reader.stream for reader in graph.intermediates}
    for stream in config.exactly_once_streams:
        name = StreamSettings.output_guarantee.full(str(stream))
        if stream in between:
            yield ConfigError(
                f"`{name}` ({config.origin(name)}): `{stream}` is an intermediate stream. Every message in it counts "
                "once in any case, because checkpoints record how far it is read. Remove the key"
            )
        elif stream not in outputs:
            yield ConfigError(
                f"`{name}` ({config.origin(name)}): `{stream}` is not an output of the application. Correct its name, "
                f"or remove the key. In a file for several jobs, `jobs.<job name>.{name}` is for one of them"
            )


def _skipped_losses(graph: ApplicationGraph, config: JobConfig) -> Iterator[ConfigError]:
    """Losses of a stream that is no input should be skipped, and the job needs all of it."""
    inputs = {op.stream for op in graph.inputs}
    used = {op.stream for op in graph.intermediates} | {spec.stream for spec in graph.outputs} | {*graph.side_streams()}
    used |= {config.store(spec.name).changelog for spec in graph.written_stores}
    for stream in sorted(used - inputs):
        name = StreamSettings.on_data_loss.full(str(stream))
        if name in config.origins:
            yield ConfigError(
                f"`{name}` ({config.origin(name)}): `{stream}` is not an input of the application, and nothing of it "
                "may be skipped. Remove the key"
            )


def _unread_versions(stores: Iterable[str], config: JobConfig) -> Iterator[ConfigError]:
    """Checkpoints must be written in a version that can hold the markers of every store, and be read in it."""
    write, read = config.task.checkpoint_write_versions, config.task.checkpoint_read_versions
    used = next(version for version in read if version in write)
    if used == V2:
        return
    lost = sorted(store for store in stores if CHANGELOG_STREAM not in config.store(store).backup_factories)
    if lost:
        yield ConfigError(
            f"checkpoints would be read in version {used} (task.checkpoint.write.versions is "
            f"{','.join(map(str, write))}, task.checkpoint.read.versions {','.join(map(str, read))}), which holds "
            f"markers of `{CHANGELOG_STREAM}` only. The stores {', '.join(f'`{store}`' for store in lost)} are not "
            f"backed up to it, so no start could restore them. Add it to their backup.factories, or write and read "
            f"version {V2}"
        )


def order_warnings(graph: ApplicationGraph, keeps_order: Callable[[SystemStream], bool]) -> Iterator[str]:
    """A warning for each operator whose results depend on an order that its messages do not have.

    Args:
        keeps_order: says of an input if its system keeps the order of messages across partitions. Asked for inputs of
            such operators alone.
    """
    reads: dict[str, frozenset[SystemStream]] = {}
    for op in graph.operators:
        own = frozenset([] if op.input_stream is None else [op.input_stream])
        reads[op.id] = own.union(*(reads[up] for up in op.upstream))
        if op.ordering is None and op.order_matters:
            unordered = sorted(str(stream) for stream in reads[op.id] if not keeps_order(stream))
            if unordered:
                yield _warning(op, unordered)


def _warning(op: OperatorSpec, streams: list[str]) -> str:
    names, one = listed([f"`{stream}`" for stream in streams]), len(streams) == 1
    order = 'declare order="event-time" for the operator, or ' if op.takes_order else ""
    return (
        f"the results of operator `{op.id}` depend on the order of messages, because {op.order_matters}. The "
        f"{'input' if one else 'inputs'} {names} {'spreads' if one else 'spread'} messages over several partitions, "
        f"which are read side by side, so later messages may come before earlier ones. To have an order, {order}have "
        f"{'the input' if one else 'each input'} read in order, or as one partition"
    )


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
        for part in sources.parts:
            with refusals.noted():
                part.check(facts, plan)
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
