"""Reads a store as of a checkpoint, from outside of the job: it is restored to a scratch folder."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.store_layout import StoreLayout
from penstock.checkpoint.versions.markers import markers_of
from penstock.checkpoint.versions.value import Markers
from penstock.config.model import JobConfig
from penstock.config.settings import StoreSettings
from penstock.errors import NotFoundError
from penstock.host.process_folder import process_folder
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.objects.store import ObjectStore
from penstock.state.backends.base import BackendContext, RestoreProgress
from penstock.state.backends.roots import BackendRoots
from penstock.state.engines.engine import Content, Engine
from penstock.state.engines.open import open_whatever
from penstock.state.restore import RestoredStore, restore_order, restore_store
from penstock.state.stores.expiry import live_view
from penstock.system.base import System
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
