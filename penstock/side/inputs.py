"""The side inputs of a container in one epoch: one thread fills the stores, and attempts read views of them.

Their metrics are made here as well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from penstock.batch.batch import Batch
from penstock.container.part import Answers, ContainerPart, CopiedStore, EpochContext
from penstock.errors import ContainerLostError
from penstock.graph.keys import found_by_hash
from penstock.graph.stores import SideInputs
from penstock.metrics.snapshot import CounterValue, GaugeValue, MetricId, Snapshot, TimerValue, Value
from penstock.side.copies import SideBackups, SideSource, SideStandbys, entries_for
from penstock.side.engine import SideEngine
from penstock.side.entries import SideEntries, SidePart
from penstock.side.filler import FillSettings, SideFiller
from penstock.side.folders import OpenedSide, SideFolders
from penstock.side.group import SideGroup, SideGroupContext
from penstock.side.replica import SideHomes, SideSources, discard, groups_of, parts_of, streams_of
from penstock.side.start import BACKUP, backed_up_side_stores
from penstock.side.wing import BOOTSTRAP, SIDE_WING, Bootstrap, BootstrapState, SideFailure, SideState
from penstock.state.stores.task_store import SideView

LAG = "side-inputs-lag"
"""Messages that a store does not have yet. Each partition has another gauge, whose name ends with the partition."""
CATCHING_UP = "side-inputs-catching-up"
FAILING = "side-inputs-failing"


def side_metrics(filler: SideFiller, container: str) -> Snapshot:
    """The metrics of this moment. Those of a store that all tasks share are the container's, others are the task's."""
    found: dict[MetricId, Value] = {}
    troubles = filler.troubles()
    for group in filler.groups:
        lags = group.lag()
        for part in group.parts:
            source = f"container {container}" if part.task is None else f"Partition {part.task}"
            for name, value in _of_part(filler, group, part):
                found[MetricId(source, f"store.{part.spec.name}", name)] = value
            lag = lags.get(part, {})
            by_name = {f"{LAG}-{ssp}": behind for ssp, behind in lag.items()}
            gauges = {**by_name, LAG: sum(lag.values()), FAILING: int(group in troubles)}
            gauges[CATCHING_UP] = int(not filler.caught_up.is_set())
            for name, number in gauges.items():
                found[MetricId(source, f"store.{part.spec.name}", name)] = GaugeValue(number)
    return Snapshot(found)


def _of_part(filler: SideFiller, group: SideGroup, part: SidePart) -> Iterator[tuple[str, Value]]:
    counts = group.counts[part]
    yield "side-inputs-messages", CounterValue(counts.messages)
    yield "side-inputs-flushes", CounterValue(counts.flushes)
    yield "side-inputs-rebuilds", CounterValue(counts.rebuilds)
    yield "side-inputs-failures", CounterValue(filler.failures[group])
    if filler.bootstrap_s is not None:
        took_ns = int(filler.bootstrap_s * 1e9)
        yield "side-inputs-bootstrap-ns", TimerValue(1, took_ns, took_ns)


logger = logging.getLogger(__name__)
_PROGRESS_SECONDS = 0.2


@dataclass(slots=True)
class _HeldViews:
    """One task's views in one run of a batch."""

    batch: int
    run: int
    views: Mapping[str, SideView]
    engines: frozenset[SideEngine]


class SideInputService(ContainerPart):
    """Fills the stores of a container's tasks from their side inputs, and gives attempts views of them.

    One lock is held while a piece of a stream is written to all stores that it fills, and while the views of a task
    are taken. So the views of a task are of one moment.
    """

    name = "side inputs"
    backup_backend = BACKUP

    def __init__(self, epoch: EpochContext) -> None:
        super().__init__(epoch)
        resources, request = epoch.resources, epoch.request
        self._resources = resources
        package = resources.package
        config = package.config
        self._tasks = tuple(request.tasks)
        backed_up = backed_up_side_stores(package.topology.graph, config)
        self._homes = SideHomes(
            config,
            SideFolders(resources.folders.base, resources.epoch, resources.container),
            package.of_start.get(SIDE_WING.name, {}),
            SideBackups(resources, request, backed_up).fill,
        )
        self._copied = {
            task: {store: SideSource(partial(self.engine, store, task)) for store in backed_up} for task in self._tasks
        }
        stores = package.topology.graph.side_stores
        self._all_specs = tuple(spec for spec in stores if isinstance(spec.side, SideInputs))
        """The stores of the whole job. A container without tasks fills none of them."""
        self._specs = self._all_specs if self._tasks else ()
        self.standbys = SideStandbys(resources, self._homes, self._all_specs, request.standbys, shared=not self._tasks)
        self._lock = threading.Lock()
        self._held: dict[int, _HeldViews] = {}
        self._retired: list[OpenedSide] = []
        """Replaced stores, which may still have open views."""
        self._stopping = threading.Event()
        self._sources = SideSources(package.systems)
        settings = FillSettings(
            config.side_inputs.bootstrap_timeout_ms, config.side_inputs.on_error, config.task.commit_ms
        )
        self.filler = SideFiller(self._groups, settings, self._stopping)
        self._thread: threading.Thread | None = None

    # As a service.

    def start(self) -> None:
        # All that the job has are kept: a container that fills none would remove those of others on the host.
        self._homes.remove_others(self._all_specs, self._resources.package.settings.tasks)
        if self._specs:
            name = f"side-inputs-{self._resources.epoch}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def start_run(self, batch: Batch) -> None:
        self.standbys.begin()

    def stop(self) -> None:
        self._stopping.set()
        self.filler.stop()
        self.standbys.stop()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            held, self._held = self._held, {}
        for each in held.values():
            _release(each)
        self.filler.close()
        self._close_retired()

    def status(self) -> str:
        if self._thread is None or not self._thread.is_alive():
            return ""
        return "" if self.filler.caught_up.is_set() else "catching up"

    def _run(self) -> None:
        try:
            self.filler.run()
        finally:
            self._sources.close()

    # As a part of commits, and of moves of tasks.

    def copied(self, task: int) -> Mapping[str, CopiedStore]:
        return self._copied[task]

    def snapshot(self) -> None:
        self.standbys.begin()

    def moves_wait(self) -> str:
        return "" if self.standbys.is_ready else "filling side stores"

    # As the stores that attempts read.

    def views(self, task: int, batch: Batch) -> Mapping[str, SideView]:
        """See `SideStores`. Raises ContainerLostError if the stores are not caught up yet, or are being closed."""
        if not self._specs:
            return {}
        with self._lock:
            held = self._held.get(task)
            if held is not None and (held.batch, held.run) == (batch.number, batch.run):
                return held.views
            if held is not None and (held.batch, held.run) > (batch.number, batch.run):
                raise ContainerLostError(f"run {held.run} of batch {held.batch} of task {task} has overtaken this one")
            if not self.filler.caught_up.is_set() or self._stopping.is_set():
                raise ContainerLostError(f"the side inputs of task {task} are not caught up in this container")
            engines = self._engines(task)
            taken = {store: engine.view() for store, engine in engines.items()}
            self._held[task] = _HeldViews(batch.number, batch.run, taken, frozenset(engines.values()))
        if held is not None:
            _release(held)
        return taken

    def release(self, task: int, batch: int) -> None:
        with self._lock:
            held = self._held.get(task)
            if held is None or held.batch > batch:
                return
            del self._held[task]
        _release(held)
        if self._retired:
            self._close_retired()

    def engine(self, store: str, task: int) -> SideEngine:
        """The newest content of a store in the view of a task. For reading, once it is caught up."""
        with self._lock:
            return self._engines(task)[store]

    # As what the driver asks for.

    def answers(self) -> Mapping[str, Answers]:
        return {BOOTSTRAP.name: self._bootstrap}

    def state(self) -> SideState | None:
        state = SideState(self.failure, self.troubles)
        return None if state == SideState() else state

    def _bootstrap(self, request: Bootstrap) -> Iterator[BootstrapState]:
        """Answer with the progress of the side inputs until they have caught up or failed."""
        ended = False
        while not ended:
            ended = self.await_caught_up(_PROGRESS_SECONDS)
            yield BootstrapState(*self.progress(), self.failure)

    def await_caught_up(self, timeout_s: float) -> bool:
        """Wait until everything is caught up, or has failed. Returns False if the time was too short."""
        return not self._specs or self.filler.await_caught_up(timeout_s)

    def catch_up(self, timeout_s: float) -> bool:
        """Wait until all messages that are in the streams now are written. Returns False if the time was too short."""
        return not self._specs or self.filler.catch_up(timeout_s)

    def progress(self) -> tuple[dict[str, int], dict[str, int]]:
        """Store → messages read since the start, and store → messages to read until it is caught up."""
        done: dict[str, int] = {}
        total: dict[str, int] = {}
        for group in self.filler.groups:
            for part, (read, wanted) in group.progress().items():
                done[part.spec.name] = done.get(part.spec.name, 0) + read
                total[part.spec.name] = total.get(part.spec.name, 0) + wanted
        return done, total

    @property
    def open_views(self) -> int:
        """The number of open views: 0 between two batches."""
        with self._lock:
            return sum(len(held.views) for held in self._held.values())

    @property
    def troubles(self) -> tuple[str, ...]:
        """The reasons why stores are not filled now. The container keeps trying; the stores keep their content
        meanwhile."""
        return tuple(self.filler.troubles().values())

    @property
    def failure(self) -> SideFailure | None:
        """The reason why the stores are no longer filled, which the run fails with; None if they are."""
        return self.filler.failure

    def _engines(self, task: int) -> dict[str, SideEngine]:
        """Store → its engine. Called under the lock."""
        return {
            part.spec.name: replica.engine
            for group in self.filler.groups
            for part, replica in group.replicas.items()
            if part.task is None or part.task == task
        }

    def _close_retired(self) -> None:
        with self._lock:
            used = {engine for held in self._held.values() for engine in held.engines}
            done = [opened for opened in self._retired if opened.engine not in used]
            self._retired[:] = [opened for opened in self._retired if opened.engine in used]
        for opened in done:
            try:
                discard(opened)
            except Exception as error:  # it is not read again
                logger.warning("a side store that was replaced was not closed cleanly: %s", error)

    def metrics(self) -> Snapshot:
        return side_metrics(self.filler, self._resources.container)

    # Filling.

    def _groups(self) -> list[SideGroup]:
        partitions = {stream: len(self._sources.ends(stream)) for stream in streams_of(self._specs)}
        around = SideGroupContext(
            sources=self._sources,
            lock=self._lock,
            stop=self._stopping,
            homes=self._homes,
            entries=self._entries,
            retire=self._retired.append,
        )
        package = self._resources.package
        by_hash = found_by_hash(package.topology.graph)
        parts = parts_of(self._specs, self._tasks, partitions, package.settings.tasks, by_hash)
        return [SideGroup(group, partitions, around) for group in groups_of(parts)]

    def _entries(self, part: SidePart, engine: SideEngine) -> SideEntries:
        task = min(self._tasks) if part.task is None else part.task
        metrics = self._resources.metrics.of_task(task)
        return entries_for(self._resources, part, engine, metrics, self._stopping)


def _release(held: _HeldViews) -> None:
    for view in held.views.values():
        view.release()
