"""A store whose keys are read and written by the thousand: the bytes of many keys and values at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.entries import Entries, Flags, FoundRows
from penstock.graph.stores import StoreSpec
from penstock.state.engines.engine import Changes, Content, Engine
from penstock.state.engines.memory import ColumnEngine
from penstock.state.engines.overlay import Overlay
from penstock.state.stores.serdes import SerdeStore
from penstock.state.stores.task_store import L

_AT_ONCE = 1 << 16


class ColumnOverlay(Overlay):
    """An overlay whose changes are in columns, until somebody writes or looks at a single one."""

    def __init__(self, engine: Content) -> None:
        self._block: Entries | None = None
        self._changes: dict[bytes, bytes | None] = {}
        super().__init__(engine)

    @property
    def changes(self) -> dict[bytes, bytes | None]:
        if self._block is not None:
            block, self._block = self._block, None
            self._changes.update(block)
        return self._changes

    @changes.setter
    def changes(self, changes: dict[bytes, bytes | None]) -> None:
        self._changes = changes

    @property
    def net(self) -> Changes:
        return self._changes if self._block is None else self._block

    def put_many(self, entries: Entries) -> None:
        """Write many keys; all of them are different."""
        if self._changes or self._order is not None:
            for key, value in entries.items():
                self._changes[key] = value
        else:
            self._block = entries if self._block is None else Entries.last_of((self._block, entries))

    def take(self) -> Changes:
        return super().take() if self._block is None else self._block


class ColumnTaskStore(SerdeStore):
    """A store of bytes that can be read and written by column. Its values are not cached: the engine has them in
    memory, or RocksDB's own cache has."""

    def __init__(self, spec: StoreSpec, engine: Content) -> None:
        super().__init__(spec, engine, cache_entries=1)
        self._overlay: ColumnOverlay

    def find(self, kind: type[L]) -> L | None:
        return self if isinstance(self, kind) else None

    def _new_overlay(self) -> Overlay:
        return ColumnOverlay(self._engine)

    def _cacheable(self) -> Changes:
        self._cache.forget(None)
        return {}

    def get(self, key: Any, default: Any = None) -> Any:
        self._changes = self._overlay.changes
        return super().get(key, default)

    def put(self, key: Any, value: Any) -> None:
        self._changes = self._overlay.changes
        self._cache.forget(None)
        super().put(key, value)

    def get_many(self, keys: ByteArray) -> tuple[ByteArray, Flags]:
        """The value of each key, empty where there is none; and where there is one."""
        self._gets += len(keys)
        try:
            if isinstance(self._engine, Engine) and not self._overlay.net:
                self._engine_gets += len(keys)
                return self._engine.get_many(keys)
            return self._overlay.get_many(keys)
        except BaseException as error:
            raise self._engine_failed(error) from error

    def find_rows(self, keys: ByteArray) -> FoundRows | None:
        """Where the engine has the keys; None if it has no rows, or they are not all that is known."""
        if not isinstance(self._engine, ColumnEngine) or self._overlay.net:
            return None
        self._gets += len(keys)
        try:
            return self._engine.find(keys)
        except BaseException as error:
            raise self._engine_failed(error) from error

    def at(self, found: FoundRows) -> tuple[ByteArray, Flags]:
        """The value in each of these rows, empty where the key was deleted; and where it was not."""
        self._engine_gets += len(found.rows)
        try:
            return self._columns().at(found)
        except BaseException as error:
            raise self._engine_failed(error) from error

    def keys_at(self, found: FoundRows) -> ByteArray:
        """The key of each of these rows."""
        try:
            return self._columns().keys_at(found)
        except BaseException as error:
            raise self._engine_failed(error) from error

    def _columns(self) -> ColumnEngine:
        if not isinstance(self._engine, ColumnEngine):
            raise TypeError(f"store `{self.name}` is not kept in columns")
        return self._engine

    def put_many(self, entries: Entries) -> None:
        """Write many keys; all of them are different."""
        self._cache.forget(None)
        self._overlay.put_many(entries)
        self._changes = self._overlay._changes  # noqa: SLF001 - the dict of rows, which stays empty beside a block

    def where(self, wanted: Callable[[ByteArray], Flags]) -> Entries:
        """The entries whose keys are wanted, as they are now, in no particular order. `wanted` gets many keys."""
        if not isinstance(self._engine, ColumnEngine) or self._overlay.net:
            blocks = [*self.blocks(_AT_ONCE)]
            parts = [block.take(np.flatnonzero(wanted(block.key_bytes))) for block in blocks]
            return Entries.last_of(parts) if parts else Entries.of({})
        try:
            return self._engine.where(wanted)
        except BaseException as error:
            raise self._engine_failed(error) from error

    def blocks(self, rows: int) -> Iterator[Entries]:
        """All entries as they are now, in blocks."""
        try:
            if isinstance(self._engine, ColumnEngine) and not self._overlay.net:
                yield from self._engine.all().blocks(rows)
                return
            found = self._overlay.scan(None, None)
            while part := _some(found, rows):
                yield Entries.of(part)
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                raise
            raise self._engine_failed(error) from error


def _some(entries: Iterator[tuple[bytes, bytes]], rows: int) -> dict[bytes, bytes | None]:
    part: dict[bytes, bytes | None] = {}
    for key, value in entries:
        part[key] = value
        if len(part) >= rows:
            break
    return part
