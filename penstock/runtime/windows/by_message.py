"""Windows whose bounds are those of messages.

A session grows with the messages of a key. A counting window has a fixed number of messages. A sliding window ends
with a message, and holds the messages of its key that are not too old; if it emits with each message, it has what has
come of its span so far. Each message of a sliding window is stored once; a pane is made of those in its span when it
fires.

| entry of sliding windows | value |
|---|---|
| `m` length of key, key, time | the messages of a key and a time, in the order they came in |
| `o` end start key | empty: a window that has not fired |
| `x` time key | empty: messages that are kept for later windows only |

Keys are as `key_slot` makes them. Windows that emit with each message have no `o`. They keep messages for twice the
length of a window, so that every message that is not late finds its whole span.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

from penstock.api.time.firing import Firing as FiringType
from penstock.api.time.firing import TimeWindow
from penstock.api.time.windows import Counting, Running, Session, Sliding
from penstock.batch.batch import END_OF_TIME, NO_WATERMARK
from penstock.graph.specs import WindowSpec
from penstock.runtime.messages.columns import Target
from penstock.runtime.operators.base import Firing, Firings, StageContext
from penstock.runtime.operators.window import WindowNode
from penstock.runtime.timers import time_bytes, time_of
from penstock.runtime.windows.cells import Cell, WindowSlot, key_slot, slot_key
from penstock.runtime.windows.contents import MessageContent


def key_in(entry: bytes) -> bytes | None:
    """The key of the message that an entry's key belongs to."""
    match entry[:1]:
        case b"m":
            return slot_key(entry[5:-8])
        case b"x":
            return slot_key(entry[9:])
        case _:
            return slot_key(entry[17:])


class SlidingNode(WindowNode):
    """Windows that end with a message."""

    def __init__(self, spec: WindowSpec, stage: StageContext, downstream: Target, shape: Sliding | Running) -> None:
        super().__init__(spec, stage, downstream, shape)
        self._size_ms = shape.size_ms
        self._store = stage.stores[spec.stores[0]]
        self._messages = MessageContent(spec.message_serde)
        self._messages.operator = spec.id
        self._open: dict[tuple[bytes, int], list[Any]] = {}
        """By key and time: the messages that came in this attempt and are not stored yet."""

    @staticmethod
    def key_in(entry: bytes) -> bytes | None:
        return key_in(entry)

    def _take(self, key: bytes | None, value: Any, time_ms: int) -> bool:
        if time_ms + self._size_ms <= self._late_watermark:
            return False
        self._open.setdefault((key_slot(key), time_ms), []).append(value)
        return True

    def _store_open(self) -> None:
        store, messages = self._store, self._messages
        for (key, time_ms), values in self._open.items():
            place = _place(key, time_ms)
            before = store.get(place)
            every = values if before is None else messages.from_bytes(before) + values
            store.put(place, self._written(key, every))
            if self._fires(time_ms):
                store.put(b"o" + self._slot(key, time_ms).encode(), b"")
            else:
                store.put(b"x" + time_bytes(time_ms) + key, b"")
        self._open.clear()

    def _fires(self, time_ms: int) -> bool:
        """False if the window that ends at this time is complete, and those of later messages are not."""
        return time_ms >= self._late_watermark

    def _written(self, key: bytes, values: list[Any]) -> bytes:
        try:
            return self._messages.to_bytes(values)
        except Exception as error:
            own = slot_key(key)
            shown = None if own is None else self._spec.key_serde.from_bytes(own)
            raise self._messages.unwritable(values, shown, error) from error

    def _slot(self, key: bytes, time_ms: int) -> WindowSlot:
        return WindowSlot(time_ms + 1, time_ms + 1 - self._size_ms, key)

    def _fire_complete(self, watermark: int, output: int, firing: FiringType) -> Iterator[Firing | Firings]:
        store = self._store
        for fired, (place, _) in enumerate(store.range(b"o", b"o" + _behind(watermark))):
            slot = WindowSlot.decode(place[1:])
            if fired >= self.at_most and slot.end > output:
                return  # the next batch begins at once
            store.delete(place)
            store.put(b"x" + time_bytes(slot.end - 1) + slot.key, b"")
            emit = partial(self._emit_span, slot, firing)
            yield Firing(slot_key(slot.key), self._pane_time(slot.end - 1), f"{firing} pane 0", emit)
        self._drop(max(NO_WATERMARK, watermark - self._size_ms))

    def _emit_span(self, slot: WindowSlot, firing: FiringType) -> None:
        content, add = self._content.initial(), self._content.add
        first = _place(slot.key, slot.start)
        for place, data in self._store.range(first, _place(slot.key, slot.end)):
            time_ms = time_of(place[-8:])
            for value in self._messages.from_bytes(data):
                content = add(content, value, time_ms)
        self._emit(slot_key(slot.key), TimeWindow(slot.start, slot.end), content, firing, 0)

    def _drop(self, time_ms: int) -> None:
        """Drop messages up to this time, which are in no later window."""
        for place, _ in self._store.range(b"x", b"x" + _behind(time_ms)):
            self._store.delete_all((place, _place(place[9:], time_of(place[1:9]))))


def _behind(time_ms: int) -> bytes:
    """Sorts behind everything of this time and before."""
    return time_bytes(min(time_ms, END_OF_TIME - 1) + 1)


def _place(key: bytes, time_ms: int) -> bytes:
    return b"m" + len(key).to_bytes(4, "big") + key + time_bytes(time_ms)


def places_of(key: bytes) -> tuple[bytes, bytes]:
    """The range of the messages of a key."""
    begin = b"m" + len(key).to_bytes(4, "big") + key
    return begin, begin + b"\xff" * 9


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


class SessionNode(WindowNode):
    """Windows that grow with the messages of a key."""

    def __init__(self, spec: WindowSpec, stage: StageContext, downstream: Target, shape: Session) -> None:
        super().__init__(spec, stage, downstream, shape)
        self._gap_ms = shape.gap_ms
        self._open: dict[bytes, list[Cell]] = {}

    def _take(self, key: bytes | None, value: Any, time_ms: int) -> bool:
        slot_key = key_slot(key)
        sessions = self._open.get(slot_key)
        if sessions is None:
            sessions = self._open[slot_key] = self._cells.sessions(slot_key)
        start, end = time_ms, time_ms + self._gap_ms
        met = [cell for cell in sessions if cell.slot.start < end and start < cell.slot.end]
        if met:
            start, end = min(start, met[0].slot.start), max(end, met[-1].slot.end)
        if self._too_late(end):
            return False
        slot = WindowSlot(end, start, slot_key)
        if len(met) == 1 and met[0].slot == slot:
            self._add(met[0], value, time_ms)
            return True
        cell = self._merged(slot, met)
        self._add(cell, value, time_ms)
        self._open[slot_key] = sorted([each for each in sessions if each not in met] + [cell], key=_start)
        return True

    def _merged(self, slot: WindowSlot, met: list[Cell]) -> Cell:
        # One that is due and has not fired yet, because too many were due, makes the whole session fire on time.
        complete = slot.end <= self._late_watermark and all(each.complete for each in met)
        cell = self._cells.new(slot, complete=complete)
        for number, each in enumerate(met):
            self._cells.take_out(each)
            cell.content = self._content.merge(cell.content, each.content) if number else each.content
            cell.messages += each.messages
            cell.number = max(cell.number, each.number)
            if each.since:
                cell.first_ms = min(cell.first_ms, each.first_ms) if cell.since else each.first_ms
                cell.last_ms = max(cell.last_ms, each.last_ms)
            cell.since += each.since
            cell.fired = cell.fired or (each.fired and each.complete == cell.complete)
        return cell

    def _store_open(self) -> None:
        for key, sessions in self._open.items():
            for cell in sessions:
                self._cells.save(cell, self._timer(cell))
            self._cells.save_sessions(key, sessions)
        self._open.clear()

    def _forget(self, cell: Cell) -> None:
        self._cells.forget_session(cell.slot)


def _start(cell: Cell) -> int:
    return cell.slot.start


class CountingNode(WindowNode):
    """Windows of a fixed number of messages, which fire with the last of them."""

    def __init__(self, spec: WindowSpec, stage: StageContext, downstream: Target, shape: Counting) -> None:
        super().__init__(spec, stage, downstream, shape)
        self._most = shape.messages
        self._open: dict[bytes | None, Cell] = {}

    def _take(self, key: bytes | None, value: Any, time_ms: int) -> bool:
        cell = self._open.get(key)
        if cell is None:
            slot = WindowSlot(END_OF_TIME, 0, key_slot(key))
            cell = self._open[key] = self._cells.load(slot) or self._cells.new(slot)
        self._add(cell, value, time_ms)
        if cell.messages >= self._most:
            self._cells.take_out(cell)
            del self._open[key]
            self._emit(key, None, cell.content, "on-time", cell.number)
        return True
