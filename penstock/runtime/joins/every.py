"""keep="all": the messages of a key are kept in cells, one for each span of time.

| entry | value |
|---|---|
| `c` start key | a cell: for each side the number of its pieces, and times and values of the messages in none |
| `p` start side number key | a piece: times and values of earlier messages of one side of the cell |

A span is as long as the bounds of the join. All partners of a message are therefore in its own cell and in one beside
it, and both are read by name. No entry says when a message expires: a cell is dropped as a whole. A large cell is
written in pieces, so that a message costs the same, however many came before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec

from penstock.api.store import KeyValueStore
from penstock.batch.batch import END_OF_TIME, NO_WATERMARK
from penstock.runtime.joins.kept import KeptMessages, Row, Side
from penstock.runtime.timers import time_bytes

_PIECE_BYTES = 4096
"""A larger cell moves into pieces the messages of each side that take half of this or more."""

_Rows: TypeAlias = tuple[list[int], list[bytes | None]]
_Part: TypeAlias = tuple[int, list[int], list[bytes | None]]
"""One side of a stored cell: the number of its pieces, and the messages that are in no piece."""
_ABSENT: Any = object()
_LETTERS = (b"l", b"r")
_by_time = itemgetter(0)


def key_in(entry: bytes) -> bytes:
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
