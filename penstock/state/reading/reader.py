"""Reads stores as of a checkpoint, from outside of the job: each is restored to a scratch folder.

A version is one store as of one retained checkpoint: its tasks are restored when they are needed, and merged by key.
"""

from __future__ import annotations

import heapq
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.task_values import Markers
from penstock.checkpoint.task_versions import markers_of
from penstock.config.model import JobConfig
from penstock.config.settings import StoreSettings
from penstock.errors import ConfigError, NotFoundError, PenstockError
from penstock.graph.stores import StoreLayout
from penstock.host.process import process_folder
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.objects.store import ObjectStore
from penstock.state.backends.base import BackendContext, RestoreProgress
from penstock.state.backends.resources import BackendRoots
from penstock.state.engines.engine import Content, Engine
from penstock.state.engines.open import open_whatever
from penstock.state.restore import RestoredStore, restore_order, restore_store
from penstock.state.stores.timed_entries import live_view
from penstock.system.base import System
from penstock.system.partitioner import partition_of
from penstock.system.registry import open_systems

_SCRATCH = "penstock-read-"
_BLOCK_CACHE_BYTES = 8 << 20
_WRITE_BUFFER_BYTES = 16 << 20
"""The limit for a task's RocksDB here: all tasks of a store may be open at once, and each is read once."""


class StateReader:
    """Restores stores of a job to scratch. Looks at no local state and disturbs no running job.

    A context manager: the scratch folder is removed at its end.
    """

    def __init__(
        self,
        config: JobConfig,
        paths: JobPaths,
        objects: ObjectStore,
        systems: Mapping[str, System],
        report: Callable[[int], None] = lambda _: None,
        *,
        scratch: Path | None = None,
    ) -> None:
        """`report` is called with the number of bytes that were read. The scratch folder is made in `scratch`, if it is
        given, and removed with it; else it is among the system's temporary files, and removed with this process."""
        self._config = config
        self._roots = BackendRoots(config, objects)
        self._systems = systems
        self._paths = paths
        self._undo = ExitStack()
        self._undo.callback(self._roots.close)
        own: AbstractContextManager[str | Path] = (
            TemporaryDirectory(prefix=_SCRATCH, dir=scratch) if scratch else process_folder(_SCRATCH)
        )
        self._scratch = Path(self._undo.enter_context(own))
        self._folders = count()
        self._progress = RestoreProgress(threading.Event(), report)

    def __enter__(self) -> StateReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @contextmanager
    def open(self, record: CheckpointRecord, store: str, task: int, backend: str | None = None) -> Iterator[Engine]:
        """The engine of `restored`, with the bytes that the backend has: see `seen_entries`."""
        with self.restored(record, store, task, backend) as restored:
            yield restored.engine

    @contextmanager
    def restored(
        self, record: CheckpointRecord, store: str, task: int, backend: str | None = None
    ) -> Iterator[RestoredStore]:
        """One task's part of a store as of a checkpoint, from one backend (by default the first that can). Several may
        be open at once.

        Raises:
            NotFoundError: the checkpoint has no such store.
            CorruptError: it cannot be restored; names the backends that were tried.
        """
        check_store(record, store)
        own = self.markers(record, task)
        settings = self._config.store(store)
        named = (backend,) if backend else restore_order(store, settings.restore_factories, own)
        directory = self._scratch / str(next(self._folders))
        small = _small(settings)
        restored = restore_store(
            lambda name: self._context(name, store, task, record.epoch),
            task,
            store,
            named,
            own,
            directory,
            lambda path: open_whatever(small, path),
            self._progress,
        )
        try:
            yield restored
        finally:
            restored.engine.close()
            shutil.rmtree(directory, ignore_errors=True)

    def _context(self, backend: str, store: str, task: int, epoch: int) -> BackendContext:
        objects = self._roots.of(backend)
        return BackendContext(objects, self._paths, task, (store,), epoch, self._config, self._systems)

    def markers(self, record: CheckpointRecord, task: int) -> Markers:
        """The state markers of one task, by backend and store. Raises CorruptError if they do not decode."""
        return markers_of(record, task, self._config.changelog_partitions(record.stores, task))


def seen_entries(record: CheckpointRecord, store: str, engine: Engine) -> Content:
    """The entries of a task's store as the application has them: with a time to live, without those that were expired
    at the checkpoint's batch time."""
    if not StoreLayout.parse(record.stores[store]).expires:
        return engine
    return live_view(engine, record.batch_time_ms)


def check_store(record: CheckpointRecord, store: str) -> None:
    """Raise NotFoundError, naming all stores, if the checkpoint does not have the store."""
    if store not in record.stores:
        known = ", ".join(f"`{name}`" for name in record.stores) or "none"
        raise NotFoundError(f"checkpoint {record.id} has no store `{store}`; it has: {known}")


def read_store(
    config: JobConfig, store: str, record: CheckpointRecord | None = None, systems: Mapping[str, System] | None = None
) -> Iterator[tuple[int, bytes, bytes]]:
    """(task, key, value) of every entry, by task and key, as of a checkpoint (the last one by default).

    Looks at no local state and disturbs no running job.

    Raises:
        NotFoundError: the job has no checkpoint, or the checkpoint no such store.
    """
    objects = open_job_root(config.job)
    try:
        paths = JobPaths(config.job.name, config.job.id)
        chosen = record or _last(objects, paths)
        with StateReader(config, paths, objects, systems or open_systems(config)) as reader:
            for task in range(chosen.task_count):
                with reader.open(chosen, store, task) as engine:
                    entries = seen_entries(chosen, store, engine).scan(None, None)
                    yield from ((task, key, value) for key, value in entries)
    finally:
        objects.close()


def _small(settings: StoreSettings) -> StoreSettings:
    cache, buffer = StoreSettings.rocksdb_block_cache_bytes, StoreSettings.rocksdb_write_buffer_bytes
    small = settings.put(cache, min(settings.rocksdb_block_cache_bytes, _BLOCK_CACHE_BYTES))
    return small.put(buffer, min(settings.rocksdb_write_buffer_bytes, _WRITE_BUFFER_BYTES))


def _last(objects: ObjectStore, paths: JobPaths) -> CheckpointRecord:
    checkpoints = CheckpointLog(objects, paths).read().checkpoints
    if not checkpoints:
        raise NotFoundError(
            f"job `{paths.root}` has no checkpoint yet: it never started, or its job.root is a different one"
        )
    return checkpoints[-1]


class VersionEntry(NamedTuple):
    """A key, the task that has it, and its value. Ordered by the key's bytes, then by task."""

    key: bytes
    task: int
    value: bytes


class StoreVersion:
    """A store at a checkpoint, as a context manager that closes the restored engines. Entries with a time to live that
    were expired at the checkpoint's batch time are left out.

    It is safe beside a running job, which may let go of the checkpoint at any time: a restored engine is read only
    once the log was seen, afterwards, to retain the checkpoint still. A checkpoint leaves the log's list before
    anything it needs is deleted or compacted, so until then nothing was.
    """

    def __init__(
        self,
        reader: StateReader,
        log: CheckpointLog,
        record: CheckpointRecord,
        store: str,
        backend: str | None = None,
        restored: Callable[[str, str, int], None] = lambda *_: None,
    ) -> None:
        """`restored(store, backend, task)` is called after each restore. Raises NotFoundError if the checkpoint has no
        such store, or no marker of it of the named backend."""
        check_store(record, store)
        self.record = record
        self.store = store
        self._reader = reader
        self._log = log
        self._backend = backend
        self._told = restored
        self._stack = ExitStack()
        self._open: dict[int, RestoredStore] = {}
        self._seen: dict[int, Content] = {}
        self._check_backend()

    def __enter__(self) -> StoreVersion:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def has_content_of(self, other: StoreVersion, task: int) -> bool:
        """True if both have a marker in common, which stands for one content. If entries expire, the visible content
        also depends on the checkpoint."""
        if not self.markers(task).items() & other.markers(task).items():
            return False
        layouts = [StoreLayout.parse(each.record.stores[each.store]) for each in (self, other)]
        same_time = self.record.batch_time_ms == other.record.batch_time_ms
        return not any(layout.expires for layout in layouts) or (same_time and layouts[0] == layouts[1])

    @property
    def tasks(self) -> range:
        return range(self.record.task_count)

    def backend(self, task: int) -> str:
        """The backend that a task was restored from. The task must have been read."""
        return self._open[task].backend

    def markers(self, task: int) -> dict[str, str]:
        """Backend -> marker of the store in one task. Only the named backend, if one was named."""
        found = {
            backend: stores[self.store]
            for backend, stores in self._reader.markers(self.record, task).items()
            if self.store in stores
        }
        return found if self._backend is None else {name: found[name] for name in found if name == self._backend}

    def owner(self, key: bytes) -> int:
        """The task the key belongs to if the store's keys are those that messages are partitioned by."""
        return partition_of(key, self.record.task_count)

    def restore(self, tasks: Iterable[int]) -> None:
        """Restore these tasks, unless they are restored already, so that they can be read.

        Raises:
            ConfigError: there is no such task.
            NotFoundError: the checkpoint is not retained any more.
            CorruptError, RetryableError: a task cannot be restored, though the checkpoint is retained.
        """
        for task in tasks:
            self._restore(task)
        self._check_retained()

    def get(self, key: bytes, task: int | None = None) -> list[VersionEntry]:
        """The named task's entry for the key; without a task, its owner's, or else those of all others. A store that is
        not kept by the partition key may have the key in several tasks. Raises as `restore`."""
        if task is not None:
            return self.lookup(key, [task])
        owner = self.owner(key)
        return self.lookup(key, [owner]) or self.lookup(key, [each for each in self.tasks if each != owner])

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, tasks: Iterable[int] | None = None
    ) -> Iterator[VersionEntry]:
        """The entries with start <= key < end (None: unbounded) of these tasks (None: all), in order. Everything is
        restored before this returns. Raises as `restore`."""
        wanted = list(self.tasks if tasks is None else tasks)
        self.restore(wanted)
        return heapq.merge(*(self._entries(task, start, end) for task in wanted))

    def lookup(self, key: bytes, tasks: Iterable[int]) -> list[VersionEntry]:
        """The entries for the key in these tasks. Raises as `restore`."""
        tasks = list(tasks)
        self.restore(tasks)
        values = ((task, self._seen[task].get(key)) for task in tasks)
        return [VersionEntry(key, task, value) for task, value in values if value is not None]

    def _entries(self, task: int, start: bytes | None, end: bytes | None) -> Iterator[VersionEntry]:
        return (VersionEntry(key, task, value) for key, value in self._seen[task].scan(start, end))

    def _restore(self, task: int) -> None:
        if task in self._open:
            return
        if task not in self.tasks:
            raise ConfigError(f"there is no task {task}: checkpoint {self.record.id} has 0 to {self.tasks.stop - 1}")
        try:
            opened = self._reader.restored(self.record, self.store, task, self._backend)
            self._open[task] = self._stack.enter_context(opened)
        except PenstockError:
            self._check_retained()  # if it is not, that is the reason
            raise
        self._seen[task] = seen_entries(self.record, self.store, self._open[task].engine)
        self._told(self.store, self._open[task].backend, task)

    def _check_retained(self) -> None:
        view = self._log.read("report")
        if all(kept.id != self.record.id for kept in view.restorable):
            now = ", ".join(str(kept.id) for kept in view.restorable) or "none"
            raise NotFoundError(
                f"checkpoint {self.record.id} was retained when it was chosen and no longer is: it left the list while "
                f"it was read. Retained now: {now}"
            )

    def _check_backend(self) -> None:
        if self._backend is None or any(self.markers(task) for task in self.tasks):
            return
        own = (self._reader.markers(self.record, task) for task in self.tasks)
        names = dict.fromkeys(name for each in own for name, stores in each.items() if self.store in stores)
        raise NotFoundError(
            f"checkpoint {self.record.id} has no marker of store `{self.store}` from `{self._backend}`; it has from: "
            f"{', '.join(names) or 'none'}"
        )
