"""Windows that end with a message, and hold the messages of its key that are not too old.

Each message is stored once; a pane is made of those in its span when it fires.

| entry | value |
|---|---|
| `m` length of key, key, time | the messages of a key and a time, in the order they came in |
| `o` end start key | empty: a window that has not fired |
| `x` time key | empty: messages that are kept for later windows only |

Keys are as `key_slot` makes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from penstock.api.time.windows import Firing as FiringType
from penstock.api.time.windows import Running, Sliding, TimeWindow
from penstock.batch.batch import END_OF_TIME, NO_WATERMARK
from penstock.graph.specs import WindowSpec
from penstock.runtime.messages.columns import Target
from penstock.runtime.operators.base import Firing, Firings, StageContext
from penstock.runtime.time_bytes import time_bytes, time_of
from penstock.runtime.windows.cells import WindowSlot, key_slot, slot_key
from penstock.runtime.windows.contents import MessageContent
from penstock.runtime.windows.node import WindowNode


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
