"""The timers of an operator in its store, in two orders.

| entry | value |
|---|---|
| `t` domain time key name | empty; finds the due timers |
| `k` domain key name | the time; finds a timer to replace or cancel it |

The domain is one byte, the time eight bytes that sort as times do. A key is 00 if there is none, otherwise 01, its
bytes with each 00 written as 00 FF, and 00 01. Timers therefore sort by time, then by the bytes of their keys, then by
name.

Each call costs what it reads and writes, however many timers wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from penstock.api.state.store import KeyValueStore
from penstock.api.time.timers import LONGEST_MS, TimeDomain
from penstock.runtime.time_bytes import time_bytes, time_of
from penstock.state.stores.timer_entries import BY_KEY, BY_TIME, NAMED, TIME

_DOMAINS: dict[TimeDomain, bytes] = {"event": b"e", "processing": b"p"}
_TIMES = {domain: BY_TIME + byte for domain, byte in _DOMAINS.items()}
_KEYS = {domain: BY_KEY + byte for domain, byte in _DOMAINS.items()}
_NO_KEY = b"\x00"
_END = b"\x00\x01"


class DueTimer(NamedTuple):
    """A timer that was taken out of the store."""

    time_ms: int
    place: bytes
    """Its key and name, as `place_of` makes them."""


def place_of(key: bytes | None, name: str) -> bytes:
    if key is None:
        return _NO_KEY + name.encode()
    if b"\x00" in key:
        key = key.replace(b"\x00", b"\x00\xff")
    return b"\x01" + key + _END + name.encode()


def key_and_name(place: bytes) -> tuple[bytes | None, str]:
    if place[:1] == _NO_KEY:
        return None, place[1:].decode()
    end = place.index(_END, 1)
    return place[1:end].replace(b"\x00\xff", b"\x00"), place[end + 2 :].decode()


def key_in(entry: bytes) -> bytes | None:
    """The key of the timer that an entry's key belongs to."""
    return key_and_name(entry[NAMED:] if entry[:1] == BY_TIME else entry[2:])[0]


class Timers:
    """The timers of one operator and task."""

    def __init__(self, store: KeyValueStore[bytes, bytes]) -> None:
        self._store = store
        self._begin = self._end = b""
        """The range that is being given out, if timers that are set meanwhile belong to it."""
        self._added: list[bytes] = []
        """The timers that were set in that range since the last look."""
        self._removed = False
        """A timer was replaced or cancelled while timers are given out."""

    def set(self, domain: TimeDomain, place: bytes, time_ms: int) -> None:
        store, time = self._store, time_bytes(time_ms)
        by_key = _KEYS[domain] + place
        before = store.get(by_key)
        if before == time:
            return
        if before is not None:
            store.delete(_TIMES[domain] + before + place)
            self._removed = True
        store.put(by_key, time)
        by_time = _TIMES[domain] + time + place
        store.put(by_time, b"")
        if self._begin <= by_time < self._end:
            self._added.append(by_time)

    def cancel(self, domain: TimeDomain, place: bytes) -> None:
        by_key = _KEYS[domain] + place
        before = self._store.get(by_key)
        if before is not None:
            self._store.delete(by_key)
            self._store.delete(_TIMES[domain] + before + place)
            self._removed = True

    def due(
        self, domain: TimeDomain, up_to_ms: int, *, live: bool, at_most: int | None = None, must_ms: int = -LONGEST_MS
    ) -> Iterator[DueTimer]:
        """Take out the timers whose time has come, by time, key and name. Timers may be set and cancelled meanwhile:
        one that was cancelled does not come.

        Args:
            domain: which timers.
            up_to_ms: the time that has come.
            live: a timer that is set meanwhile comes as well, if its time has come.
            at_most: the largest number of timers to take out; None: all.
            must_ms: timers up to this time are taken out, however many they are.
        """
        begin = _TIMES[domain]
        start: bytes | None = begin
        by_time = b""
        end = begin + time_bytes(min(up_to_ms, LONGEST_MS) + 1)
        given = 0
        try:
            if live:
                self._begin, self._end = begin, end
            while start is not None:
                self._added.clear()
                self._removed = False
                for by_time, _ in self._store.range(start, end):
                    if self._removed and self._store.get(by_time) is None:
                        continue
                    time_ms, place = time_of(by_time[TIME]), by_time[NAMED:]
                    if at_most is not None and given >= at_most and time_ms > must_ms:
                        return
                    self._store.delete(by_time)
                    self._store.delete(_KEYS[domain] + place)
                    given += 1
                    yield DueTimer(time_ms, place)
                    if self._added:
                        break
                start = min(by_time, *self._added) if self._added else None
        finally:
            self._begin = self._end = b""

    def upcoming(self, domain: TimeDomain, up_to_ms: int) -> UpcomingTimers:
        """The timers of the domain up to this time, to be taken out one by one. One that is set meanwhile belongs to
        them. Until the next call of `due`, no other timers are given out."""
        begin = _TIMES[domain]
        self._begin, self._end = begin, begin + time_bytes(min(up_to_ms, LONGEST_MS) + 1)
        self._added.clear()
        return UpcomingTimers(self._store, self._added, self._store.range(self._begin, self._end), _KEYS[domain])

    def oldest(self, domain: TimeDomain) -> int | None:
        """The time of the first timer; None if there is none."""
        begin = _TIMES[domain]
        first = next(iter(self._store.range(begin, begin + time_bytes(LONGEST_MS + 1))), None)
        return None if first is None else time_of(first[0][TIME])


class UpcomingTimers:
    """Timers by time, key and name, of which the next one is known before it is taken out."""

    def __init__(
        self,
        store: KeyValueStore[bytes, bytes],
        added: list[bytes],
        stored: Iterator[tuple[bytes, bytes]],
        by_key: bytes,
    ) -> None:
        """`added` gets the timers that are set meanwhile."""
        self._store = store
        self._added = added
        self._stored = stored
        self._by_key = by_key
        self._heap: list[bytes] = []
        self._read_next()

    def _read_next(self) -> None:
        """The next timer of the store joins those that were set meanwhile."""
        self._last_read = next((entry for entry, _ in self._stored), None)
        if self._last_read is not None:
            heappush(self._heap, self._last_read)

    def next_ms(self) -> int | None:
        """The time of the next timer; None if there is none."""
        while self._added:
            heappush(self._heap, self._added.pop())
        while self._heap and self._store.get(self._heap[0]) is None:  # it was replaced, cancelled, undone or taken out
            self._pop()
        return time_of(self._heap[0][TIME]) if self._heap else None

    def take(self) -> DueTimer:
        """Take the next timer out. Called after `next_ms` has named it."""
        by_time = self._pop()
        place = by_time[NAMED:]
        self._store.delete(by_time)
        self._store.delete(self._by_key + place)
        return DueTimer(time_of(by_time[TIME]), place)

    def _pop(self) -> bytes:
        first = heappop(self._heap)
        if first == self._last_read:
            self._read_next()
        return first


def oldest_timers(store: KeyValueStore[bytes, bytes]) -> tuple[int | None, int | None]:
    timers = Timers(store)
    return timers.oldest("event"), timers.oldest("processing")
