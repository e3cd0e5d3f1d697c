"""From an application and a configuration to everything a run needs: checked, resolved, packed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.choice import choose_version
from penstock.checkpoint.log import CheckpointLog, OnDamage
from penstock.checkpoint.origin import FromRecord
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
from penstock.graph.specs import ApplicationGraph, BatchTaskSpec
from penstock.graph.topology import Topology, plan_topology
from penstock.job.identity import settle
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.outbox.unpublished import Owed, Unpublished
from penstock.runtime.stage.instance import RuntimeSettings
from penstock.runtime.steps import StepLimits
from penstock.side.fill.homes import side_fingerprints
from penstock.side.plan import backed_up_side_stores
from penstock.side.shown import SideStoreFacts, put_side_stores, side_store_board
from penstock.start.begin import StartPlan, plan_start
from penstock.start.fit import check_config
from penstock.start.identities import Identities
from penstock.start.intermediate import (
    begin_streams,
    declared_streams,
    kept_streams,
    operators_of,
    recorded_operators,
)
from penstock.start.layout import check_layout, store_layout
from penstock.start.owed import (
    check_age,
    check_keepers,
    check_streams,
    own_debt,
    publisher_name,
    warn_of_copy,
    warn_of_going_back,
    warn_of_new_outputs,
)
from penstock.start.reset import plan_reset
from penstock.start.startpoints.decide import JobInputs
from penstock.start.startpoints.manager import StartpointManager
from penstock.start.streams import JobStreams
from penstock.state.admins import BackendAdmins
from penstock.state.backends.changelog_stream.owner import owner_of_intermediates
from penstock.system.base import PartitionOffsets, WriterIdentity
from penstock.wire.package import JobPackage
from penstock.wire.protocol import Markers
from penstock.wording import listed

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """Everything a run needs and does not change."""

    config: JobConfig
    paths: JobPaths
    objects: ObjectStore
    uid: str
    topology: Topology
    settings: RuntimeSettings
    streams: JobStreams
    layout: dict[str, str]
    intermediate_layout: dict[SystemStream, str]
    claim: Claim
    start: StartPlan
    startpoints: StartpointManager
    drains: DrainRequests
    admins: BackendAdmins
    until: Mapping[SystemStreamPartition, int] | None
    close: bool
    """Whether a run that reaches its end closes the stream."""
    side_fingerprints: Mapping[str, str]
    """See `JobPackage.side_fingerprints`."""
    publisher: str
    """The name of who writes the outputs, the same for every run."""
    clock: Clock
    identities: Identities
    recorded_identities: Identities
    """Those of the inputs, when the job was prepared."""

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

    def check_keepers(self, owed: Owed) -> None:
        """Raise IncompatibleError if a system has lost how far this job has published. To be called before outputs are
        fenced, which may make what was lost, and empty.

        Args:
            owed: what the log says.
        """
        check_keepers(own_debt(owed, self.uid, self.paths), self.publisher, self.streams)

    def fence_outputs(self, epoch: int) -> None:
        """From now on no older epoch can append to an output or intermediate stream whose system fences writers."""
        for stream in self.streams.fenced:
            self.streams.admins[stream.system].fence(stream.stream, self.writer(epoch))

    def show_published(self, published: Unpublished) -> None:
        """All of a record has been published: readers may see it."""
        for stream in sorted(published.streams):
            self.streams.admins[stream.system].published(stream.stream, self.publisher, published.slot)

    def markers_of(self, origin: FromRecord) -> Markers:
        """Task (as text) -> backend -> store -> marker of what is restored, in the checkpoint version to be
        read."""
        record = origin.record
        chosen = choose_version([record], self.config.task.checkpoint_read_versions, 0)
        version = V2 if chosen is None else chosen.version
        return {
            str(task): _without(
                read_task(record, task, version, self.config.changelog_partitions(self.layout, task)).markers,
                origin.emptied,
            )
            for task in record.tasks
        }

    def other_markers(self, record: CheckpointRecord) -> str:
        """What to configure if the checkpoint cannot be restored in version 1, and its version 2 has markers of other
        backends: a sentence, or nothing."""
        order = self.config.task.checkpoint_read_versions
        chosen = choose_version([record], order, 0)
        if chosen is None or chosen.version == V2 or V2 not in versions_of(record):
            return ""
        found = {name for task in record.tasks for name in read_task(record, task, V2, {}).markers} - {BACKEND}
        if not found:
            return ""
        return (
            f". Version {V2} of the checkpoint has markers of {listed([f'`{name}`' for name in sorted(found)])}: to "
            f"restore from them, set task.checkpoint.read.versions to {V2},{chosen.version}; it is "
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
    *,
    run_id: str,
    from_checkpoint: str | None,
    until_latest: bool,
    close: bool = True,
    reset_operators: Sequence[str] = (),
    clock: Clock = SYSTEM_CLOCK,
) -> PreparedJob:
    """Claim the log and decide where the run begins. The lease is held already.

    Raises:
        ConfigError, IncompatibleError: the application or the streams do not fit each other or the checkpoint.
        NotFoundError: an input, a side input, the named checkpoint, or an operator of `reset_operators` does not exist.
    """
    topology = plan_topology(graph, config.task.dead_letter_stream, streams.exactly_once)
    check_config(graph, config)
    identities = streams.identities()  # before all that is decided about the streams
    ends = streams.ends()
    grouping = streams.group(ends)
    tasks = grouping.count
    streams.check_side_inputs(graph, tasks)
    check_copartitioning(graph, ends, tasks, streams.broadcast)
    layout = store_layout(graph)
    backed_up = [*layout, *backed_up_side_stores(graph, config)]
    paths = JobPaths(config.job.name, config.job.id)
    # Who names a checkpoint may go on from a log whose last record is damaged.
    on_damage: OnDamage = "raise" if from_checkpoint is None else "report"
    view = log.read(on_damage)
    startpoints = StartpointManager(objects, paths, config.job.startpoint_ttl_ms, clock.now_ms)
    inputs = JobInputs(grouping.by_name, ends, streams.without_startpoints(graph, config), identities)
    start = plan_start(view, from_checkpoint, config, inputs, streams.admins, startpoints, clock.now_ms())
    operators = [op.id for op in graph.operators]
    between = declared_streams(graph)
    resettable = {*chain(*(operators_of(each.writer) for each in between)), *recorded_operators(start.restore_from)}
    reset = plan_reset(reset_operators, operators, start.restore_from, layout, resettable)
    start = start.resetting(reset, graph.operators)
    record = start.restore_from
    if record is not None:
        start = replace(start, unwritten=_no_longer_written(graph, record, layout))
        emptied = record.stores if start.clears_state else start.reset.stores | start.unwritten
        check_layout(record, layout, tasks, emptied, paths.root)
    kept = kept_streams(
        start.restore_from,
        between,
        clears_state=start.clears_state,
        reset=start.reset.operators,
        job=paths.root,
        has_grown=bool(start.times.grown),
    )
    if start.reset.operators:
        logger.warning(
            "this start drops what waits in operator %s, as requested, and keeps all other state. Each start with this "
            "request does so again",
            listed([f"`{operator}`" for operator in start.reset.operators]),
        )
    uid = settle(objects, paths, config.job.root)
    owed = own_debt(view.owed, uid, paths)
    warn_of_copy(view.owed, owed)
    streams = streams.owing(owed.streams, config)
    publisher = publisher_name(owed, uid, paths)
    check_keepers(owed, publisher, streams)
    check_streams(owed, streams)  # before outputs are created
    check_age(view, publisher, streams, lambda: log.read(on_damage))
    warn_of_new_outputs(owed, {} if view.latest is None else view.latest.identities, streams)
    new = streams.create_intermediates(tasks, owner_of_intermediates(paths.root, uid))
    start = replace(start, intermediate=begin_streams(between, kept, streams.intermediate_ends(), new))
    settings = RuntimeSettings(
        job_name=config.job.name,
        tasks=tasks,
        output_partitions=streams.create_outputs(tasks),
        output_limits=streams.record_limits(),
        cache_entries={spec.name: config.store(spec.name).object_cache_size for spec in graph.stores},
        dead_letter=config.task.dead_letter_stream is not None,
        identities={str(stream): identity for stream, identity in identities.items()},
        config=config.for_tasks(),
        max_ahead_ms=config.job.watermark_max_ahead_ms if graph.uses_time else None,
        window_ms=config.task.window_ms,
        step_limits=StepLimits(config.task.callback_drain_timeout_ms, config.task.callback_watermark_timeout_ms),
        run_id=run_id,
    )
    for stream in set(streams.outputs) - set(streams.fenced):
        logger.warning(
            "the system of the output `%s` does not fence writers: a driver that lost this job may still append to it",
            stream,
        )
    warn_of_going_back(streams.exactly_once, start, view)
    claim = log.claim(run_id, on_damage)
    if log.known().latest_before(claim) != view.latest:
        raise IncompatibleError("another driver wrote a checkpoint while this one started: start again")
    put_side_stores(side_store_board(objects, paths), tuple(map(SideStoreFacts.of, graph.side_stores)))
    return PreparedJob(
        config=config,
        paths=paths,
        objects=objects,
        uid=uid,
        topology=topology,
        settings=settings,
        streams=streams,
        layout=layout,
        intermediate_layout={each.stream: each.layout for each in between},
        claim=claim,
        start=start,
        startpoints=startpoints,
        drains=DrainRequests(objects, paths),
        admins=BackendAdmins(config, paths, objects, tasks, backed_up, streams.systems, uid, view.restorable),
        until={ssp: end.upcoming for ssp, end in ends.items()} if until_latest else None,
        close=close,
        side_fingerprints=side_fingerprints(graph),
        publisher=publisher,
        clock=clock,
        identities=identities,
        recorded_identities={**streams.output_identities(), **identities},
    )


def _no_longer_written(graph: ApplicationGraph, record: CheckpointRecord, layout: Mapping[str, str]) -> frozenset[str]:
    """The stores of the checkpoint that something else fills now, and those that an operator deletes."""
    deleted = {store for op in graph.operators if isinstance(op, BatchTaskSpec) for store in op.deletes}
    deleted = deleted.intersection(record.stores).difference(layout)
    for store in sorted(deleted):
        logger.info("store `%s` of checkpoint %s is dropped: the application deletes it", store, record.id)
    found = frozenset(spec.name for spec in graph.side_stores).intersection(record.stores)
    for store in sorted(found):
        logger.warning(
            "the job wrote store `%s` until checkpoint %s. Side inputs or a pushed table fill the store now, and its "
            "earlier content is not used",
            store,
            record.id,
        )
    return found | deleted


def _without(markers: OfTask, stores: Collection[str]) -> dict[str, dict[str, str]]:
    return {
        backend: {store: marker for store, marker in own.items() if store not in stores}
        for backend, own in markers.items()
    }


__all__ = ["PreparedJob", "prepare"]
