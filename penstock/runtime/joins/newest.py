"""keep="newest": one message of each key and side, the one with the highest time; among equals, the last to come.

| entry | value |
|---|---|
| `n` side key | time and value of the newest message |
| `d` time side key | the message may be dropped once the watermark has reached this time, if it is still the newest |
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec

from penstock.api.store import KeyValueStore
from penstock.batch.batch import END_OF_TIME
from penstock.runtime.joins.kept import KeptMessages, Row, Side
from penstock.runtime.timers import time_bytes, time_of

_ABSENT: Any = object()


def key_in(entry: bytes) -> bytes:
    """The key of the message that an entry's key belongs to."""
    return entry[2:] if entry[:1] == b"n" else entry[10:]


class NewestRow(KeptMessages):
    """Keeps the newest message of each key and side."""

    def __init__(self, store: KeyValueStore[bytes, bytes], sides: tuple[Side, Side]) -> None:
        self._store = store
        self._sides = {side.letter: side for side in sides}
        self._span = sides[0].back_ms + sides[0].ahead_ms + 1
        """Messages in the same span of time are dropped together."""
        self._rows: dict[bytes, Row | None] = {}
        """By name; None: the store has no such message."""
        self._changed: set[bytes] = set()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(tuple[int, bytes | None]).decode

    @property
    def held(self) -> int:
        return len(self._rows)

    def clear(self) -> None:
        self._rows.clear()
        self._changed.clear()

    def save(self) -> None:
        for name in self._changed:
            self._store.put(name, self._encode(self._rows[name]))
        self.clear()

    def take(self, side: Side, key: bytes, row: Row) -> tuple[list[Row], Row | None]:
        partner = self._row(b"n" + (b"r" if side.is_left else b"l") + key)
        fits = partner is not None and -side.back_ms <= partner[0] - row[0] <= side.ahead_ms
        return [partner] if fits and partner is not None else [], self._keep(side, key, row)

    def _keep(self, side: Side, key: bytes, row: Row) -> Row | None:
        name = b"n" + side.letter + key
        old = self._row(name)
        if old is not None and row[0] < old[0]:
            return row
        drop_at = self._drop_at(side, row[0])
        if old is None or self._drop_at(side, old[0]) != drop_at:
            self._store.put(b"d" + time_bytes(drop_at) + name[1:], b"")
        self._rows[name] = row
        self._changed.add(name)
        return old

    def at(self, side: Side, key: bytes, time_ms: int) -> list[bytes | None]:
        data = self._store.get(b"n" + side.letter + key)
        row = None if data is None else self._decode(data)
        if row is None or row[0] != time_ms:
            raise ValueError("the store names a message that is missing there")
        return [row[1]]

    def drop(self, done: int, before: int, most: int | None) -> None:
        ahead = [side.ahead_ms for side in self._sides.values()]
        if all((done - each) // self._span == (before - each) // self._span for each in ahead):
            return
        end = b"e" if done == END_OF_TIME else b"d" + time_bytes(done + 1)
        for entry, _ in islice(self._store.range(b"d", end), most):
            name, side = b"n" + entry[9:], self._sides[entry[9:10]]
            data = self._store.get(name)
            if data is not None and self._drop_at(side, self._decode(data)[0]) == time_of(entry[1:9]):
                self._store.delete(name)
            self._store.delete(entry)

    def _drop_at(self, side: Side, time_ms: int) -> int:
        return time_ms - time_ms % self._span + self._span + side.ahead_ms

    def _row(self, name: bytes) -> Row | None:
        row = self._rows.get(name, _ABSENT)
        if row is _ABSENT:
            data = self._store.get(name)
            row = self._rows[name] = None if data is None else self._decode(data)
        found: Row | None = row
        return found
