"""Runs an application on the state of a job as of a checkpoint, in this process and in a temporary folder."""

from __future__ import annotations

from collections import deque
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
from penstock.base.wording import listed
from penstock.batch.batch import Batch, TaskSsp
from penstock.batch.portions import NOTHING, BatchRanges, Portion, PortionRead, up_to
from penstock.checkpoint.record import CheckpointRecord, Closing
from penstock.config.key import Key
from penstock.config.model import JobConfig
from penstock.config.settings import JobSettings, StoreSettings
from penstock.driver.feed.boundary import BatchTime, Boundary
from penstock.driver.feed.feed import End, Feed, Next, PlannedBatch, Skip
from penstock.errors import IncompatibleError, NotFoundError, PenstockError
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
from penstock.system.base import Appended, OffsetRange, WriterIdentity
from penstock.tables.manifest import fingerprint_of
from penstock.tables.registry import TableRegistry
from penstock.testing.clock import SettableClock
from penstock.testing.in_process import InProcessDriver
from penstock.testing.in_process_ports import InProcessFleet, InProcessRunner
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


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch that has ended: when it was, and what it read, in the order of tasks and of their portions."""

    planned: PlannedBatch
    ranges: Sequence[tuple[TaskSsp, int, int]]
    """Each from an offset up to another one."""

    @property
    def moment(self) -> BatchTime:
        return self.planned.moment


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
        return super()._stage(epoch, batch, stage, [own for each in packets if (own := self._kept(each, stage))])

    def _kept(self, packet: Packet, stage: int) -> Packet | None:
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


class Forwarding:
    """A feed around another one."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed

    def begin(self) -> None:
        self.feed.begin()

    def next(self, boundary: Boundary) -> Next:
        return self.feed.next(boundary)

    def drain(self, boundary: Boundary, operators: Set[str] | None = None) -> Next:
        return self.feed.drain(boundary, operators)

    def has_lost(self, ranges: object) -> bool:
        return self.feed.has_lost(ranges)  # type: ignore[arg-type]

    def ended(self, took_ms: float, read: Mapping[TaskSsp, PortionRead]) -> None:
        self.feed.ended(took_ms, read)

    def remaining(self, boundary: Boundary) -> int | None:
        return self.feed.remaining(boundary)


class NotedFeed(Forwarding):
    """Makes the batches that the checkpoints name, and others where they name none; and notes them. Time passes as in
    these batches, or evenly, as the messages are read, up to the time of the end."""

    def __init__(
        self,
        driver: InProcessDriver,
        clock: SettableClock,
        batches: Sequence[ReadUpTo],
        until_ms: int,
        closing: Closing | None = None,
    ) -> None:
        """`closing`: how everything fires behind the last message; None: only what is due."""
        super().__init__(driver.loop.parts.feed)
        self._drains = closing == "drained"
        self._closes = int(closing is not None)
        """The last batches of the checkpoints that are those in which the job is closed."""
        self._last: BatchTime | None = None
        self._sources = tuple(op.stream for op in driver.job.topology.graph.sources)
        self._batches = deque(batches)
        self._clock = clock
        self._first_ms, self._until_ms = clock.now_ms(), until_ms
        self._whole: int | None = None
        self._planned: PlannedBatch | None = None
        self.noted: list[ReadBatch] = []

    def next(self, boundary: Boundary) -> Next:
        left = self.feed.remaining(boundary) or 0
        self._whole = left if self._whole is None else self._whole
        share = 1.0 if not self._whole else 1 - left / self._whole
        batch = self._following(boundary)
        wanted_ms = self._first_ms + round((self._until_ms - self._first_ms) * share)
        if batch is not None:
            wanted_ms = batch.time_ms if batch.named else min(wanted_ms, batch.time_ms)
        self._clock.advance(max(0, wanted_ms - self._clock.now_ms()) / 1000)
        found = self.feed.next(boundary)
        if isinstance(found, Skip):
            gone = listed([str(each) for each in found.losses])
            raise IncompatibleError(f"the inputs do not have {gone} any more: begin with a newer checkpoint")
        if isinstance(found, End) and self._drains:
            found = self.feed.drain(boundary)
        ends = isinstance(found, End) or (isinstance(found, PlannedBatch) and found.control != "none")
        if ends and batch is not None and len(self._batches) > self._closes:
            found = self._of_time_alone(boundary, batch)
        elif batch is not None and isinstance(found, PlannedBatch):
            found = self._cut(found, batch, boundary)
        self._planned = found if isinstance(found, PlannedBatch) else None
        return found

    def _of_time_alone(self, boundary: Boundary, batch: ReadUpTo) -> PlannedBatch:
        """A batch that the job has made although nothing was to be read: a period began, or something was due."""
        self._batches.popleft()
        moment = BatchTime(batch.time_ms) if self._last is None else replace(self._last, time_ms=batch.time_ms)
        still = replace(moment, watermarks=replace(moment.watermarks, firing=dict(boundary.watermarks)))
        return PlannedBatch(NOTHING, {at.ssp: offset for at, offset in boundary.positions.items()}, still)

    def _following(self, boundary: Boundary) -> ReadUpTo | None:
        """The next batch of the checkpoints. It may read nothing: then time has passed."""
        while self._batches:
            batch = self._batches[0]
            if any(boundary.positions.get(at, to) < to for at, to in batch.positions.items()):
                return batch
            if batch.named and not batch.positions:
                return batch
            self._batches.popleft()
        return None

    def _cut(self, planned: PlannedBatch, batch: ReadUpTo, boundary: Boundary) -> PlannedBatch:
        """The planned batch, with what the job has read in its own; or at most what it had read by then, if it is not
        known in which batches."""
        if not batch.positions:
            self._batches.popleft()
        if not planned.ranges.portions.keys() & boundary.positions.keys():
            return planned  # something is due first
        at_most = up_to(planned.ranges.portions, batch.positions)
        portions = {at: each for at, each in at_most.items() if each.offsets.start < each.offsets.end}
        if batch.named or not portions:
            portions = _portions(boundary, batch, planned)
        return replace(planned, ranges=BatchRanges.group(portions, self._sources))

    def ended(self, took_ms: float, read: Mapping[TaskSsp, PortionRead]) -> None:
        if (planned := self._planned) is not None:
            self._last = planned.moment
            portions = sorted(planned.ranges.portions.items(), key=lambda each: each[0].task)  # stable: a task's order
            ranges = [(at, portion.offsets.start, read[at].next_offset) for at, portion in portions]
            self.noted.append(ReadBatch(planned, ranges))
        super().ended(took_ms, read)


def _portions(boundary: Boundary, batch: ReadUpTo, planned: PlannedBatch) -> dict[TaskSsp, Portion]:
    """The portions that a batch read: of inputs up to its offsets, and of intermediate streams what is planned."""
    inner = {at: each for at, each in planned.ranges.portions.items() if at not in boundary.positions}
    of_inputs = ((at, first, batch.positions.get(at, first)) for at, first in boundary.positions.items())
    return inner | {
        at: Portion(OffsetRange(at.ssp, first, end), end - first) for at, first, end in of_inputs if first < end
    }


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
        """True if what comes to each task comes from the inputs alone, so that the other tasks may be left out."""
        stages = plan_topology(self.app.graph()).container_stages
        return sum(bool(stage.operators) for stage in stages) == 1

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
