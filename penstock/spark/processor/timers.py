"""The timers of a processor: any number for each key, each known by its time.

Their entries are those of `penstock/runtime/timers.py`, with the time as the name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from penstock.api.state.store import KeyValueStore
from penstock.api.time.watermarks import END_OF_TIME
from penstock.runtime.time_bytes import time_bytes, time_of
from penstock.runtime.timers import key_and_name, place_of
from penstock.state.stores.timer_entries import BY_KEY, BY_TIME, NAMED, TIME


class ProcessorTimers:
    """The timers of one task."""

    def __init__(self, store: KeyValueStore[bytes, bytes], domain: Literal["event", "processing"]) -> None:
        self._store = store
        letter = domain[:1].encode()
        self._times, self._keys = BY_TIME + letter, BY_KEY + letter
        self._oldest: int | None = None
        """No timer is earlier; None: there is none."""
        self._is_exact = False

    def register(self, key: bytes, time_ms: int) -> None:
        """Set a timer; nothing happens if it is set."""
        place, time = place_of(key, str(time_ms)), time_bytes(time_ms)
        by_key = self._keys + place
        if self._store.get(by_key) is not None:
            return
        self._store.put(by_key, time)
        self._store.put(self._times + time + place, b"")
        if self._is_exact and (self._oldest is None or time_ms < self._oldest):
            self._oldest = time_ms

    def delete(self, key: bytes, time_ms: int) -> None:
        """Delete a timer; nothing happens if it is not set."""
        place = place_of(key, str(time_ms))
        by_key = self._keys + place
        if self._store.get(by_key) is None:
            return
        self._store.put(by_key, None)
        self._store.put(self._times + time_bytes(time_ms) + place, None)
        if time_ms == self._oldest:
            self._is_exact = False

    def of(self, key: bytes) -> list[int]:
        """The times of a key's timers, the earliest first."""
        return sorted(time_of(time) for _, time in self._store.items(prefix=self._keys + place_of(key, "")))

    def expired(self, until_ms: int) -> Iterator[tuple[bytes, int]]:
        """Keys and times of the timers up to a time, by time, then by key. Timers that are set or deleted meanwhile
        make no difference."""
        behind = time_bytes(min(until_ms, END_OF_TIME - 1) + 1)
        for by_time, _ in self._store.range(self._times, self._times + behind):
            key, _ = key_and_name(by_time[NAMED:])
            yield key or b"", time_of(by_time[TIME])

    def oldest(self) -> int | None:
        """The time of the earliest timer; None if there is none."""
        if not self._is_exact:
            first = next(iter(self._store.items(prefix=self._times)), None)
            self._oldest = None if first is None else time_of(first[0][TIME])
            self._is_exact = True
        return self._oldest
