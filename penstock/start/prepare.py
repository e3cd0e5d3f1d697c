"""From an application and a configuration to everything a run needs: checked, resolved, packed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.choice import choose_version
from penstock.checkpoint.intermediate import Intermediate
from penstock.checkpoint.log import CheckpointLog, OnDamage
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.origin import Origin
from penstock.checkpoint.record import CheckpointRecord, Claim
from penstock.checkpoint.versions.changelog_marker import BACKEND
from penstock.checkpoint.versions.markers import read_task
from penstock.checkpoint.versions.table import versions_of
from penstock.checkpoint.versions.v2 import VERSION as V2
from penstock.checkpoint.versions.value import Markers as OfTask
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.config.model import JobConfig
from penstock.drain.requests import DrainRequests
from penstock.errors import IncompatibleError
from penstock.graph.copartitioning import check_copartitioning
from penstock.graph.keyed import check_keys
from penstock.graph.specs import ApplicationGraph
from penstock.graph.topology import Topology, plan_topology
from penstock.job.identity import known_uid, settle
from penstock.job.owned_streams import OwnedStreams
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.outbox.unpublished import OwedOutput, Unpublished, owed_of
from penstock.refusals import Refusals
from penstock.runtime.stage.instance import RuntimeSettings
from penstock.runtime.steps import StepLimits
from penstock.schemas.connect import with_registered, with_registry
from penstock.side.fill.homes import side_fingerprints
from penstock.side.plan import backed_up_side_stores, with_side_inputs
from penstock.side.shown import SideStoreFacts, put_side_stores, side_store_board
from penstock.start.facts import StartFacts, StartRequest, read_requests, resolver
from penstock.start.fit import check_config
from penstock.start.layout import store_layout
from penstock.start.order import order_warnings
from penstock.start.plan import StartPlan, plan_start
from penstock.start.report import report
from penstock.start.startpoints.decide import JobInputs
from penstock.start.startpoints.manager import StartpointManager
from penstock.start.startpoints.request import StartpointRequest
from penstock.start.streams.identities import Identities
from penstock.start.streams.intermediate import begin_streams, declared_streams
from penstock.start.streams.job_streams import JobStreams
from penstock.start.streams.owed import (
    check_age,
    check_keepers,
    check_outputs,
    check_streams,
    own_debt,
    publisher_name,
    warn_of_copy,
    warn_of_going_back,
    warn_of_new_outputs,
)
from penstock.start.streams.patterns import with_matches
from penstock.state.admins import BackendAdmins
from penstock.state.backends.changelog_stream.owner import owner_of_intermediates
from penstock.system.base import PartitionOffsets, System, WriterIdentity
from penstock.wire.package import JobPackage
from penstock.wire.protocol import Markers
from penstock.wording import listed

logger = logging.getLogger(__name__)
REFUSED = "the start is refused"
_ANY_START = StartRequest("")


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """Everything a run needs and does not change."""

    config: JobConfig
    paths: JobPaths
    objects: ObjectStore
    log: CheckpointLog
    uid: str
    topology: Topology
    settings: RuntimeSettings
    streams: JobStreams
    layout: dict[str, str]
    intermediate_layout: dict[SystemStream, str]
    claim: Claim
    start: StartPlan
    intermediate: Mapping[SystemStream, Intermediate]
    """Where the run begins in each durable intermediate stream."""
    startpoints: StartpointManager
    drains: DrainRequests
    admins: BackendAdmins
    until: Mapping[SystemStreamPartition, int] | None
    close: bool
    """True if a run that reaches its end closes the stream."""
    side_fingerprints: Mapping[str, str]
    """See `JobPackage.side_fingerprints`."""
    publisher: str
    """The name of who writes the outputs, the same for every run."""
    clock: Clock
    identities: Identities
    recorded_identities: Identities
    """The identities that records have: those of the inputs and of exactly-once outputs at the start."""

    @property
    def inputs(self) -> tuple[SystemStream, ...]:
        """The input streams, in the order of their numbers."""
        return self.streams.inputs

    def ends(self) -> dict[SystemStreamPartition, PartitionOffsets]:
        """The ends of every input partition, now."""
        return self.streams.ends()

    def writer(self, epoch: int) -> WriterIdentity:
        """Who writes the outputs."""
        return WriterIdentity(self.publisher, epoch)

    def check_keepers(self, view: LogView) -> None:
        """Raise IncompatibleError if a system has lost how far this job has published. To be called before outputs are
        fenced, which may make what was lost, and empty.

        Args:
            view: the log.
        """
        check_keepers(own_debt(owed_of(view), self.uid, self.paths), self.publisher, self.streams)

    def fence_outputs(self, epoch: int) -> None:
        """From now on no older epoch can append to an output or intermediate stream whose system fences writers."""
        for stream in self.streams.fenced:
            self.streams.admins[stream.system].fence(stream.stream, self.writer(epoch))

    def show_published(self, published: Unpublished) -> None:
        """All of a record has been published: readers may see it."""
        for stream in sorted(published.streams):
            self.streams.admins[stream.system].published(stream.stream, self.publisher, published.slot)

    def markers_of(self, origin: Origin) -> Markers:
        """Task (as text) -> backend -> store -> marker to restore from, in the checkpoint version to be read."""
        record = origin.record
        if record is None or origin.cleared:
            return {}
        version = choose_version(record, self.config.task.checkpoint_read_versions)
        return {
            str(task): _without(
                read_task(record, task, version, self.config.changelog_partitions(self.layout, task)).markers,
                origin.emptied,
            )
            for task in record.tasks
        }

    def other_markers(self, record: CheckpointRecord) -> str:
        """A hint if the checkpoint cannot be restored in version 1, but its version 2 has markers of other backends;
        else an empty text."""
        order = self.config.task.checkpoint_read_versions
        chosen = choose_version(record, order)
        if chosen == V2 or V2 not in versions_of(record):
            return ""
        found = {name for task in record.tasks for name in read_task(record, task, V2, {}).markers} - {BACKEND}
        if not found:
            return ""
        return (
            f". Version {V2} of the checkpoint has markers of {listed([f'`{name}`' for name in sorted(found)])}: to "
            f"restore from them, set task.checkpoint.read.versions to {V2},{chosen}; it is "
            f"{','.join(map(str, order))} now"
        )

    def put_probe(self, epoch: int) -> None:
        """An object that every container must find, or its job.root is another one."""
        self.objects.put_if_absent(self.paths.metadata("probe", str(epoch)), self.uid.encode())

    def remove_probe(self, epoch: int) -> None:
        """Every container has found it."""
        self.objects.delete(self.paths.metadata("probe", str(epoch)))

    def container_package(self, epoch: int) -> JobPackage:
        """The job as containers get it."""
        probe = self.paths.metadata("probe", str(epoch))
        return JobPackage(
            self.topology,
            self.settings,
            self.config,
            self.uid,
            probe,
            self.streams.systems,
            self.side_fingerprints,
            self._partitions(),
            self.writer(epoch).name,
        )

    def _partitions(self) -> dict[int, tuple[SystemStreamPartition, ...]]:
        found: dict[int, tuple[SystemStreamPartition, ...]] = {}
        for at in sorted(self.start.positions):
            found[at.task] = (*found.get(at.task, ()), at.ssp)
        return found


def prepare(
    graph: ApplicationGraph,
    config: JobConfig,
    objects: ObjectStore,
    streams: JobStreams,
    log: CheckpointLog,
    request: StartRequest,
    clock: Clock = SYSTEM_CLOCK,
) -> PreparedJob:
    """Read the facts, decide where the run begins, make its streams, and claim the log. The lease is held already.

    Nothing is written before the application, its inputs and the checkpoint are known to fit.

    Raises:
        ConfigError, IncompatibleError: the application or the streams do not fit each other or the checkpoint.
        NotFoundError: an input, a side input, the named checkpoint, or an operator of `reset_operators` does not exist.
    """
    paths = JobPaths(config.job.name, config.job.id)
    # A caller who names a checkpoint may go on from a log whose last record is damaged.
    on_damage: OnDamage = "raise" if request.from_checkpoint is None else "report"
    startpoints = StartpointManager(objects, paths, config.job.startpoint_ttl_ms, clock.now_ms)
    facts, plan = _decide(graph, config, streams, startpoints, lambda: log.read(on_damage), request)
    report(plan, facts)
    graph, config = plan.graph or facts.graph, facts.config
    topology = plan_topology(graph, config.task.dead_letter_stream, streams.exactly_once)
    tasks, view = len(facts.inputs.tasks), facts.view
    uid = settle(objects, paths, config.job.root)
    owed = own_debt(owed_of(view), uid, paths)
    streams = streams.owing(owed.streams, config)
    publisher = publisher_name(owed, uid, paths)
    _check_debts(owed, view, publisher, streams, tasks, lambda: log.read(on_damage))
    owned, mine = OwnedStreams(objects, paths), owner_of_intermediates(paths.root, uid)
    new = streams.create_intermediates(tasks, mine, owned)
    intermediate = begin_streams(declared_streams(graph), plan.kept, streams.intermediate_ends(), new)
    output_partitions = _create_outputs(streams, tasks, owned)
    warn_of_going_back(streams.exactly_once, plan, view)
    claim = log.claim(request.run_id, on_damage)
    if log.known().latest_before(claim) != view.latest:
        raise IncompatibleError("another driver wrote a checkpoint while this one started: start again")
    put_side_stores(side_store_board(objects, paths), tuple(map(SideStoreFacts.of, graph.side_stores)))
    layout, identities, ends = store_layout(graph), facts.inputs.identities, facts.inputs.ends
    backed_up = [*layout, *backed_up_side_stores(graph, config)]
    return PreparedJob(
        config=config,
        paths=paths,
        objects=objects,
        log=log,
        uid=uid,
        topology=topology,
        settings=_settings(graph, config, streams, facts.inputs, output_partitions, request.run_id),
        streams=streams,
        layout=layout,
        intermediate_layout=declared_streams(graph),
        claim=claim,
        start=plan,
        intermediate=intermediate,
        startpoints=startpoints,
        drains=DrainRequests(objects, paths),
        admins=BackendAdmins(config, paths, objects, tasks, backed_up, streams.systems, uid, view.restorable),
        until={ssp: end.upcoming for ssp, end in ends.items()} if request.until_latest else None,
        close=request.close,
        side_fingerprints=side_fingerprints(graph),
        publisher=publisher,
        clock=clock,
        identities=identities,
        recorded_identities={**streams.output_identities(), **identities},
    )


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
    paths = JobPaths(config.job.name, config.job.id)
    graph = with_matches(with_side_inputs(graph, config), config, given)
    startpoints = StartpointManager(objects, paths, config.job.startpoint_ttl_ms, clock.now_ms)
    with closing(JobStreams.open(graph, config, given)) as streams:
        facts, plan = _decide(graph, config, streams, startpoints, CheckpointLog(objects, paths).read, request, more)
        if backends:
            _check_backends(facts, plan, streams, objects, paths)
    return plan


def _check_backends(
    facts: StartFacts, plan: StartPlan, streams: JobStreams, objects: ObjectStore, paths: JobPaths
) -> None:
    graph, config, tasks = plan.graph or facts.graph, facts.config, len(facts.inputs.tasks)
    stores = [*store_layout(graph), *backed_up_side_stores(graph, config)]
    uid, restorable = known_uid(objects, paths), facts.view.restorable
    with closing(BackendAdmins(config, paths, objects, tasks, stores, streams.systems, uid, restorable)) as admins:
        admins.check()


def _decide(
    graph: ApplicationGraph,
    config: JobConfig,
    streams: JobStreams,
    startpoints: StartpointManager,
    read_log: Callable[[], LogView],
    request: StartRequest,
    more: Sequence[StartpointRequest] = (),
) -> tuple[StartFacts, StartPlan]:
    config = config.with_columns(spec.name for spec in graph.stores if spec.by_column)
    refusals = Refusals(REFUSED)
    with refusals.noted():
        graph = with_registered(with_registry(graph, config))
    with refusals.noted():
        check_config(graph, config)
    with refusals.noted():
        plan_topology(graph, config.task.dead_letter_stream, streams.exactly_once)
    with refusals.noted():
        streams.check_outputs()
    with refusals.noted():
        facts = _read_facts(graph, config, streams, startpoints, read_log, request, refusals)
        facts = replace(facts, requests=replace(facts.requests, live=(*facts.requests.live, *more)))
        plan = plan_start(facts, resolver(streams.admins))
    refusals.check()
    return facts, plan


def _read_facts(
    graph: ApplicationGraph,
    config: JobConfig,
    streams: JobStreams,
    startpoints: StartpointManager,
    read_log: Callable[[], LogView],
    request: StartRequest,
    refusals: Refusals,
) -> StartFacts:
    """The facts. What does not fit the streams is among the refusals then."""
    with refusals.noted():
        check_keys(graph, {op.stream for op in graph.inputs if not streams.systems[op.stream.system].has_keys})
    identities = streams.identities()  # before all that is decided about the streams
    ends = streams.ends()
    grouping = streams.group(ends)
    with refusals.noted():
        streams.check_side_inputs(graph, grouping.count)
    with refusals.noted():
        streams.check_columns(graph)
    with refusals.noted():
        check_copartitioning(graph, ends, grouping.count, streams.broadcast)
    for warning in order_warnings(graph, streams.keeps_order):
        logger.warning("%s", warning)
    view = read_log()
    if view.latest is not None:
        streams.check_left(ssp.system_stream for own in view.latest.next_offsets.values() for ssp in own)
    return StartFacts(
        graph,
        config,
        JobInputs(grouping.tasks, ends, streams.without_startpoints(graph, config), identities, streams.patterns),
        view,
        read_requests(startpoints, view, config),
        request.from_checkpoint,
        request.reset_operators,
    )


def _check_debts(
    owed: OwedOutput, view: LogView, publisher: str, streams: JobStreams, tasks: int, read_again: Callable[[], LogView]
) -> None:
    """Refuse a start that could not publish what earlier records leave, or would publish it twice or into an output
    that it makes again."""
    warn_of_copy(owed_of(view), owed)
    check_keepers(owed, publisher, streams)
    check_streams(owed, streams)  # before outputs are created
    check_age(view, publisher, streams, read_again)
    is_copy = owed_of(view).publisher != owed.publisher
    recorded = {} if view.latest is None or is_copy else view.latest.identities
    check_outputs(recorded, tasks, streams)
    warn_of_new_outputs(owed, recorded, streams)


def _create_outputs(streams: JobStreams, tasks: int, owned: OwnedStreams) -> dict[str, int]:
    partitions = streams.create_outputs(tasks, owned)
    for stream in set(streams.outputs) - set(streams.fenced):
        logger.warning(
            "the system of the output `%s` does not fence writers: a driver that lost this job may still append to it",
            stream,
        )
    return partitions


def _settings(
    graph: ApplicationGraph,
    config: JobConfig,
    streams: JobStreams,
    inputs: JobInputs,
    output_partitions: dict[str, int],
    run_id: str,
) -> RuntimeSettings:
    return RuntimeSettings(
        job_name=config.job.name,
        tasks=len(inputs.tasks),
        output_partitions=output_partitions,
        output_limits=streams.record_limits(),
        cache_entries={spec.name: config.store(spec.name).object_cache_size for spec in graph.stores},
        dead_letter=config.task.dead_letter_stream is not None,
        identities={str(stream): identity for stream, identity in inputs.identities.items()},
        config=config.for_tasks(),
        max_ahead_ms=config.job.watermark_max_ahead_ms if graph.uses_time else None,
        window_ms=config.task.window_ms,
        step_limits=StepLimits(config.task.callback_drain_timeout_ms, config.task.callback_watermark_timeout_ms),
        run_id=run_id,
    )


def _without(markers: OfTask, stores: Collection[str]) -> dict[str, dict[str, str]]:
    return {
        backend: {store: marker for store, marker in own.items() if store not in stores}
        for backend, own in markers.items()
    }
