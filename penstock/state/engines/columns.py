"""An engine for stores whose rows are read and written by the thousand: everything in memory, in arrays.

An index leads from keys to row numbers, and a heap has the bytes of each row's value. A look-up of many keys is a few
passes over arrays, and touches three places for each key: its slot, its bytes, its row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.arrays.byte_arrays import ByteArray, Heap, Integers, with_room
from penstock.arrays.entries import Entries, Flags, FoundRows
from penstock.arrays.key_index import KeyIndex
from penstock.errors import ConfigError
from penstock.state.engines.engine import Engine
from penstock.state.engines.entries_file import ENTRIES, read_entries, write_entries
from penstock.state.records import Changes

_FEW_DELETED = 1 << 12
"""So many deleted rows are not worth a new index."""


@dataclass(frozen=True, slots=True)
class ColumnLimit:
    """The most memory that a store may take in columns."""

    store: str
    max_bytes: int

    def check(self, taken: int) -> None:
        """Raise ConfigError if it takes more."""
        if taken > self.max_bytes:
            key = f"stores.{self.store}.columns.max.bytes"
            raise ConfigError(
                f"store `{self.store}` is kept in memory, in columns, and takes {taken:,} bytes in one task: more than "
                f"{key}={self.max_bytes}. Set stores.{self.store}.factory=rocksdb, with which it may be larger than "
                "memory; or raise the limit, or run with more tasks. Nothing is lost: the next run continues from the "
                "last checkpoint, with either setting"
            )


class ColumnEngine(Engine):
    """Keys and values in arrays. It has no order: a scan in order sorts the keys first."""

    def __init__(self, path: Path | None = None, limit: ColumnLimit | None = None) -> None:
        """With a path: load the copy in that folder, if there is one. Raises CorruptError, IncompatibleError, and
        ConfigError as `apply`."""
        self._limit = limit
        self._lock = threading.RLock()
        """An attempt that was given up may still be reading."""
        self._clear()
        if path is not None and (path / ENTRIES).exists():
            self.apply(read_entries(path / ENTRIES))

    def _clear(self) -> None:
        self._numbering = object()
        """Changes whenever rows get other numbers."""
        self._index = KeyIndex()
        self._values = Heap()
        self._present: Flags = np.zeros(16, np.bool_)
        self._deleted = 0

    def get(self, key: bytes) -> bytes | None:
        with self._lock:
            row = self._index.find_one(key)
            return self._values.get(row) if row >= 0 and self._present[row] else None

    def get_many(self, keys: ByteArray) -> tuple[ByteArray, Flags]:
        """The value of each key, empty where there is none; and where there is one."""
        with self._lock:
            rows = self._index.find(keys)
            found = rows >= 0
            found &= self._present[rows]
            if found.all():
                return self._values.take(rows).copied(), found
            there = self._values.take(np.where(found, rows, 0)) if len(self._index) else ByteArray.empty(len(keys))
            return ByteArray(there.data, there.starts, np.where(found, there.lengths, 0)).copied(), found

    def find(self, keys: ByteArray) -> FoundRows:
        """The rows of the keys. They stay the same until the engine numbers its rows again. A row may be that of a
        deleted key."""
        with self._lock:
            return FoundRows(self._numbering, self._index.find(keys))

    def at(self, found: FoundRows) -> tuple[ByteArray, Flags]:
        """The value in each row, which is not -1, empty where the key was deleted; and where it was not.

        Raises:
            KeyError: the rows have other numbers by now.
        """
        with self._lock:
            self._check(found)
            return self._values.take(found.rows).copied(), self._present[found.rows]

    def keys_at(self, found: FoundRows) -> ByteArray:
        """The key of each row. Raises KeyError as `at`."""
        with self._lock:
            self._check(found)
            return self._index.keys.take(found.rows).copied()

    def _check(self, found: FoundRows) -> None:
        if found.engine is not self._numbering:
            raise KeyError("the rows of the store have other numbers by now")

    def apply(self, changes: Changes) -> None:
        """As `Engine.apply`. Raises ConfigError if the store takes more memory than it may."""
        self._apply(changes)
        if self._limit is not None:
            self._limit.check(self._index.nbytes + self._values.nbytes)

    def _apply(self, changes: Changes) -> None:
        entries = Entries.of(changes)
        with self._lock:
            if entries.found is not None and entries.found.engine is self._numbering and not entries.deletes:
                rows = entries.found.rows
                known, new = np.flatnonzero(rows >= 0), np.flatnonzero(rows < 0)
                self._replace(rows[known], entries.value_bytes.take(known))
                self._put(entries.key_bytes.take(new), entries.value_bytes.take(new))
                return
            if entries.deletes:
                self._delete(self._index.find(entries.key_bytes.take(np.flatnonzero(~entries.present))))
                there = np.flatnonzero(entries.present)
                self._put(entries.key_bytes.take(there), entries.value_bytes.take(there))
            else:
                self._put(entries.key_bytes, entries.value_bytes)

    def _put(self, keys: ByteArray, values: ByteArray) -> None:
        before = len(self._index)
        rows = self._index.add(keys)
        self._present = with_room(self._present, before, len(self._index) - before)
        is_new = rows >= before
        new = np.flatnonzero(is_new)
        self._values.add(values.take(new))
        if len(new) < len(rows):
            old = np.flatnonzero(~is_new)
            self._replace(rows[old], values.take(old))
        self._present[rows[new]] = True

    def _replace(self, rows: Integers, values: ByteArray) -> None:
        self._values.put(rows, values)
        self._deleted -= len(rows) - int(self._present[rows].sum())
        self._present[rows] = True

    def _delete(self, rows: Integers) -> None:
        there = rows[rows >= 0]
        self._deleted += int(self._present[there].sum())
        self._present[there] = False
        if self._deleted > _FEW_DELETED and 2 * self._deleted > len(self._index):
            kept = self._entries()
            self._clear()
            self._put(kept.key_bytes, kept.value_bytes)

    def _entries(self) -> Entries:
        """All entries, in the order in which their keys came."""
        return self.where(lambda keys: np.ones(len(keys), np.bool_))

    def all(self) -> Entries:
        """All entries as they are now, in no particular order."""
        with self._lock:
            return self._entries()

    def where(self, wanted: Callable[[ByteArray], Flags]) -> Entries:
        """The entries whose keys are wanted, as they are now, in no particular order. `wanted` gets many keys."""
        with self._lock:
            rows = np.flatnonzero(self._present[: len(self._index)])
            rows = rows[wanted(self._index.keys.take(rows))]
            keys, values = self._index.keys.take(rows).copied(), self._values.take(rows).copied()
            return Entries(keys, values, np.ones(len(rows), np.bool_), FoundRows(self._numbering, rows))

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """As `Engine.scan`. The cost is that of the whole store: it is copied and sorted."""
        entries = self.all()
        keys = entries.key_bytes.to_arrow().to_pylist()
        rows = [row for row, key in enumerate(keys) if (start is None or key >= start) and (end is None or key < end)]
        rows.sort(key=keys.__getitem__)
        return ((keys[row], entries.value_bytes[row]) for row in rows)

    def copy_to(self, directory: Path) -> None:
        """Write everything: the cost grows with the state."""
        write_entries(directory, self.all())

    def statistics(self) -> dict[str, int]:
        return {"keys": len(self._index) - self._deleted, "bytes": self._index.nbytes + self._values.nbytes}

    def close(self) -> None:
        with self._lock:
            self._clear()
