"""Writes above an engine: those of a batch that has not ended, and those of ended batches that are written later.

Ranges of keys that are known to be empty are gaps: no scan looks at their deleted keys again.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
from sortedcontainers import SortedDict, SortedSet

from penstock.arrays.byte_arrays import ByteArray
from penstock.arrays.entries import Flags
from penstock.state.engines.engine import Changes, Content, Engine, found_in, get_each

_MOST_GAPS = 10_000
"""Beyond this number all gaps are forgotten at once: they only save time."""


class Gaps:
    """Disjoint ranges [start, end) of a map's keys in which no key has a value. Not thread-safe."""

    def __init__(self) -> None:
        self._ends: SortedDict = SortedDict()
        self.version = 0
        """Changes with every write to the map, because earlier findings of a scan may then be wrong."""

    def __len__(self) -> int:
        return len(self._ends)

    def end_of(self, key: bytes) -> bytes | None:
        """The end of the gap that contains the key; None if no gap does."""
        place = self._ends.bisect_right(key)
        if not place:
            return None
        end: bytes = self._ends.peekitem(place - 1)[1]
        return end if key < end else None

    def add(self, start: bytes, end: bytes) -> None:
        """Note that there is nothing from start to end. Gaps that touch are merged."""
        if start >= end:
            return
        place = self._ends.bisect_right(start)
        if place and self._ends.peekitem(place - 1)[1] >= start:
            start, before = self._ends.popitem(place - 1)
            end = max(end, before)
            place -= 1
        while place < len(self._ends) and self._ends.peekitem(place)[0] <= end:
            end = max(end, self._ends.popitem(place)[1])
        if len(self._ends) >= _MOST_GAPS:
            self._ends.clear()
        self._ends[start] = end

    def put(self, key: bytes) -> None:
        if not self._ends:
            return
        place = self._ends.bisect_right(key)
        if not place:
            return
        start, end = self._ends.peekitem(place - 1)
        if key < end:
            del self._ends[start]
            if start < key:
                self._ends[start] = key
            if key + b"\0" < end:
                self._ends[key + b"\0"] = end


_FIRST, _MOST = 4, 512
"""Changed keys that a scan looks up at once: few at first, because many callers want only the first entry."""
_MANY = 16
"""So many deleted keys in a row are remembered as a gap."""


class _Missing:
    pass


MISSING: Final = _Missing()
Entry = tuple[bytes, bytes]
Change = tuple[bytes, bytes | None]


class _ScanValues:
    """The values that keys had when a scan began, for keys written since (MISSING: no change before)."""

    __slots__ = ("__weakref__", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | _Missing | None] = {}


class _WatchedChanges(dict[bytes, bytes | None]):
    """The changes of an overlay once it was scanned: it reports every write."""

    __slots__ = ("_overlay",)

    def __init__(self, changes: Changes, overlay: Overlay) -> None:
        super().__init__(changes)
        self._overlay = weakref.ref(overlay)

    def __setitem__(self, key: bytes, value: bytes | None) -> None:
        overlay = self._overlay()
        if overlay is not None:
            overlay.before_write(key, gone=value is None)
        super().__setitem__(key, value)


class Overlay:
    """Net changes to one store, read through by get and scan. Never touches the engine.

    A scan is lazy: it costs what it yields and, once, the deleted keys it passes; it shows everything as it was when
    it began. Until the first one, a write costs a dict's write and no more.
    """

    def __init__(
        self, engine: Content, gaps: Gaps | None = None, lock: AbstractContextManager[Any] | None = None
    ) -> None:
        """`gaps`: the deleted ranges in the view that this overlay's readers have. `lock` guards the order of the
        changes, for overlays that several threads scan."""
        self._engine = engine
        self._gaps = Gaps() if gaps is None else gaps
        self._lock = nullcontext() if lock is None else lock
        self.changes: dict[bytes, bytes | None] = {}
        """Key to new value, None to delete; written by the store directly. Entries are only ever added or replaced,
        except by `undo`. The first scan replaces the dict by one that watches."""
        self._order: SortedSet | None = None
        """The changed keys in order, once there was a scan. A key whose write was undone may still be in it."""
        self._unordered: list[bytes] = []
        """Keys added since the last scan."""
        self._scans: weakref.WeakSet[_ScanValues] = weakref.WeakSet()

    @property
    def net(self) -> Changes:
        """The changes, as they are."""
        return self.changes

    def before_write(self, key: bytes, *, gone: bool) -> None:
        old = self.changes.get(key, MISSING)
        if old is MISSING:
            self._unordered.append(key)
        if self._scans:
            for kept in self._scans:
                kept.values.setdefault(key, old)
        self._gaps.version += 1
        if not gone:
            self._gaps.put(key)

    def undo(self, journal: list[tuple[bytes, bytes | _Missing | None]]) -> None:
        """Undo writes and forget them. `journal`: in their order, each key and the change that it had before."""
        for key, before in reversed(journal):
            if not isinstance(before, _Missing):
                self.changes[key] = before
                continue
            if self._order is not None and key in self.changes:
                self.before_write(key, gone=False)
            self.changes.pop(key, None)
        journal.clear()

    def update(self, changes: Changes) -> None:
        self._gaps.version += 1
        if self._order is not None:
            for key, value in changes.items():
                self.before_write(key, gone=value is None)
        elif self._gaps:
            for key, value in changes.items():
                if value is not None:
                    self._gaps.put(key)
        self.changes.update(changes)

    def take(self) -> Changes:
        """The changes of a batch that has ended. Nobody writes to them any more."""
        self._gaps.version += 1  # a scan that is still open looks at each entry by itself
        return self.changes if type(self.changes) is dict else dict(self.changes)

    def get(self, key: bytes) -> bytes | None:
        value = self.changes.get(key, MISSING)
        return self._engine.get(key) if isinstance(value, _Missing) else value

    def get_many(self, keys: ByteArray) -> tuple[ByteArray, Flags]:
        """As `Engine.get_many`."""
        below = self._engine.get_many if isinstance(self._engine, Engine) else partial(get_each, self._engine)
        changes = self.changes
        if not changes:
            return below(keys)
        values = [changes.get(key, MISSING) for key in keys.to_arrow().to_pylist()]
        missing = [place for place, value in enumerate(values) if isinstance(value, _Missing)]
        stored, present = below(keys.take(np.array(missing, np.int64)))
        for place, value, is_there in zip(missing, stored.to_arrow().to_pylist(), present.tolist(), strict=True):
            values[place] = value if is_there else None
        return found_in([None if isinstance(value, _Missing) else value for value in values])

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[Entry]:
        """The entries with start <= key < end, the changes included, in order; unmoved by later writes."""
        with self._lock:
            begin = self._gaps.end_of(start or b"") or start
            if begin is not None and end is not None and begin >= end:
                return iter(())
            stored = self._engine.scan(begin, end)
            if not self.changes:
                return stored
            order = self._ordered()
            if next(order.irange(begin, end, inclusive=(True, False)), None) is None:
                return stored
            kept = _ScanValues()
            self._scans.add(kept)
            return self._merged(begin, end, stored, kept, self._gaps.version)

    def _ordered(self) -> SortedSet:
        if self._order is None:
            self.changes = _WatchedChanges(self.changes, self)
            self._order = SortedSet(self.changes)
        elif self._unordered:
            self._order.update(self._unordered)
        self._unordered = []
        return self._order

    def _changed(self, start: bytes | None, end: bytes | None, kept: _ScanValues) -> Iterator[Change]:
        """The changes in order, as they were when the scan began."""
        old, size, include = kept.values, _FIRST, True
        while True:
            with self._lock:
                keys = list(islice(self._order.irange(start, end, inclusive=(include, False)), size))  # type: ignore[union-attr]
                changes = [(key, old[key] if key in old else self.changes.get(key, MISSING)) for key in keys]
            for key, value in changes:
                if not isinstance(value, _Missing):
                    yield key, value
            if len(keys) < size:
                return
            start, include, size = keys[-1], False, min(2 * size, _MOST)

    def _merged(
        self, start: bytes | None, end: bytes | None, stored: Iterator[Entry], kept: _ScanValues, version: int
    ) -> Iterator[Entry]:
        """Both in order; a changed entry replaces the stored one of its key. Deleted keys are passed once, and then
        remembered as a gap."""
        changed = self._changed(start, end, kept)
        change, entry = next(changed, None), next(stored, None)
        last: bytes | None = None
        deleted = 0
        while change is not None:
            key, value = change
            if entry is not None and entry[0] < key:
                if deleted >= _MANY:
                    self._learn(start, last, entry[0], version)
                yield entry
                last, deleted = entry[0], 0
                entry = next(stored, None)
                continue
            if value is not None:
                if deleted >= _MANY:
                    self._learn(start, last, key, version)
                yield key, value
                last, deleted = key, 0
            else:
                deleted += 1
                behind = self._gaps.end_of(key) if self._gaps.version == version else None
                if behind is not None:
                    changed, stored = self._changed(behind, end, kept), self._engine.scan(behind, end)
                    change, entry = next(changed, None), next(stored, None)
                    deleted = max(deleted, _MANY)
                    continue
            if entry is not None and entry[0] == key:
                entry = next(stored, None)
            change = next(changed, None)
        if deleted >= _MANY:
            self._learn(start, last, key + b"\0" if entry is None else entry[0], version)
        if entry is not None:
            yield entry
            yield from stored

    def _learn(self, start: bytes | None, last: bytes | None, end: bytes, version: int) -> None:
        """Add a gap from the start of a scan, or from the last key it found, to the end, unless there was a write since
        the scan began."""
        with self._lock:
            if self._gaps.version == version:
                self._gaps.add(start or b"" if last is None else last + b"\0", end)
