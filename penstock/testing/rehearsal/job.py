"""Runs an application on the state of a job as of a checkpoint, in this process and in a temporary folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from penstock.admin.job.fork import borrow
from penstock.admin.jobs import FoundJob
from penstock.api.side_inputs import PushedTable
from penstock.api.ssp import SystemStreamPartition
from penstock.application.application import Application
from penstock.base.retry import SYSTEM_CLOCK, Clock
from penstock.batch.batch import Batch
from penstock.checkpoint.record import CheckpointRecord, Closing
from penstock.config.key import Key
from penstock.config.model import JobConfig
from penstock.config.settings import JobSettings, StoreSettings
from penstock.driver.feed.feed import Feed
from penstock.errors import NotFoundError, PenstockError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.topology import Topology, plan_topology
from penstock.host.process import process_folder
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.replay.wing import ReadUpTo
from penstock.runtime.messages.packet import Packet, PacketKind
from penstock.runtime.stage.sink import OuterStages, OutputRecords, OutputWriters
from penstock.runtime.stage.task_instance import TaskAttempt, TaskInstance
from penstock.start.job import ClaimedJob
from penstock.start.job_streams import JobStreams
from penstock.system.base import Appended, WriterIdentity
from penstock.tables.manifest import fingerprint_of
from penstock.tables.registry import TableRegistry
from penstock.testing.clock import SettableClock
from penstock.testing.in_process import InProcessDriver
from penstock.testing.in_process_ports import InProcessFleet, InProcessRunner
from penstock.testing.rehearsal.feeds import NotedFeed
from penstock.testing.rehearsal.kept import KeptFactory, keep_in, kept_at, state_in
from penstock.wire.containers import Assignment
from penstock.wire.ports import EpochOpening, JobPackage

T = TypeVar("T")
Positions = Mapping[SystemStreamPartition, int]
_OF_THE_JOB = ("spark.", "metrics.", "job.dashboard.", "state.backends.", "app.run.", "job.replay.")
_KEPT = f"{KeptFactory.__module__}:{KeptFactory.__qualname__}"
_OF_A_STORE = (StoreSettings.changelog.suffix, StoreSettings.backup_factories.suffix)
"""The changelogs of a rehearsal are named after the run, and not after the job."""
_FOLDER = "penstock-rehearsal-"
_SENT_NOTHING = msgspec.msgpack.encode({})
"""The counts of a trailer."""
_WITHOUT = ("job.latency.target.ms", "job.host-affinity.enabled", "job.standbytasks.replication.factor")


class Watcher(Protocol):
    """Sees what a rehearsal does, in the thread that does it."""

    def arrived(self, batch: int, packets: Sequence[Packet]) -> None:
        """The messages that come to all tasks of a stage in a batch. Those for the last stage are written."""

    def processed(self, attempt: TaskAttempt, task: TaskInstance) -> None:
        """A task has processed what came to it. Its writes are in the attempt, and not in its stores yet."""


class _RehearsalFleet(InProcessFleet):
    """The tasks that take part in one container, and the others without state in another one."""

    def __init__(self, job: ClaimedJob, restored: Set[int], folder: Path, clock: Clock) -> None:
        tasks = job.settings.tasks
        super().__init__(tasks, 1 if len(restored) == tasks else 2, clock=clock)
        self._job = job
        self._restored = restored
        self._folder = folder

    def _next_assignment(self, *, everything_ready: bool = False) -> Assignment:
        first, *others = self._containers
        return Assignment({task: first if task in self._restored else others[0] for task in range(self._tasks)})

    def given_to(self, container: str, opening: EpochOpening, package: JobPackage) -> tuple[EpochOpening, JobPackage]:
        stores = [store.name for store in self._job.topology.graph.stores if store.side is None]
        if container == next(iter(self._containers)):
            return self._kept(stores, opening, package)
        in_files = [store for store in stores if package.config.store(store).factory == "rocksdb"]
        in_memory = _with(package, in_files, StoreSettings.factory, "memory")
        return replace(opening, markers={}, covered=()), in_memory

    def _kept(
        self, stores: Sequence[str], opening: EpochOpening, package: JobPackage
    ) -> tuple[EpochOpening, JobPackage]:
        """The same, restored from what a run before this one has kept."""
        kept = [
            store for store in stores if all(kept_at(self._folder, store, task).is_dir() for task in self._restored)
        ]
        markers = {
            str(task): {
                **opening.markers.get(str(task), {}),
                _KEPT: {store: str(kept_at(self._folder, store, task)) for store in kept},
            }
            for task in self._restored
        }
        return replace(opening, markers=markers), _with(package, kept, StoreSettings.restore_factories, (_KEPT,))


def _with(package: JobPackage, stores: Sequence[str], key: Key[T], value: T) -> JobPackage:
    """A package with another value of the key of some stores."""
    config = package.config
    for store in stores:
        config = replace(config, resolved=config.store(store).put(key, value).resolved)
    return replace(package, config=config)


class _WatchedRunner(InProcessRunner):
    def __init__(self, job: ClaimedJob, fleet: InProcessFleet, watcher: Watcher, tasks: Set[int]) -> None:
        """`tasks`: those that get messages, and are seen."""
        super().__init__(job, fleet)
        self._watcher = watcher
        self._tasks = tasks
        self._stages = _StayingStages(job.topology, job.settings, job.streams.systems)

    def close(self) -> None:
        self._stages.end()

    def writers(self, stages: OuterStages, epoch: int) -> OutputWriters:
        return _Between(self._job.streams, self._job.writer(epoch))

    def _outer(self) -> OuterStages:
        return self._stages

    def processed(self, attempt: TaskAttempt) -> None:
        if attempt.task in self._tasks:
            self._watcher.processed(attempt, self._fleet.container_of(attempt.task).tasks[attempt.task])

    def _stage(self, epoch: int, batch: Batch, stage: int, packets: list[Packet]) -> list[Packet]:
        self._show(batch, stage, packets)
        return super()._stage(epoch, batch, stage, [own for each in packets if (own := self._received(each, stage))])

    def _received(self, packet: Packet, stage: int) -> Packet | None:
        """The packet as its task gets it: nothing comes to a task without state."""
        if packet.stage != stage or packet.dest in self._tasks or packet.kind == PacketKind.REPORT:
            return packet
        return packet._replace(places=_SENT_NOTHING) if packet.kind == PacketKind.TRAILER else None

    def _sinks(self, epoch: int, batch: Batch, packets: list[Packet]) -> list[Packet]:
        if self._job.topology.sink is not None:
            self._show(batch, self._job.topology.sink, packets)
        return super()._sinks(epoch, batch, packets)

    def _show(self, batch: Batch, stage: int, packets: Sequence[Packet]) -> None:
        own = [each for each in packets if each.stage == stage and each.kind == PacketKind.DATA]
        seen = [each for each in own if each.source_stage == 0 or each.source_task in self._tasks]
        self._watcher.arrived(batch.number, seen)


class _StayingStages(OuterStages):
    """Keeps its readers from batch to batch."""

    def close(self) -> None: ...

    def end(self) -> None:
        super().close()


class _Between(OutputWriters):
    """Writes to durable streams between operators. What leaves the job has been seen: nobody reads it."""

    def __init__(self, streams: JobStreams, identity: WriterIdentity) -> None:
        super().__init__(streams.systems, identity)
        self._between = frozenset(streams.intermediates)

    def append(self, records: OutputRecords) -> Appended:
        found = super().append({ssp: own for ssp, own in records.items() if ssp.system_stream in self._between})
        self.close()
        return found


MakeFeed = Callable[[InProcessDriver, SettableClock], Feed]


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A rehearsal: an application on the state of a job as of a checkpoint, up to positions of its inputs."""

    job: FoundJob
    app: Application
    begin: CheckpointRecord
    until: Positions | None = None
    """None: up to the present ends."""
    until_ms: int | None = None
    """The time of these positions, in epoch milliseconds; None: now."""
    batches: Sequence[ReadUpTo] = ()
    """The batches that the job made of this input, as far as they are known."""
    closing: Closing | None = None
    """The way in which the job was closed behind this input; None: it was not."""
    tasks: Set[int] | None = None
    """The tasks that take over state and process messages; None: all of them."""
    folder: Path | None = None
    """The folder that several runs share, for the state and what is held back; None: each has one that goes with it."""

    @property
    def is_divided(self) -> bool:
        """True if what comes to each task comes from the inputs alone, so that the other tasks may be left out: their
        code runs without state, so it must do nothing but at a message."""
        graph = self.app.graph()
        acts_at_the_end = self.closing is not None and any(op.has_end or op.is_timed for op in graph.operators)
        if acts_at_the_end or self.job.config.task.window_ms > 0:
            return False
        return sum(bool(stage.operators) for stage in plan_topology(graph).container_stages) == 1

    @contextmanager
    def sharing(self) -> Iterator[Rehearsal]:
        """The same, whose runs share a folder and the state of the beginning, which is restored once."""
        if self.folder is not None:
            yield self
            return
        with process_folder(_FOLDER) as folder:
            keep_in(folder)
            yield replace(self, folder=folder)

    @contextmanager
    def opened(
        self,
        name: str,
        watch: Callable[[Topology], Watcher],
        feed: MakeFeed | None = None,
        changed: Callable[[ApplicationGraph], ApplicationGraph] | None = None,
    ) -> Iterator[InProcessDriver]:
        """The driver of a run, which is claimed and has not begun.

        Args:
            name: distinguishes the run from others of the job: letters and digits.
            watch: makes the watcher, from the stages of the application.
            feed: makes the feed, from a driver with the one that a job has; that one, if None.
            changed: the application, with a change before it runs.

        Raises:
            PenstockError: the state cannot be taken over, or the application does not go with it.
        """
        with nullcontext(self.folder) if self.folder else process_folder(_FOLDER) as folder:
            config = self.config(name, folder)
            paths = JobPaths(config.job.name, config.job.id)
            with closing(open_job_root(config.job)) as objects, _in_other_words() as names:
                new = FoundJob(config, paths, objects)
                first = borrow(self.job, new, self.begin)
                names |= {paths.root: self.job.paths.root, str(first.id): str(self.begin.id)}
                graph = self.app.graph()
                _take_tables(self.job, new, graph, self.begin.task_count)
                clock = SettableClock(self._first_ms())
                tasks = frozenset(range(self.begin.task_count) if self.tasks is None else self.tasks)
                driver = InProcessDriver(
                    graph if changed is None else changed(graph),
                    config,
                    objects,
                    {},
                    until_latest=self.until is None,
                    until=self.until,
                    close=self.closing == "end-of-stream",
                    clock=clock,
                    runner=lambda job, fleet: _WatchedRunner(job, fleet, watch(job.topology), tasks),
                    fleet=lambda job: _RehearsalFleet(job, tasks, folder, clock),
                )
                with closing(driver.runner), closing(driver):
                    if feed is not None:
                        driver.loop.parts.feed = feed(driver, clock)
                    yield driver

    def config(self, name: str, folder: Path) -> JobConfig:
        """The configuration of the job, as one that has nothing in common with it but what it reads, and that does not
        back up its state."""
        given = self.job.config.without_resets()
        kept = {
            key: value
            for key, value in given.resolved.values.items()
            if not key.startswith(_OF_THE_JOB) and key not in _WITHOUT and not key.endswith(_OF_A_STORE)
        }
        own = replace(given, resolved=replace(given.resolved, values=kept))
        own = own.of_job(given.job.name, f"{given.job.id}.{name}")
        changes = {
            JobSettings.root: (folder / "jobs").as_uri(),
            JobSettings.logged_store_base_dir: state_in(folder),
            JobSettings.shadow_enabled: True,
            JobSettings.shadow_path: folder / "held",
            JobSettings.retry_max: 0,
            JobSettings.drain_monitor_enabled: False,
            JobSettings.startpoint_enabled: False,
            JobSettings.partial_aggregates_enabled: False,  # watchers see each message
            StoreSettings.all_backup_factories: (_KEPT,),
        }
        for key, value in changes.items():
            own = own.put(key, value)  # type: ignore[arg-type]
        for store in self.app.graph().stores:
            restored = given.store(store.name).restore_factories
            own = replace(own, resolved=own.store(store.name).put(StoreSettings.restore_factories, restored).resolved)
        return own

    def _first_ms(self) -> int:
        """The time at which the run begins: before the first batch of a job there is none."""
        times = (self.begin.batch_time_ms, *(batch.time_ms for batch in self.batches))
        return next((time_ms for time_ms in times if time_ms), self._until_ms())

    def _until_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms() if self.until_ms is None else self.until_ms

    def noted(self, driver: InProcessDriver, clock: SettableClock) -> NotedFeed:
        """A feed that notes the batches."""
        return NotedFeed(driver, clock, self.batches, self._until_ms(), self.closing)


@contextmanager
def _in_other_words() -> Iterator[dict[str, str]]:
    """In an error's message, write other words for some, such as the names of the job and its checkpoint for those of
    the run, which the user does not know."""
    words: dict[str, str] = {}
    try:
        yield words
    except PenstockError as error:
        text = str(error)
        for own, name in words.items():
            text = text.replace(own, name)
        error.args = (text,)
        raise


def _take_tables(job: FoundJob, new: FoundJob, graph: ApplicationGraph, tasks: int) -> None:
    """Copy the present version of each pushed table. Raises NotFoundError if one has none."""
    for spec in graph.side_stores:
        if not isinstance(spec.side, PushedTable):
            continue
        registry = TableRegistry(job.objects, job.paths, spec.name)
        manifest = registry.choose(fingerprint_of(spec, tasks)).version
        if manifest is None:
            raise NotFoundError(f"table `{spec.name}` of job `{job.paths.root}` has no version for the application")
        keys = [registry.file_key(manifest, file) for file in manifest.files]
        for key in (*keys, job.paths.table_version(spec.name, manifest.version)):
            new.objects.put_if_absent(f"{new.paths.root}{key.removeprefix(job.paths.root)}", job.objects.get(key))
