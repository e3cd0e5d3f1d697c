"""Sliding windows that emit with each message: what has come of its span so far.

The store is that of sliding windows, without windows that wait. Messages are kept for twice the length of a window, so
that every message that is not late finds its whole span.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, TypeAlias

from penstock.api.time.windows import Firing as FiringType
from penstock.api.time.windows import Running, TimeWindow
from penstock.batch.batch import NO_WATERMARK
from penstock.graph.specs import WindowSpec
from penstock.runtime.messages.columns import Target
from penstock.runtime.operators.base import Firing, Firings, StageContext
from penstock.runtime.time_bytes import time_of
from penstock.runtime.windows.cells import key_slot
from penstock.runtime.windows.sliding import SlidingNode, places_of

Known: TypeAlias = list[tuple[int, Any]]
"""The times and values of a key's messages, by time; of the same time, in the order they came in."""

_TIME = itemgetter(0)


class RunningNode(SlidingNode):
    """Emits a pane for each message."""

    def __init__(self, spec: WindowSpec, stage: StageContext, downstream: Target, shape: Running) -> None:
        super().__init__(spec, stage, downstream, shape)
        self._known: dict[bytes, Known] = {}
        """By key, all its messages: those in the store, and those of this attempt."""
        self._count = 0

    def _take(self, key: bytes | None, value: Any, time_ms: int) -> bool:
        if not super()._take(key, value, time_ms):
            return False
        known = self._messages_of(key_slot(key))
        end = bisect_right(known, time_ms, key=_TIME)
        known.insert(end, (time_ms, value))
        self._count += 1
        window = TimeWindow(time_ms + 1 - self._size_ms, time_ms + 1)
        content, add = self._content.initial(), self._content.add
        for at, each in known[bisect_left(known, window.start_ms, key=_TIME) : end + 1]:
            content = add(content, each, at)
        self._pane_count.inc()
        self._emit(key, window, content, "each", 0)
        return True

    def _messages_of(self, key: bytes) -> Known:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = [
                (time_of(place[-8:]), value)
                for place, data in self._store.range(*places_of(key))
                for value in self._messages.from_bytes(data)
            ]
            # Those of this attempt, of which the newest is on its way, are not in the store.
            self._count += len(known)
        return known

    def _held(self) -> int:
        return self._count

    def _forget_open(self) -> None:
        super()._forget_open()
        self._known.clear()
        self._count = 0

    def _store_open(self) -> None:
        super()._store_open()
        self._known.clear()
        self._count = 0

    def _fires(self, time_ms: int) -> bool:
        return False

    def _fire_complete(self, watermark: int, output: int, firing: FiringType) -> Iterator[Firing | Firings]:
        self._drop(max(NO_WATERMARK, watermark - 2 * self._size_ms))
        yield from ()
