"""A loaded version of a pushed table, and views of it."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.entries import Flags
from penstock.config.settings import StoreSettings
from penstock.errors import CorruptError
from penstock.state.engines.columns import ColumnEngine
from penstock.state.engines.engine import Engine, EngineFailedError
from penstock.state.engines.open import open_rocksdb
from penstock.state.records import Changes
from penstock.state.stores.view import SideView

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
