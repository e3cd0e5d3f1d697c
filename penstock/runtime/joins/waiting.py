"""The messages without a partner, in the order of the times from which on no partner can come.

| entry | value |
|---|---|
| `u` end side key | messages of the side and key have no partner yet, and find none at `end` or later |
| `a` time side number key | within an attempt: a message that stays without a partner, and its value |

All messages of a key that have the same time have the same partners, and therefore one entry.
"""

from __future__ import annotations

from itertools import islice
from typing import TypeAlias

from penstock.api.store import KeyValueStore
from penstock.batch.batch import END_OF_TIME
from penstock.runtime.joins.kept import Side
from penstock.runtime.timers import time_bytes, time_of

_FIRST, _BEHIND = b"u", b"v"
_ALONE, _BEHIND_ALONE = b"a", b"b"
_NO_VALUE, _VALUE = b"\x00", b"\x01"

LoneMessage: TypeAlias = tuple[int, bytes, bytes, bytes | None]
"""A message that stays without a partner: the timestamp of its result, its side, its key and its value."""

_AT_ONCE = 1000
"""Entries taken out together: to delete them while the store is scanned would cost more."""


def is_waiting(entry: bytes) -> bool:
    """True if the entry is of this module."""
    return entry[:1] in (_FIRST, _ALONE)


def key_in(entry: bytes) -> bytes:
    """The key of the message that an entry's key belongs to."""
    return entry[10:] if entry[:1] == _FIRST else entry[18:]


class WaitingMessages:
    """Holds messages of sides that emit those without a partner, and no others."""

    def __init__(self, store: KeyValueStore[bytes, bytes]) -> None:
        self._store = store
        self._held: dict[bytes, bool] = {}
        """Changes of the running attempt that are not stored yet: True if the entry exists."""
        self._number = 0

    def clear(self) -> None:
        self._held.clear()

    def save(self) -> None:
        put = self._store.put
        for entry, there in self._held.items():
            if there:
                put(entry, b"")
            elif self._store.get(entry) is not None:
                put(entry, None)
        self._held.clear()

    def add(self, side: Side, key: bytes, time_ms: int) -> None:
        self._held[_entry(side, key, time_ms)] = True

    def remove(self, side: Side, key: bytes, time_ms: int) -> bool:
        """Note that a message waits no longer. Returns True if it did."""
        entry = _entry(side, key, time_ms)
        there = self._held.get(entry)
        if there is None:
            there = self._store.get(entry) is not None
        if there:
            self._held[entry] = False
        return there

    def take_due(self, watermark: int) -> list[tuple[int, bytes, bytes]]:
        """Remove the first entries whose end is at or before the watermark, in order. Returns end, side and key of
        each; empty if there are none. Nothing may be held."""
        behind = _BEHIND if watermark >= END_OF_TIME else _FIRST + time_bytes(watermark + 1)
        due = [entry for entry, _ in islice(self._store.range(_FIRST, behind), _AT_ONCE)]
        for entry in due:
            self._store.delete(entry)
        return [(time_of(entry[1:9]), entry[9:10], entry[10:]) for entry in due]

    def leave_alone(self, time_ms: int, letter: bytes, key: bytes, value: bytes | None) -> None:
        self._number += 1
        entry = _ALONE + time_bytes(time_ms) + letter + self._number.to_bytes(8, "big") + key
        self._store.put(entry, _NO_VALUE if value is None else _VALUE + value)

    def take_left_alone(self) -> list[LoneMessage]:
        """Remove and return the messages of `leave_alone`, in the order of time and side, then of arrival."""
        found = list(self._store.range(_ALONE, _BEHIND_ALONE))
        for entry, _ in found:
            self._store.delete(entry)
        return [
            (time_of(entry[1:9]), entry[9:10], entry[18:], None if data == _NO_VALUE else data[1:])
            for entry, data in found
        ]


def first_end(store: KeyValueStore[bytes, bytes]) -> int | None:
    """The first end in a store; None if no message waits."""
    first = next(iter(store.range(_FIRST, _BEHIND)), None)
    return None if first is None else time_of(first[0][1:9])


def _entry(side: Side, key: bytes, time_ms: int) -> bytes:
    return _FIRST + time_bytes(time_ms + side.ahead_ms + 1) + side.letter + key
