"""The loaded versions of a pushed table on a host, which all its processes share, and views of them.

    table-<version>-<task|all>/   a version, loaded: `db/`, an engine's files, and `complete.json`, written before the
                                  folder gets this name
    making-<token>/               one that a process is loading
    dropped-<token>/              one that is being removed, or was damaged while others read it
    <task|all>.lock               held by the process that loads it, so that others wait for its result

Each user of a folder holds a shared lock on it (`penstock.host.process`).
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import orjson
from msgspec import Struct

from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.entries import Flags
from penstock.base.documents import Count, decode
from penstock.config.settings import StoreSettings
from penstock.errors import CorruptError, RetryableError
from penstock.host.process import HostFolder
from penstock.state.engines.engine import Changes, Engine, EngineFailedError
from penstock.state.engines.memory import ColumnEngine
from penstock.state.engines.open import open_rocksdb
from penstock.state.stores.task_store import SideView

_PIECE = 20_000
"""The number of entries freed before other threads have their turn."""


def open_table(settings: StoreSettings, directory: Path, rows: int, go_on: Callable[[], None]) -> Engine:
    """The read-only engine of a loaded version: RocksDB over its files, or a map or columns in memory, as configured.

    Args:
        rows: how many entries it must have.
        go_on: called now and then; what it raises ends the opening.

    Raises:
        CorruptError: files are damaged, or some are missing.
    """
    engine = open_rocksdb(settings, directory, read_only=True)
    try:
        if (found := engine.count()) != rows:
            raise CorruptError(f"`{directory}` has {found} entries, and not {rows} as its manifest says")
        if settings.factory == "rocksdb":
            return engine
        entries = engine.scan(None, None)
        table = MemoryTable(entries, go_on) if settings.factory == "memory" else column_table(entries, go_on)
    except BaseException:
        engine.close()
        raise
    engine.close()
    return table


def column_table(entries: Iterator[tuple[bytes, bytes]], go_on: Callable[[], None]) -> ColumnEngine:
    """The entries in columns. `go_on` is called now and then, and may raise."""
    table = ColumnEngine()
    while piece := dict(islice(entries, _PIECE)):
        table.load(piece)
        go_on()
    return table


class MemoryTable(Engine):
    """Entries in memory that never change. They are in sorted lists, because no other thread runs while a large map
    grows."""

    def __init__(self, entries: Iterable[tuple[bytes, bytes]], go_on: Callable[[], None] = lambda: None) -> None:
        """`entries` in the order of their keys; `go_on` is called now and then, and may raise."""
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        for number, (key, value) in enumerate(entries):
            self._keys.append(key)
            self._values.append(value)
            if number % _PIECE == 0:
                go_on()

    def get(self, key: bytes) -> bytes | None:
        keys = self._keys
        at = bisect_left(keys, key)
        return self._values[at] if at < len(keys) and keys[at] == key else None

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        keys, values = self._keys, self._values
        first = 0 if start is None else bisect_left(keys, start)
        last = len(keys) if end is None else bisect_left(keys, end)
        return ((keys[at], values[at]) for at in range(first, last))

    def apply(self, changes: Changes) -> None:
        raise AssertionError("a pushed table is only read")

    def copy_to(self, directory: Path) -> None:
        raise AssertionError("a pushed table is not copied")

    def statistics(self) -> dict[str, int]:
        return {"keys": len(self._keys)}

    def close(self) -> None:
        """Free the entries piece by piece: no other thread runs while Python frees a long list."""
        keys, self._keys = self._keys, []
        values, self._values = self._values, []
        while keys:
            del keys[-_PIECE:], values[-_PIECE:]
            time.sleep(0)


class TableView(SideView):
    """One version of a table, for one run of a batch."""

    def __init__(self, engine: Engine, table: str, version: int, on_damage: Callable[[], None]) -> None:
        """`on_damage` is called when the engine fails."""
        self._engine: Engine | None = engine
        self._table = table
        self._version = version
        self._on_damage = on_damage

    @property
    def version(self) -> tuple[int, int]:
        return self._version, 0

    def changed_since(self, version: tuple[int, int]) -> Iterable[bytes] | None:
        return () if version == self.version else None

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._engine.get(key)  # type: ignore[union-attr] # one that was released fails here
        except Exception as error:
            raise self._failed(error) from error

    def get_many(self, keys: ByteArray) -> tuple[ByteArray, Flags]:
        try:
            return self._engine.get_many(keys)  # type: ignore[union-attr] # one that was released fails here
        except Exception as error:
            raise self._failed(error) from error

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        try:
            entries = self._engine.scan(start, end)  # type: ignore[union-attr]
        except Exception as error:
            raise self._failed(error) from error
        return self._watched(entries)

    def _watched(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from entries
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> EngineFailedError:
        if self._engine is None:
            return EngineFailedError(f"a view of table `{self._table}` was read after its batch had ended")
        self._on_damage()
        return EngineFailedError(f"version {self._version} of table `{self._table}` cannot be read: {error}")

    def release(self) -> None:
        self._engine = None


DATABASE = "db"
_COMPLETE = "complete.json"
_LOADED = re.compile(r"table-(\d+)-(\d+|all)")
_OWN = ("table-", "making-", "dropped-")
_LOOK_SECONDS = 0.05
_TRIES = 5


class TableFolders:
    """The folders of one table. Thread-safe. All methods but `clean` raise OSError if the disk refuses."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def take(self, version: int, unit: str, checksum: str) -> HostFolder | None:
        """Use a version that was loaded before; None if there is none.

        Args:
            unit: the task, or `all`.
            checksum: that of the version's manifest. A folder of another one is not used.
        """
        folder = HostFolder.lock(self._loaded(version, unit), shared=True)
        if folder is not None and _checksum_in(folder.path) != checksum:
            folder.release()
            return None
        return folder

    def make(self) -> HostFolder:
        """Make a folder that nobody else looks at."""
        self.base.mkdir(parents=True, exist_ok=True)
        for _ in range(_TRIES):
            path = self.base / f"making-{uuid.uuid4().hex}"
            path.mkdir()
            folder = HostFolder.lock(path, shared=True)
            if folder is not None:  # otherwise somebody took it for a remainder before it was locked
                return folder
        raise RetryableError(f"the folders in `{self.base}` vanish while they are made")

    def publish(self, made: HostFolder, version: int, unit: str, checksum: str) -> HostFolder:
        """Publish a complete folder: from now on `take` finds it. Returns it under its new name, or the one that
        another process has published meanwhile."""
        (made.path / _COMPLETE).write_bytes(orjson.dumps({"format": 1, "checksum": checksum}))
        target = self._loaded(version, unit)
        for _ in range(_TRIES):
            try:
                made.path.rename(target)
            except OSError:
                if not target.exists():
                    raise
            else:
                made.path = target
                return made
            other = self.take(version, unit, checksum)
            if other is not None:
                self.drop(made)
                return other
            if (away := self._move_away(target)) is not None:
                _remove(away)
        raise RetryableError(f"another program keeps replacing `{target}`: find it and stop it")

    def drop(self, folder: HostFolder) -> None:
        """Stop using a folder, and remove it: it is damaged, or was not completed. Never raises."""
        self.set_aside(folder)
        folder.release()
        _remove(folder.path)

    def set_aside(self, folder: HostFolder) -> None:
        """Hide a damaged folder from others. This process may go on reading it. Never raises."""
        with suppress(OSError):
            folder.path = self._move_away(folder.path) or folder.path

    @contextmanager
    def loading(self, unit: str, cancelled: threading.Event) -> Iterator[None]:
        """Let one process of the host at a time load a unit. The others wait, and find the folder afterwards.

        Raises RetryableError once it is cancelled.
        """
        while (turn := HostFolder.lock_beside(self.base / unit)) is None:
            if cancelled.wait(_LOOK_SECONDS):
                raise RetryableError("the loading was cancelled")
        try:
            yield
        finally:
            turn.release()

    def clean(self, keep: Collection[int], newest: int) -> None:
        """Remove unused folders: versions that are neither in `keep` nor among the newest, and the leftovers of dead
        processes. Never raises: the next call tries again."""
        try:
            found = sorted(self.base.iterdir())
        except OSError:
            return
        loaded = {path: int(match[1]) for path in found if (match := _LOADED.fullmatch(path.name))}
        kept = {*keep, *sorted(set(loaded.values()))[-newest:]}
        for path in found:
            if loaded[path] not in kept if path in loaded else path.name.startswith(_OWN):
                _remove(path)

    def _loaded(self, version: int, unit: str) -> Path:
        return self.base / f"table-{version}-{unit}"

    def _move_away(self, path: Path) -> Path | None:
        """Rename a folder, even while others read it, so that nobody takes it any more."""
        dropped = self.base / f"dropped-{uuid.uuid4().hex}"
        try:
            path.rename(dropped)
        except FileNotFoundError:
            return None
        return dropped


def _remove(path: Path) -> None:
    with suppress(OSError):
        if (unused := HostFolder.lock(path)) is not None:
            unused.remove()


class _CompleteMark(Struct):
    """The content of `complete.json`."""

    format: Count
    checksum: str


def _checksum_in(path: Path) -> str | None:
    try:
        return decode(_CompleteMark, (path / _COMPLETE).read_bytes(), f"`{path / _COMPLETE}`").checksum
    except (FileNotFoundError, CorruptError):
        return None
