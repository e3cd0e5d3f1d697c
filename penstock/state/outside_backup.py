"""Backing up a store that was filled outside of a run.

Every entry goes into a scratch engine of its task, and from there to the backends. The backups of a job's first
checkpoint are made in this way, where the entries are.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.base.retry import Retry, retry
from penstock.checkpoint.record import CheckpointId
from penstock.config.model import JobConfig
from penstock.config.settings import StoreSettings
from penstock.errors import IncompatibleError, PenstockError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.state.backends.base import BackendContext, StoreCopy, TaskBackupManager
from penstock.state.backends.registry import backend_factory
from penstock.state.backends.resources import BackendRoots
from penstock.state.engines.engine import Engine
from penstock.state.engines.open import open_engine
from penstock.system.registry import open_systems

_UPLOAD = Retry(pause_s=0.4, tries=5)
_BASE_POLL_S = 0.2
_MANY = 10**15


class BaseUpload:
    """One task's store, as a base in one backend. Between `run` and `done` its marker may be put into the log."""

    def __init__(self, backend: str, context: BackendContext) -> None:
        self.backend = backend
        self.task = context.task
        (self._store,) = context.stores
        self._manager: TaskBackupManager = backend_factory(backend).backup_manager(context)

    def run(self, before: CheckpointId, checkpoint_id: CheckpointId, copy: StoreCopy) -> str:
        """Back up the copy for a checkpoint that will come after `before`. Returns the marker.

        Raises:
            PenstockError: it failed. No checkpoint names the objects that it wrote.
        """
        manager, store = self._manager, self._store
        manager.init(before, {})
        wanted = manager.wants_copy(store, changed=False, last=False)
        manager.snapshot(checkpoint_id, {store: {}})
        while (marker := self._upload(checkpoint_id, {store: copy} if wanted else {})) is None:
            if not wanted:
                raise PenstockError(
                    f"backend {self.backend} neither asked for the content of store `{store}` nor has a marker for it"
                )
            time.sleep(_BASE_POLL_S)
        return marker

    def _upload(self, checkpoint_id: CheckpointId, copies: dict[str, StoreCopy]) -> str | None:
        return retry(lambda: self._manager.upload(checkpoint_id, copies), _UPLOAD).get(self._store)

    def done(self, checkpoint_id: CheckpointId, marker: str) -> None:
        self._manager.clean_up(checkpoint_id, {self._store: marker})

    def close(self) -> None:
        self._manager.close()


@dataclass(frozen=True, slots=True)
class OutsideBackup:
    """The backups of one checkpoint, which must name a backup of every store of every task. Picklable: other processes
    make these backups while the job is held.

    A second backup of a store and a task, as by a task of Spark that is repeated, is another one: it finds nothing of
    the first, which no checkpoint names.
    """

    config: JobConfig
    paths: JobPaths
    epoch: int
    before: CheckpointId
    checkpoint_id: CheckpointId

    def upload(self, task: int, store: str, copy: StoreCopy) -> dict[str, str]:
        """Back up a copy of a store of a task. Returns its marker in each backend of the store.

        Raises:
            PenstockError: a backend failed. No checkpoint names the objects that it wrote.
        """
        config = self.config
        # Names of objects have the id. Files of RocksDB differ even where their entries do not.
        own_id = replace(self.checkpoint_id, nanos=secrets.randbelow(_MANY))
        with ExitStack() as stack:
            objects = open_job_root(config.job)
            stack.callback(objects.close)
            roots = BackendRoots(config, objects)
            stack.callback(roots.close)
            systems = open_systems(config)
            markers = {}
            for backend in config.store(store).backup_factories:
                own = roots.of(backend)
                context = BackendContext(own, self.paths, task, (store,), self.epoch, config, systems)
                upload = BaseUpload(backend, context)
                stack.callback(upload.close)
                markers[backend] = upload.run(self.before, own_id, copy)
            return markers


_BUFFERS_BYTES = 256 << 20
"""Size of the write buffers of all tasks' engines together."""
_LEAST_BUFFER_BYTES, _MOST_BUFFER_BYTES = 1 << 20, 16 << 20
_CACHE_BYTES = 1 << 20
_PENDING = 1000


class StoreLoad:
    """The content of one store, gathered in a scratch folder, one engine for each task. Used by one thread."""

    def __init__(self, settings: StoreSettings, tasks: int, scratch: Path) -> None:
        buffer = min(max(_BUFFERS_BYTES // tasks, _LEAST_BUFFER_BYTES), _MOST_BUFFER_BYTES)
        small = settings.put(StoreSettings.rocksdb_block_cache_bytes, _CACHE_BYTES)
        self._settings = small.put(StoreSettings.rocksdb_write_buffer_bytes, buffer)
        self._scratch = scratch
        self._engines = [open_engine(self._settings, self._fill(task)) for task in range(tasks)]
        self._pending: list[dict[bytes, bytes]] = [{} for _ in range(tasks)]
        self.entries = [0] * tasks
        """By task."""

    def put(self, task: int, key: bytes, value: bytes) -> None:
        """Add an entry. Raises IncompatibleError if the task has the key already."""
        pending = self._pending[task]
        if key in pending or self._engines[task].get(key) is not None:
            raise IncompatibleError(
                f"two entries become the key {key!r} of store `{self._settings.name}`, and one would be lost. "
                "Nothing was imported"
            )
        pending[key] = value
        self.entries[task] += 1
        if len(pending) >= _PENDING:
            self._flush(task)

    def copies(self) -> list[StoreCopy]:
        """Copies of everything that was put, task by task. Nothing can be put afterwards."""
        for task, engine in enumerate(self._engines):
            self._flush(task)
            engine.copy_to(self._copy(task))
        tasks = len(self._engines)
        self.close()
        return [StoreCopy(self._copy(task), self._opener(task), self._remover(task)) for task in range(tasks)]

    def close(self) -> None:
        """Close the engines. Idempotent."""
        while self._engines:
            self._engines.pop().close()
            shutil.rmtree(self._fill(len(self._engines)), ignore_errors=True)

    def _flush(self, task: int) -> None:
        pending, self._pending[task] = self._pending[task], {}
        if pending:
            self._engines[task].apply(pending)

    def _opener(self, task: int) -> Callable[[], Engine]:
        return lambda: open_engine(self._settings, self._copy(task), read_only=True)

    def _remover(self, task: int) -> Callable[[], None]:
        return lambda: shutil.rmtree(self._copy(task), ignore_errors=True)

    def _fill(self, task: int) -> Path:
        return self._scratch / f"fill-{task}"

    def _copy(self, task: int) -> Path:
        return self._scratch / f"copy-{task}"


@dataclass(frozen=True, slots=True)
class FirstBackup:
    """The inputs of a job's first checkpoint. Picklable."""

    backup: OutsideBackup
    tasks: int
    stores: tuple[str, ...]

    def run(self, task: int, store: str, entries: Iterable[tuple[bytes, bytes]], scratch: Path) -> dict[str, str]:
        """Back up a store of a task. Returns its marker in each backend.

        Args:
            task: the task.
            store: the store.
            entries: all that the store holds, as its engine has them.
            scratch: a folder of this call alone.

        Raises:
            IncompatibleError: there are two entries of one key.
            PenstockError: a backend failed. No checkpoint names the objects that it wrote.
        """
        with closing(StoreLoad(self.backup.config.store(store), 1, scratch)) as load:
            for key, value in entries:
                load.put(0, key, value)
            (copy,) = load.copies()
            return self.backup.upload(task, store, copy)
