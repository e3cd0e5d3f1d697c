"""Restoring a container's tasks: each store from a local copy or a backend, and backends continued from there.

The open stores of a task can also go back to a checkpoint, when its container leaves the epoch. Without such a mark,
a rewind would restore every task of the job from its backends, however few of them were lost or moved. A store that
goes back is handed to the process's standby copies, as one that is at its checkpoint; the next epoch takes it over
from there, and reads the tail if the log has a later checkpoint by then.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.base.parallel import each
from penstock.base.retry import Clock
from penstock.batch.batch import Due
from penstock.checkpoint.record import CheckpointId
from penstock.container.part import ContainerParts
from penstock.container.shared import EpochResources
from penstock.errors import CorruptError, IncompatibleError, PenstockError, RetryableError
from penstock.runtime.stage.task_instance import TaskInstance
from penstock.state.backends.base import RestoreProgress, TaskBackupManager
from penstock.state.backends.registry import backend_factory
from penstock.state.engines.engine import Engine, EngineFailedError
from penstock.state.engines.open import EngineMark, WriteBehindEngine
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.state.kept import KeptStore, StoreAtCheckpoint, StorePlace
from penstock.state.restore import FailedRestore, RestoredStore, restore_order, restore_store
from penstock.wire.protocol import OpenEpoch

logger = logging.getLogger(__name__)
_APART_S = 5.0
_CHEAP = 5_000
"""A mark copies the changes that are gathered above RocksDB. If they are more than this, one mark is made in
`_APART_S` at most."""
_MARKS_BYTES = 32 << 20
"""The memory of each kind that the marks of a container may take together. It also bounds the time to go back: some
seconds for a container."""
Targets = Callable[[CheckpointId, str, Mapping[str, Mapping[str, str]]], StoreAtCheckpoint]


@dataclass(frozen=True, slots=True)
class StoreAt:
    """A store with exactly the content of a checkpoint. The engine belongs to the caller."""

    engine: Engine
    target: StoreAtCheckpoint


class TaskMarks:
    """The marks of one task's stores in one epoch: that of the last checkpoint, and that of a commit under way."""

    def __init__(self, engines: Mapping[str, Engine], clock: Clock, tasks: int) -> None:
        """`tasks`: how many the container has."""
        self._most_bytes = _MARKS_BYTES // max(1, tasks * len(engines))
        self._engines = {store: each for store, each in engines.items() if isinstance(each, WriteBehindEngine)}
        self._clock = clock
        self._made_at: float | None = None
        self._is_trusted = True
        self._committed: dict[str, tuple[EngineMark, StoreAtCheckpoint]] = {}
        self._under_way: tuple[CheckpointId, dict[str, EngineMark]] | None = None

    def snapshot(self, checkpoint_id: CheckpointId) -> None:
        """Mark the present content: a commit of it begins. If the last marks are too new, no other ones are made: a
        store can go back to the last ones, and read the tail."""
        now = self._clock.monotonic()
        gathered = sum(engine.gathered for engine in self._engines.values())
        if gathered > _CHEAP and self._made_at is not None and now - self._made_at < _APART_S:
            return
        self._made_at = now
        self._forget_commit()
        marks = {store: mark for store, engine in self._engines.items() if (mark := engine.mark(self._most_bytes))}
        self._under_way = checkpoint_id, marks

    def committed(
        self, checkpoint_id: CheckpointId, markers: Mapping[str, Mapping[str, str]], targets: Targets
    ) -> None:
        """The checkpoint is in the log. `markers`: of the task, by backend and store. `targets`: makes a store's target
        from them."""
        if self._under_way is None or self._under_way[0] != checkpoint_id:
            return
        (_, marks), self._under_way = self._under_way, None
        for store, mark in marks.items():
            target = targets(checkpoint_id, store, markers)
            if not target.markers:
                self._engines[store].release(mark)
                continue
            former, self._committed[store] = self._committed.get(store), (mark, target)
            if former is not None:
                self._engines[store].release(former[0])

    def distrust(self) -> None:
        """A copy or an upload has failed, perhaps because a store is damaged: all of them are restored."""
        self._is_trusted = False

    def go_back(self, deadline: float) -> dict[str, StoreAt]:
        """Take every store back that can go to its checkpoint before the deadline. The others are to be closed."""
        found: dict[str, StoreAt] = {}
        if not self._is_trusted:
            return found
        for store, (mark, target) in self._committed.items():
            engine = self._engines[store]
            if engine.has_failed or mark.is_lost:
                continue
            try:
                below = engine.go_back(mark, deadline)
            except (Exception, EngineFailedError) as error:
                logger.warning("store `%s` is restored, because it cannot go back: %s", store, error)
                continue
            found[store] = StoreAt(below, target)
        return found

    def _forget_commit(self) -> None:
        if self._under_way is not None:
            for store, mark in self._under_way[1].items():
                self._engines[store].release(mark)
            self._under_way = None


@dataclass(frozen=True, slots=True)
class RestoredTask:
    """A task with its stores, the backends that back them up, and what the stores can go back to."""

    instance: TaskInstance
    backups: Mapping[str, tuple[TaskBackupManager, frozenset[str]]]
    marks: TaskMarks
    in_place: bool
    """True if no store had to be brought here."""

    def give_up(self, resources: EpochResources, deadline: float) -> None:
        """Release the task: the epoch is not entered."""
        for name, (manager, _) in self.backups.items():
            try:
                manager.close()
            except Exception:
                logger.exception("closing backend %s of task %d failed", name, self.instance.task)
        self.leave(resources, deadline, keep=True)

    def leave(self, resources: EpochResources, deadline: float, *, keep: bool) -> None:
        """Close the task and remove the working copies of its stores, which are never read again. With `keep`, those
        that go back to the last checkpoint before the deadline (monotonic) stay open for the next epoch of this
        process."""
        is_whole = self.instance.fence()
        found = self.marks.go_back(deadline) if keep and is_whole else {}
        self.instance.close(besides=found)
        for store in resources.stores:
            if store in found:
                directory = resources.folders.leave(store, self.instance.task)
                copy = KeptStore.kept(store, found[store].target, directory, found[store].engine)
                resources.kept_stores.keep(StorePlace(self.instance.task, store), copy)
            else:
                resources.folders.remove_live(store, self.instance.task)


@dataclass(frozen=True, slots=True)
class _OpenStore:
    """An open store, and the backends that could not restore it. `was_here`: the task had it open in this process."""

    engine: Engine
    failed: tuple[FailedRestore, ...] = ()
    was_here: bool = False


class Restorer:
    """Restores the tasks of one container, once."""

    def __init__(self, resources: EpochResources, request: OpenEpoch, wings: ContainerParts) -> None:
        self._resources = resources
        self._wings = wings
        self._config = resources.package.config
        self._folders = resources.folders
        self._request = request
        self._checkpoint_id = None if request.checkpoint_id is None else CheckpointId.parse(request.checkpoint_id)
        self.notes: list[str] = []
        self.next_due: dict[int, dict[str, Due]] = {}

    def restore(self, cancelled: threading.Event, report: Callable[[int], None]) -> dict[int, RestoredTask]:
        """Open and fill every store of the tasks, in parallel. The first error is raised once all have stopped."""
        progress = RestoreProgress(cancelled, report, self.notes.append)
        restored: dict[int, RestoredTask] = {}

        def one(task: int) -> None:
            restored[task] = self._restore_task(task, progress)
            self.next_due[task] = restored[task].instance.next_due()

        try:
            with self._resources.pool("restore") as pool:
                each(pool, one, self._request.tasks, on_error=cancelled.set)
        except BaseException:
            self._resources.leaving.set()
            deadline = self._resources.time_to_go_back()
            for task in restored.values():
                task.give_up(self._resources, deadline)
            self._folders.remove_all_live(set(self._request.tasks) - restored.keys())
            raise
        return restored

    def _restore_task(self, task: int, progress: RestoreProgress) -> RestoredTask:
        engines: dict[str, Engine] = {}
        try:
            return self._fill(task, engines, progress)
        except BaseException:
            for engine in engines.values():
                engine.close()
            raise

    def _fill(self, task: int, engines: dict[str, Engine], progress: RestoreProgress) -> RestoredTask:
        """Open the stores, noting their engines in `engines`, and what works with them."""
        markers = self._request.markers.get(str(task), {})
        failed: set[tuple[str, str]] = set()
        kept = 0
        for store in self._resources.stores:
            found = self._open_store(task, store, markers, progress)
            engines[store] = found.engine
            failed.update((attempt.backend, store) for attempt in found.failed)
            kept += found.was_here
            self._resources.metrics.of_task(task).new_counter(f"store.{store}", "kept").inc(int(found.was_here))
        # What could not be restored from cannot be continued from: that backend begins with a base.
        usable = {
            name: {store: marker for store, marker in own.items() if (name, store) not in failed}
            for name, own in markers.items()
        }
        behind = {store: self._behind(store, engine) for store, engine in engines.items()}
        marks = TaskMarks(behind, self._resources.clock, self._resources.tasks)
        # A store that a backend could not restore is marked by the next commit: then that backend begins again.
        if self._checkpoint_id is not None and not failed and not self._resources.found_damage:
            covered = {name: _only(own, self._request.covered) for name, own in markers.items()}
            marks.snapshot(self._checkpoint_id)
            marks.committed(self._checkpoint_id, covered, self._resources.target)
        package = self._resources.package
        metrics, last_ended = self._resources.metrics.of_task(task), self._request.last_ended
        output = self._wings.kept_output(task)
        backups = self._open_backups(task, usable)
        instance = TaskInstance(
            task, package.topology, package.settings, behind, last_ended, metrics, self._wings, output
        )
        return RestoredTask(instance, backups, marks, in_place=kept == len(engines) > 0)

    def _behind(self, store: str, engine: Engine) -> Engine:
        """The engine behind a write-behind layer if it needs one: writing a batch to RocksDB takes longer than an End
        may wait, a map in memory is written at once."""
        if not isinstance(engine, RocksDbEngine):
            return engine
        gather = self._config.store(store).rocksdb_write_buffer_bytes
        return WriteBehindEngine(engine, self._resources.writers, gather)

    def _open_store(
        self, task: int, store: str, markers: Mapping[str, Mapping[str, str]], progress: RestoreProgress
    ) -> _OpenStore:
        place = StorePlace(task, store)
        if store not in self._request.covered or self._checkpoint_id is None:
            self._resources.kept_stores.give_up(place)
            self._folders.copies(store, task).keep_only(None)
            live = self._folders.live(store, task)
            shutil.rmtree(live, ignore_errors=True)
            return _OpenStore(self._folders.open(store, live))
        wanted = self._resources.target(self._checkpoint_id, store, markers)
        taken = self._take_over(place, wanted, progress)
        self._resources.kept_stores.give_up(place)
        live = self._folders.live(store, task)
        if taken is not None:
            return taken
        shutil.rmtree(live, ignore_errors=True)
        copied = self._open_copy(store, task, wanted, live)
        if copied is not None:
            return _OpenStore(copied)
        restored = restore_store(
            lambda name: self._resources.backend_context(name, task, (store,)),
            task,
            store,
            restore_order(store, self._config.store(store).restore_factories, markers),
            markers,
            live,
            lambda directory: self._folders.open_restored(store, directory),
            progress,
        )
        self.notes.extend(_fallbacks(store, task, self._checkpoint_id, restored))
        return _OpenStore(restored.engine, restored.failed)

    def _take_over(self, place: StorePlace, wanted: StoreAtCheckpoint, progress: RestoreProgress) -> _OpenStore | None:
        """The store that this process has, as the task's before or as its standby, brought to the checkpoint if it is
        behind."""
        task, store = place.task, place.store
        if self._resources.kept_stores.checkpoint_of(place) is None:
            return None
        metrics = self._resources.metrics.of_task(task)
        restored_bytes = metrics.new_counter("standby", "bytes-restored")

        def report(size_bytes: int) -> None:
            restored_bytes.inc(size_bytes)
            progress.report(size_bytes)

        try:
            taken = self._resources.kept_stores.take(
                place,
                wanted,
                lambda name: self._resources.backend_context(name, task, (store,)),
                replace(progress, report=report),
            )
        except RetryableError as error:
            if progress.cancelled.is_set():
                raise
            logger.warning("the open copy of %s is not used: %s", place, error)
            return None
        if taken is None:
            return None
        self._folders.adopt(store, task, taken.directory)
        if taken.was_working:
            taken.engine.measure_anew()
        else:
            metrics.new_counter("standby", "takeovers").inc()
        return _OpenStore(taken.engine, was_here=taken.was_working)

    def _open_copy(self, store: str, task: int, wanted: StoreAtCheckpoint, live: Path) -> Engine | None:
        """The store over the copy on this host, if there is one of exactly this checkpoint that can be used."""
        if not self._config.job.keeps_copies:
            return None
        try:
            if not self._folders.copies(store, task).take(wanted.checkpoint_id, wanted.markers, live):
                return None
            return self._folders.open(store, live)
        except (CorruptError, IncompatibleError, RetryableError) as error:
            logger.warning("the local copy is not used: %s", error)
        except OSError as error:
            logger.warning("the local copy of store `%s` of task %d is not used: %s", store, task, error)
        shutil.rmtree(live, ignore_errors=True)
        return None

    def _open_backups(
        self, task: int, markers: Mapping[str, Mapping[str, str]]
    ) -> dict[str, tuple[TaskBackupManager, frozenset[str]]]:
        stores_of: dict[str, list[str]] = {}
        for store in self._resources.stores:
            for name in self._config.store(store).backup_factories:
                stores_of.setdefault(name, []).append(store)
        for store, name in self._wings.backends_of_copied(task).items():
            stores_of.setdefault(name, []).append(store)
            self._folders.live(store, task)  # removes what an earlier epoch was about to upload
        opened: dict[str, tuple[TaskBackupManager, frozenset[str]]] = {}
        try:
            for name, stores in stores_of.items():
                context = self._resources.backend_context(name, task, tuple(stores))
                manager = backend_factory(name).backup_manager(context)
                opened[name] = (manager, frozenset(stores))
                own = {store: marker for store, marker in markers.get(name, {}).items() if store in stores}
                with context.metrics.new_timer(f"backend.{name}", "init-ns").time():
                    manager.init(self._checkpoint_id, own)
                if self._checkpoint_id is not None:
                    _clean_up(manager, self._checkpoint_id, own, f"backend {name} of task {task}")
        except BaseException:
            for manager, _ in opened.values():
                manager.close()
            raise
        return opened


def _only(stores: Mapping[str, str], wanted: Collection[str]) -> dict[str, str]:
    return {store: marker for store, marker in stores.items() if store in wanted}


def _fallbacks(store: str, task: int, checkpoint_id: CheckpointId, restored: RestoredStore) -> list[str]:
    notes = [f"{tried}; {restored.backend} was used instead" for tried in restored.failed]
    if restored.without_marker:
        notes.append(
            f"store `{store}` of task {task} could not be restored from {', '.join(restored.without_marker)}: "
            f"checkpoint {checkpoint_id} has no marker of it from there; {restored.backend} was used instead"
        )
    return notes


def _clean_up(manager: TaskBackupManager, checkpoint_id: CheckpointId, markers: Mapping[str, str], whose: str) -> None:
    """Clean up after `init`. A failure here costs space, no state: the next commit does it again."""
    try:
        manager.clean_up(checkpoint_id, markers)
    except PenstockError as error:
        logger.warning("cleaning up in %s failed; the next commit tries again: %s", whose, error)
