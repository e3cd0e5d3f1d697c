"""Filling a store from outside: every entry goes into a scratch engine of its task, and from there to the backends.

The backups of a job's first checkpoint are made in this way, where the entries are.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from penstock.config.settings import StoreSettings
from penstock.errors import IncompatibleError
from penstock.state.backends.base import StoreCopy
from penstock.state.engines.engine import Engine
from penstock.state.engines.open import open_engine
from penstock.state.outside_backup import OutsideBackup

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
