"""From an application and a configuration to everything a run needs: checked, resolved, packed."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyspark import cloudpickle

from penstock.api.graph import ApplicationGraph, ProcessSpec
from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.changelog_marker import BACKEND
from penstock.checkpoint.log import CheckpointLog, OnDamage
from penstock.checkpoint.record import CheckpointRecord, Claim
from penstock.checkpoint.v2 import VERSION as V2
from penstock.checkpoint.versions import choose_version, read_task
from penstock.config.broadcast import PartitionRange
from penstock.config.model import JobConfig
from penstock.container.container import JobPackage
from penstock.container.tls import TlsIdentity, new_identity
from penstock.engine.directory import Markers
from penstock.engine.grouping import Grouping, group_inputs
from penstock.engine.start_plan import StartPlan, plan_start
from penstock.engine.worker import PackedPackage, WorkerPackage
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.metadata.identity import settle
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.paths import JobPaths
from penstock.runtime.instance import RuntimeSettings
from penstock.runtime.topology import Topology, plan_topology
from penstock.startpoint.decide import JobInputs
from penstock.startpoint.manager import StartpointManager
from penstock.state.admins import BackendAdmins
from penstock.system.base import PartitionOffsets, System, SystemAdmin, WriterIdentity
from penstock.system.registry import open_system
from penstock.wording import counted


@dataclass(frozen=True, slots=True)
class JobStreams:
    """The systems and streams of a job, and the admins to look at them."""

    inputs: tuple[SystemStream, ...]
    outputs: tuple[SystemStream, ...]
    systems: Mapping[str, System]
    admins: Mapping[str, SystemAdmin] = field(compare=False)
    broadcast: tuple[PartitionRange, ...] = ()
    least_tasks: int = 0
    retention: Mapping[SystemStream, StreamRetention] = field(default_factory=dict)
    """How long outputs keep their messages, where the configuration says it."""

    @classmethod
    def open(cls, graph: ApplicationGraph, config: JobConfig) -> JobStreams:
        """Raises ConfigError for a stream of a system that is not configured."""
        inputs = tuple(op.stream for op in graph.inputs)
        dead_letter = config.task.dead_letter_stream
        outputs = tuple(spec.stream for spec in graph.outputs) + ((dead_letter,) if dead_letter else ())
        if len(set(outputs)) != len(outputs):
            raise ConfigError(f"task.dead.letter.stream `{dead_letter}` is an output of the application as well")
        changelogs = [config.store(spec.name).changelog for spec in graph.stores]
        for spec, changelog in zip(graph.stores, changelogs, strict=True):
            if changelog in outputs and BACKEND in config.store(spec.name).backup_factories:
                raise ConfigError(
                    f"`{changelog}` is an output and the changelog of store `{spec.name}`: set "
                    f"`stores.{spec.name}.changelog` to another stream"
                )
        names = {stream.system for stream in (*inputs, *outputs, *changelogs)}
        systems = {name: open_system(config.system(name)) for name in names}
        admins = {name: system.admin() for name, system in systems.items()}
        least = config.job.intermediate_stream_partitions or 0
        retention = {stream: found for stream in outputs if (found := config.retention(stream)) is not None}
        return cls(inputs, outputs, systems, admins, config.task.broadcast_inputs, least, retention)

    def input_partitions(self) -> list[SystemStreamPartition]:
        """Every partition of every input. Raises NotFoundError if an input does not exist."""
        return [
            SystemStreamPartition(stream.system, stream.stream, partition)
            for stream in self.inputs
            for partition in range(self.admins[stream.system].partition_count(stream.stream))
        ]

    def group(self, ssps: Iterable[SystemStreamPartition]) -> Grouping:
        """Which task reads which of the inputs' partitions. Raises ConfigError as `group_inputs`."""
        return group_inputs(ssps, self.broadcast, self.least_tasks)

    def create_outputs(self, partitions: int) -> dict[str, int]:
        """Partitions of every output; one that does not exist is created with as many as there are tasks.

        Raises:
            IncompatibleError: an output that exists has another retention than the configuration says.
            ConfigError: an output is a changelog, or its system cannot delete old messages.
        """
        counts = {}
        for stream in self.outputs:
            admin = self.admins[stream.system]
            try:
                counts[str(stream)] = admin.partition_count(stream.stream)
            except NotFoundError:
                admin.create_stream(stream.stream, partitions, self.retention.get(stream))
                counts[str(stream)] = admin.partition_count(stream.stream)
            if stream in self.retention:
                admin.create_stream(stream.stream, counts[str(stream)], self.retention[stream])  # refuses another one
            if (owner := admin.owner(stream.stream)) is not None:
                raise ConfigError(f"the output `{stream}` is a changelog that only its owner writes: {owner}")
        return counts

    def ends(self) -> dict[SystemStreamPartition, PartitionOffsets]:
        """The ends of every partition of every input."""
        return {
            SystemStreamPartition(stream.system, stream.stream, partition): ends
            for stream in self.inputs
            for partition, ends in self.admins[stream.system].offsets(stream.stream).items()
        }

    def without_startpoints(self, graph: ApplicationGraph, config: JobConfig) -> dict[SystemStream, str]:
        """The streams that the job uses and that take no startpoint, with what they are."""
        changelogs = {
            config.store(spec.name).changelog: f"the changelog of store `{spec.name}`" for spec in graph.stores
        }
        outputs = dict.fromkeys(self.outputs, "an output of the job, which does not read it")
        return {stream: what for stream, what in {**changelogs, **outputs}.items() if stream not in self.inputs}

    def close(self) -> None:
        """Close the admins."""
        for admin in self.admins.values():
            admin.close()


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
    claim: Claim
    start: StartPlan
    startpoints: StartpointManager
    admins: BackendAdmins
    until: Mapping[SystemStreamPartition, int] | None
    worker_package: PackedPackage
    secret: str = field(repr=False)
    tls: TlsIdentity | None
    """With what containers, workers and the driver prove to each other who they are; None: in clear."""

    @property
    def inputs(self) -> tuple[SystemStream, ...]:
        """The input streams, in the order of their numbers."""
        return self.streams.inputs

    def ends(self) -> dict[SystemStreamPartition, PartitionOffsets]:
        """The ends of every input partition, now."""
        ends = self.streams.ends()
        if ends.keys() != {at.ssp for at in self.start.positions}:
            raise IncompatibleError(
                "an input has another number of partitions than when this run began: stop the job, and start it "
                "with a new `job.id`, or restore the stream"
            )
        return ends

    def writer(self, epoch: int) -> WriterIdentity:
        """Who writes the outputs."""
        return WriterIdentity(f"{self.paths.root}-{self.uid}", epoch)

    def fence_outputs(self, epoch: int) -> None:
        """From now on no older epoch can append to an output."""
        for stream in self.streams.outputs:
            self.streams.admins[stream.system].fence(stream.stream, self.writer(epoch))

    def markers_of(self, record: CheckpointRecord) -> Markers:
        """Task (as text) -> backend -> store -> marker, in the version of the checkpoint that is to be read."""
        chosen = choose_version([record], self.config.task.checkpoint_read_versions, 0)
        version = V2 if chosen is None else chosen.version
        return {
            str(task): read_task(record, task, version, self.config.changelog_partitions(self.layout, task)).markers
            for task in record.tasks
        }

    def put_probe(self, epoch: int) -> None:
        """An object that every container must find, or its job.root is another one."""
        self.objects.put_if_absent(self.paths.metadata("probe", str(epoch)), self.uid.encode())

    def remove_probe(self, epoch: int) -> None:
        """Every container has found it."""
        self.objects.delete(self.paths.metadata("probe", str(epoch)))

    def container_package(self, epoch: int) -> bytes:
        """The job as containers get it."""
        probe = self.paths.metadata("probe", str(epoch))
        return _pickle(JobPackage(self.topology, self.settings, self.config, self.uid, probe, self.streams.systems))


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
) -> PreparedJob:
    """Claim the log and decide where the run begins. The lease is held already.

    Raises:
        ConfigError, IncompatibleError: the application or the streams do not fit each other or the checkpoint.
        NotFoundError: an input or the named checkpoint does not exist.
    """
    topology = plan_topology(graph, config.task.dead_letter_stream)
    tls = new_identity() if config.container.tls_enabled else None
    check_config(graph, config)
    ends = streams.ends()
    grouping = streams.group(ends)
    tasks = grouping.count
    layout = store_layout(graph)
    paths = JobPaths(config.job.name, config.job.id)
    # Who names a checkpoint may go on from a log whose last record is damaged.
    on_damage: OnDamage = "raise" if from_checkpoint is None else "report"
    view = log.read(on_damage)
    startpoints = StartpointManager(objects, paths, config.job.startpoint_ttl_ms)
    inputs = JobInputs(grouping.by_name, ends, streams.without_startpoints(graph, config))
    start = plan_start(view, from_checkpoint, config, inputs, streams.admins, startpoints)
    if start.restore_from is not None:
        check_layout(start.restore_from, layout, tasks)
    uid = settle(objects, paths, config.job.root)
    settings = RuntimeSettings(
        job_name=config.job.name,
        tasks=tasks,
        output_partitions=streams.create_outputs(tasks),
        cache_entries={spec.name: config.store(spec.name).object_cache_size for spec in graph.stores},
        dead_letter=config.task.dead_letter_stream is not None,
        config=config.for_tasks(),
    )
    claim = log.claim(run_id, on_damage)
    if log.known().latest_before(claim) != view.latest:
        raise IncompatibleError("another driver wrote a checkpoint while this one started: start again")
    data = _pickle(WorkerPackage(topology, settings, streams.systems))
    return PreparedJob(
        config=config,
        paths=paths,
        objects=objects,
        uid=uid,
        topology=topology,
        settings=settings,
        streams=streams,
        layout=layout,
        claim=claim,
        start=start,
        startpoints=startpoints,
        admins=BackendAdmins(config, paths, objects, tasks, list(layout), streams.systems, uid),
        until={ssp: end.upcoming for ssp, end in ends.items()} if until_latest else None,
        worker_package=PackedPackage(hashlib.sha256(data).hexdigest(), data),
        secret=secrets.token_urlsafe(32),
        tls=tls,
    )


def store_layout(graph: ApplicationGraph) -> dict[str, str]:
    """Store -> what a checkpoint remembers of it: `operators key-serde value-serde`."""
    users: dict[str, list[str]] = {spec.name: [] for spec in graph.stores}
    for op in graph.operators:
        if isinstance(op, ProcessSpec):
            for store in op.stores:
                users[store].append(op.id)
    return {
        spec.name: f"{','.join(users[spec.name])} {spec.key_serde.name} {spec.value_serde.name}"
        for spec in graph.stores
    }


def check_layout(record: CheckpointRecord, layout: Mapping[str, str], tasks: int) -> None:
    """Raise IncompatibleError if the application cannot go on from the checkpoint."""
    if record.task_count != tasks:
        raise IncompatibleError(
            f"checkpoint {record.id} was made with {counted(record.task_count, 'task')}, now there are {tasks}: the "
            "largest "
            "partition count of the inputs, job.intermediate.stream.partitions or task.broadcast.inputs has changed. "
            "Keys would move away from their state. Set it back, or give the job a new `job.id`"
        )
    for store, before in record.stores.items():
        now = layout.get(store)
        if now == before:
            continue
        if now is None:
            raise IncompatibleError(
                f"store `{store}` is in checkpoint {record.id} (operators, key serde, value serde: {before}) but no "
                "longer in the application. Declare it again, or give the job a new `job.id` to start without state"
            )
        raise IncompatibleError(
            f"store `{store}` was written as `{before}` (operators, key serde, value serde) and is declared as "
            f"`{now}` now. {_renamed(before, now) or _old_numbers(store, before, now)}Set it back, or give the job a "
            "new `job.id` to start without state"
        )


def _renamed(before: str, now: str) -> str:
    """What to write where the store is the same and its operators have other ids: those without one are numbered."""
    (old, *serdes), (new, *others) = before.split(" "), now.split(" ")
    olds, news = old.split(","), new.split(",")
    if serdes != others or len(olds) != len(news):
        return ""
    moved = [(was, is_now) for was, is_now in zip(olds, news, strict=True) if was != is_now]
    ids = " and ".join(f'.process(..., id="{was}") to the one that is `{is_now}` now' for was, is_now in moved)
    return (
        "Operators without an id are numbered in order: one that is put before another changes its id. If these are "
        f"the operators that wrote the store, give them their ids back: {ids}; and give each one before them a new id. "
        "Otherwise: "
    )


def _old_numbers(store: str, before: str, now: str) -> str:
    """What to declare where only the form of number keys differs: they used to be written as Samza does."""
    old, new = before.split(" "), now.split(" ")
    if len(old) != 3 or len(new) != 3 or (old[0], old[2]) != (new[0], new[2]) or new[1] != f"ordered-{old[1]}":
        return ""
    return (
        "Its keys are in Samza's form, which has no ranges: "
        f'app.store("{store}", key=ps.Samza{old[1].capitalize()}()) reads them. '
    )


def check_config(graph: ApplicationGraph, config: JobConfig) -> None:
    """Raise ConfigError if the configuration does not fit the application's stores and outputs."""
    known = {spec.name for spec in graph.stores}
    for name in config.store_names:
        if name not in known:
            stores = ", ".join(f"`{store}`" for store in sorted(known)) or "none"
            raise ConfigError(f"`stores.{name}.*` is configured, but the application has the stores: {stores}")
    outputs = {spec.stream for spec in graph.outputs} | {config.task.dead_letter_stream}
    for stream in config.retained_streams:
        if stream not in outputs:
            raise ConfigError(
                f"`streams.{stream}.retention.*` is configured, but `{stream}` is not an output of the application. "
                f"Change the retention of other streams with `penstock stream retain {stream}`"
            )
    _check_versions(known, config)


def _check_versions(stores: Iterable[str], config: JobConfig) -> None:
    """Checkpoints must be written in a version that can hold the markers of every store, and be read in it."""
    write, read = config.task.checkpoint_write_versions, config.task.checkpoint_read_versions
    used = next(version for version in read if version in write)
    if used == V2:
        return
    lost = sorted(store for store in stores if BACKEND not in config.store(store).backup_factories)
    if lost:
        raise ConfigError(
            f"checkpoints would be read in version {used} (task.checkpoint.write.versions is "
            f"{','.join(map(str, write))}, task.checkpoint.read.versions {','.join(map(str, read))}), which holds "
            f"markers of `{BACKEND}` only. The stores {', '.join(f'`{store}`' for store in lost)} are not backed up "
            f"to it, so no start could restore them. Add it to their backup.factories, or write and read version {V2}"
        )


def _pickle(package: object) -> bytes:
    """User code may come from a script, so functions are pickled by value where they cannot be imported."""
    try:
        data: bytes = cloudpickle.dumps(package)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise ConfigError(
            f"the application cannot be sent to the containers: {error}. Functions, tasks and serdes must be "
            "picklable; open files, locks and connections belong into StreamTask.init"
        ) from error
    return data


__all__ = ["JobStreams", "PreparedJob", "check_config", "check_layout", "prepare", "store_layout"]
