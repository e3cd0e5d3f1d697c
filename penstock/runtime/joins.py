"""The messages that the join of two streams keeps in its store, and those that have no partner yet.

Found by name: only `admin` and `testing` may import this.

keep="newest" keeps one message of each key and side, the one with the highest time; among equals, the last to come.

| entry | value |
|---|---|
| `n` side key | time and value of the newest message |
| `d` time side key | the message may be dropped once the watermark has reached this time, if it is still the newest |

keep="all" keeps all of them, in cells, one for each span of time.

| entry | value |
|---|---|
| `c` start key | a cell: for each side the number of its pieces, and times and values of the messages in none |
| `p` start side number key | a piece: times and values of earlier messages of one side of the cell |

A span is as long as the bounds of the join. All partners of a message are therefore in its own cell and in one beside
it, and both are read by name. No entry says when a message expires: a cell is dropped as a whole. A large cell is
written in pieces, so that a message costs the same, however many came before.

Messages without a partner are in the order of the times from which on no partner can come.

| entry | value |
|---|---|
| `u` end side key | messages of the side and key have no partner yet, and find none at `end` or later |
| `a` time side number key | within an attempt: a message that stays without a partner, and its value |

All messages of a key that have the same time have the same partners, and therefore one entry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec

from penstock.api.store import KeyValueStore
from penstock.batch.batch import END_OF_TIME, NO_WATERMARK
from penstock.graph.event_time import Join
from penstock.runtime.timers import time_bytes, time_of

Row: TypeAlias = tuple[int, bytes | None]
"""A message as it is kept: event time in epoch milliseconds, and the bytes of the value."""


@dataclass(frozen=True, slots=True)
class Side:
    """The bounds within which a message of one side finds its partners."""

    is_left: bool
    letter: bytes
    back_ms: int
    """The greatest distance of an earlier partner."""
    ahead_ms: int
    """The greatest distance of a later partner."""
    alone: bool
    """A message without a partner is emitted."""

    def last_ms(self, time_ms: int) -> int:
        """The latest time of a partner, which is the timestamp of a message that stays without one."""
        return time_ms + self.ahead_ms


def sides_of(join: Join) -> tuple[Side, Side]:
    before, after = join.before_ms, join.after_ms
    left = Side(is_left=True, letter=b"l", back_ms=before, ahead_ms=after, alone=join.emits_left)
    right = Side(is_left=False, letter=b"r", back_ms=after, ahead_ms=before, alone=join.emits_right)
    return left, right


class KeptMessages(ABC):
    """The messages of both sides that later messages may join, in the operator's store.

    An attempt's reads and changes are held in memory until `save`.
    """

    @property
    @abstractmethod
    def held(self) -> int: ...

    @abstractmethod
    def clear(self) -> None: ...

    @abstractmethod
    def save(self) -> None:
        """Store the changes, and hold nothing."""

    @abstractmethod
    def take(self, side: Side, key: bytes, row: Row) -> tuple[list[Row], Row | None]:
        """Find the partners of a message, by time and then in order of arrival, and keep the message. Also returns the
        message that is not kept as a result: an earlier one of the side, or this one itself."""

    @abstractmethod
    def at(self, side: Side, key: bytes, time_ms: int) -> list[bytes | None]:
        """The values of the messages of a side and key at this time. Nothing may be held."""

    @abstractmethod
    def drop(self, done: int, before: int, most: int | None) -> None:
        """Remove messages that no message at `done` or later can join. Nothing may be held.

        Args:
            before: the previous `done`. Messages from then on may be kept longer than needed.
            most: the largest number of entries to remove.
        """


_PIECE_BYTES = 4096
"""A larger cell moves into pieces the messages of each side that take half of this or more."""

_Rows: TypeAlias = tuple[list[int], list[bytes | None]]
_Part: TypeAlias = tuple[int, list[int], list[bytes | None]]
"""One side of a stored cell: the number of its pieces, and the messages that are in no piece."""
_ABSENT: Any = object()
_LETTERS = (b"l", b"r")
_by_time = itemgetter(0)


def key_of_cell(entry: bytes) -> bytes:
    """The key of the message that an entry's key belongs to."""
    return entry[9:] if entry[:1] == b"c" else entry[14:]


class _Half:
    """One side of a cell, as the running attempt sees it."""

    __slots__ = ("older", "pieces", "times", "values")

    def __init__(self, pieces: int, times: list[int], values: list[bytes | None]) -> None:
        self.pieces = pieces
        self.times = times
        """The messages that are in no piece, in order of arrival."""
        self.values = values
        self.older: list[Row] | None = None
        """The messages in the pieces; None until they are read."""


class _Cell:
    """A cell as the running attempt sees it."""

    __slots__ = ("changed", "left", "right")

    def __init__(self, left: _Part, right: _Part) -> None:
        self.left, self.right = _Half(*left), _Half(*right)
        self.changed = False


class EveryRow(KeptMessages):
    """Keeps all messages of the span."""

    def __init__(self, store: KeyValueStore[bytes, bytes], sides: tuple[Side, Side]) -> None:
        self._store = store
        self._span = sides[0].back_ms + sides[0].ahead_ms + 1
        self._ahead = max(side.ahead_ms for side in sides)
        self._cells: dict[bytes, _Cell | None] = {}
        """By name; None: the store has no such cell."""
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(tuple[_Part, _Part]).decode
        self._decode_piece = msgspec.msgpack.Decoder(_Rows).decode

    @property
    def held(self) -> int:
        return len(self._cells)

    def clear(self) -> None:
        self._cells.clear()

    def save(self) -> None:
        for name, cell in self._cells.items():
            if cell is not None and cell.changed:
                self._save(name, cell)
        self._cells.clear()

    def _save(self, name: bytes, cell: _Cell) -> None:
        left, right = cell.left, cell.right
        parts = [(left.pieces, left.times, left.values), (right.pieces, right.times, right.values)]
        data = self._encode(parts)
        if len(data) > _PIECE_BYTES:
            for number, (letter, (pieces, *rows)) in enumerate(zip(_LETTERS, parts, strict=True)):
                piece = self._encode(rows)
                if 2 * len(piece) >= _PIECE_BYTES:
                    self._store.put(_piece(name, letter, pieces), piece)
                    parts[number] = pieces + 1, [], []
            data = self._encode(parts)
        self._store.put(name, data)

    def take(self, side: Side, key: bytes, row: Row) -> tuple[list[Row], Row | None]:
        time_ms, value = row
        first, last, span = time_ms - side.back_ms, time_ms + side.ahead_ms, self._span
        start = time_ms - time_ms % span
        name = b"c" + time_bytes(start) + key
        cell = self._cells.get(name, _ABSENT)
        if cell is _ABSENT:
            cell = self._load(name)
        found: list[Row] = []
        if cell is None:
            cell = self._cells[name] = _Cell((0, [], []), (0, [], []))
        else:
            self._find(side, name, cell, first, last, found)
        if first < start:
            self._look(side, start - span, key, first, last, found)
        elif last >= start + span:
            self._look(side, start + span, key, first, last, found)
        half = cell.left if side.is_left else cell.right
        half.times.append(time_ms)
        half.values.append(value)
        cell.changed = True
        if len(found) > 1:
            found.sort(key=_by_time)
        return found, None

    def at(self, side: Side, key: bytes, time_ms: int) -> list[bytes | None]:
        name = b"c" + time_bytes(time_ms - time_ms % self._span) + key
        data = self._store.get(name)
        if data is None:
            raise ValueError("the store names a message that is missing there")
        pieces, times, values = self._decode(data)[0 if side.is_left else 1]
        rows = [*self._pieces(name, side.letter, pieces), *zip(times, values, strict=True)]
        return [value for time, value in rows if time == time_ms]

    def drop(self, done: int, before: int, most: int | None) -> None:
        beyond = self._span + self._ahead
        last = done - beyond  # the start of the last cell that goes
        if last // self._span == (before - beyond) // self._span or last < NO_WATERMARK:
            return
        end = b"d" if done == END_OF_TIME else b"c" + time_bytes(last + 1)
        for name, data in islice(self._store.range(b"c", end), most):
            for letter, part in zip(_LETTERS, self._decode(data), strict=True):
                for number in range(part[0]):
                    self._store.delete(_piece(name, letter, number))
            self._store.delete(name)

    def _look(self, side: Side, start: int, key: bytes, first: int, last: int, found: list[Row]) -> None:
        name = b"c" + time_bytes(start) + key
        cell = self._cells.get(name, _ABSENT)
        if cell is _ABSENT:
            cell = self._load(name)
        if cell is not None:
            self._find(side, name, cell, first, last, found)

    def _find(self, side: Side, name: bytes, cell: _Cell, first: int, last: int, found: list[Row]) -> None:
        half, letter = (cell.right, b"r") if side.is_left else (cell.left, b"l")
        if half.pieces:
            if half.older is None:
                half.older = list(self._pieces(name, letter, half.pieces))
            found += [row for row in half.older if first <= row[0] <= last]
        for number, time_ms in enumerate(half.times):
            if first <= time_ms <= last:
                found.append((time_ms, half.values[number]))

    def _load(self, name: bytes) -> _Cell | None:
        data = self._store.get(name)
        cell = self._cells[name] = None if data is None else _Cell(*self._decode(data))
        return cell

    def _pieces(self, name: bytes, letter: bytes, pieces: int) -> Iterator[Row]:
        for number in range(pieces):
            data = self._store.get(_piece(name, letter, number))
            if data is None:
                raise ValueError(f"piece {number} of a cell is missing in the store")
            yield from zip(*self._decode_piece(data), strict=True)


def _piece(name: bytes, letter: bytes, number: int) -> bytes:
    return b"p" + name[1:9] + letter + number.to_bytes(4, "big") + name[9:]


def key_of_newest(entry: bytes) -> bytes:
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


def key_of_waiting(entry: bytes) -> bytes:
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
