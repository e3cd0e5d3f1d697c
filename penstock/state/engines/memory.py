"""Engines that keep everything in memory.

One is a sorted map. The other one is for stores whose rows are read and written by the thousand, and is in arrays. An
index leads from keys to row numbers, and a heap has the bytes of each row's value. A look-up of many keys is a few
passes over arrays, and touches three places for each key: its slot, its bytes, its row.

Their file is a copy of all entries:

magic       8 bytes   "PSTMEM" and the format, 2
size        8 bytes   of the records, big-endian
records     zstd      as in `penstock.state.engines.engine`
checksum    32 bytes  SHA-256 of everything before
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from sortedcontainers import SortedDict

from penstock.arrays.byte_arrays import ByteArray, Heap, Integers, with_room
from penstock.arrays.entries import Entries, Flags, FoundRows, KeyIndex
from penstock.base.documents import unread_format
from penstock.base.files import explained
from penstock.errors import ConfigError, CorruptError
from penstock.state.engines.engine import (
    Changes,
    Engine,
    EngineSnapshot,
    compress,
    decode_records,
    decompress,
    encode_records,
    released,
)

ENTRIES = "entries.zst"
_NAME = b"PSTMEM"
_FORMAT = 2
_MAGIC = _NAME + _FORMAT.to_bytes(2, "big")
_SIZE_BYTES = 8
_CHECKSUM_BYTES = 32


def write_entries(directory: Path, entries: Changes) -> None:
    """Make the directory, which must not exist, with the file in it."""
    directory.mkdir(parents=True)
    records = encode_records(entries)
    start, body = _MAGIC + len(records).to_bytes(_SIZE_BYTES, "big"), compress(records)
    checksum = hashlib.sha256(start)
    checksum.update(body)
    (directory / ENTRIES).write_bytes(b"".join((start, body, checksum.digest())))


def read_entries(path: Path) -> dict[bytes, bytes | None]:
    """Raises CorruptError, IncompatibleError."""
    with explained(f"the copy `{path}` could not be read", "job.logged.store.base.dir"):
        data = path.read_bytes()
    what = f"the copy `{path}`"
    body = _checked(data, what)[len(_MAGIC) :]
    size = int.from_bytes(body[:_SIZE_BYTES], "big")
    return decode_records(decompress(body[_SIZE_BYTES:], size, what), str(path))


def _checked(data: bytes, what: str) -> bytes:
    """All before the checksum. Raises CorruptError, and IncompatibleError for another format."""
    written = int.from_bytes(data[len(_NAME) : len(_MAGIC)], "big")
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if hashlib.sha256(body).digest() != checksum:
        raise CorruptError(f"{what} is damaged: its checksum does not match")
    if not data.startswith(_NAME):
        raise CorruptError(f"{what} is damaged: it does not begin with `{_NAME.decode()}`")
    if written != _FORMAT:
        raise unread_format(what, written, _FORMAT, is_newer=written > _FORMAT)
    return body


class _MemoryScan(Iterator[tuple[bytes, bytes]]):
    """A scan of a sorted map, some entries at a time. Before the map changes, the rest is read at once."""

    def __init__(self, entries: SortedDict, lock: threading.Lock, start: bytes | None, end: bytes | None) -> None:
        self._map = entries
        self._lock = lock
        self._next, self._inclusive, self._end = start, True, end
        self._size = 4
        self._found: deque[tuple[bytes, bytes]] = deque()
        self._complete = False

    def __next__(self) -> tuple[bytes, bytes]:
        if not self._found:
            with self._lock:
                self.take(self._size)
            self._size = min(2 * self._size, 512)
            if not self._found:
                raise StopIteration
        return self._found.popleft()

    def take(self, most: int | None = None) -> None:
        """Copy the next entries, at most `most`. Called under the lock."""
        if not self._complete:
            keys = list(islice(self._map.irange(self._next, self._end, inclusive=(self._inclusive, False)), most))
            self._found.extend((key, self._map[key]) for key in keys)
            self._complete = most is None or len(keys) < most
            if keys:
                self._next, self._inclusive = keys[-1], False


class _MemorySnapshot(EngineSnapshot):
    """The content of a sorted map at one moment: the map, and the values that later writes replaced.

    It never holds more than one value of a key.
    """

    def __init__(self, entries: SortedDict, lock: threading.Lock) -> None:
        self._map = entries
        self._lock = lock
        self._replaced: SortedDict = SortedDict()
        """Key -> the value it had, None if it was absent."""
        self._released = False

    def keep(self, changes: Changes) -> None:
        """Keep the values of keys that are about to be written. Called under the lock."""
        if self._released:
            return
        replaced, get = self._replaced, self._map.get
        for key in changes:
            if key not in replaced:
                replaced[key] = get(key)

    def get(self, key: bytes) -> bytes | None:
        # In this order: a value is noted before it is replaced, and forgotten after the release.
        now: bytes | None = self._map.get(key)
        before: bytes | None = self._replaced.get(key, now)
        if self._released:
            raise released()
        return before

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        if self._released:
            raise released()
        return self._chunks(start, end)

    def _chunks(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        size, inclusive, complete = 4, True, False
        while not complete:
            with self._lock:
                if self._released:
                    raise released()
                keys = list(islice(self._map.irange(start, end, inclusive=(inclusive, False)), size))
                complete = len(keys) < size
                last = end if complete else keys[-1]
                found = {key: self._map[key] for key in keys}
                found.update(
                    (key, self._replaced[key])
                    for key in self._replaced.irange(start, last, inclusive=(inclusive, not complete))
                )
            yield from sorted((key, value) for key, value in found.items() if value is not None)
            start, inclusive, size = last, False, min(2 * size, 512)

    def release(self) -> None:
        with self._lock:
            self._released = True
            self._replaced.clear()


class MemoryEngine(Engine):
    """A sorted map in memory."""

    def __init__(self, path: Path | None = None) -> None:
        """With a path: load the copy in that folder, if there is one. Raises CorruptError, IncompatibleError."""
        self._map: SortedDict = SortedDict()
        self._scans: weakref.WeakSet[_MemoryScan] = weakref.WeakSet()
        self._snapshots: weakref.WeakSet[_MemorySnapshot] = weakref.WeakSet()
        self._lock = threading.Lock()
        if path is not None and (path / ENTRIES).exists():
            self._map.update(read_entries(path / ENTRIES))

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._map.get(key)
        return value

    def apply(self, changes: Changes) -> None:
        with self._lock:
            for scan in self._scans:
                scan.take()
            self._scans.clear()
            for snapshot in self._snapshots:
                snapshot.keep(changes)
            for key, value in changes.items():
                if value is None:
                    self._map.pop(key, None)
                else:
                    self._map[key] = value

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        scan = _MemoryScan(self._map, self._lock, start, end)
        with self._lock:
            self._scans.add(scan)
        return scan

    def snapshot(self) -> EngineSnapshot:
        """The present content. Values that are replaced later are kept until the snapshot is released."""
        snapshot = _MemorySnapshot(self._map, self._lock)
        with self._lock:
            self._snapshots.add(snapshot)
        return snapshot

    def flush(self) -> None:
        """Does nothing: no data outlives the process."""

    def compact_in_background(self, wanted: bool) -> None:
        """Does nothing: there are no files."""

    def copy_to(self, directory: Path) -> None:
        """Write everything: the cost grows with the state."""
        write_entries(directory, self._map)

    def statistics(self) -> dict[str, int]:
        return {"keys": len(self._map)}

    def close(self) -> None:
        self._map.clear()


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
