"""Ranges of keys that are known to be empty, so that no scan looks at their deleted keys again."""

from __future__ import annotations

from sortedcontainers import SortedDict

_MOST = 10_000
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
        if len(self._ends) >= _MOST:
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
