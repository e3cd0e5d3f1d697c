"""An engine in memory: a sorted map."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from sortedcontainers import SortedDict

from penstock.state.engines.engine import Engine
from penstock.state.engines.entries_file import ENTRIES, read_entries, write_entries
from penstock.state.engines.snapshot import EngineSnapshot, released
from penstock.state.records import Changes


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
