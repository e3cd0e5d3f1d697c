"""keep="all": the messages of a key in cells, each of which has those of one span of time.

| entry | value |
|---|---|
| `c` start key | a cell: how many pieces it has, and of each side the times and values of messages that are in none |
| `p` start number key | a piece: of each side the times and values of messages of the cell that came earlier |

A span is as long as the bounds of the join. All partners of a message are therefore in its own cell and in one beside
it, which are read by their names. No entry says when a message expires: a cell is dropped as a whole. A cell of many
messages is written in pieces, so that a message costs the same, however many came before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec

from penstock.api.store import KeyValueStore
from penstock.runtime.batch import END_OF_TIME, NO_WATERMARK
from penstock.runtime.joins.kept import Kept
from penstock.runtime.joins.side import Row, Side
from penstock.runtime.time_bytes import time_bytes

_PIECE_BYTES = 4096
"""A cell that is larger becomes a piece."""

_Columns: TypeAlias = tuple[list[int], list[bytes | None], list[int], list[bytes | None]]
"""Times and values of left messages, and of right ones."""
_ABSENT: Any = object()
_by_time = itemgetter(0)


class _Cell:
    """A cell as the running attempt sees it."""

    __slots__ = ("changed", "left", "older", "pieces", "right")

    def __init__(self, pieces: int, columns: _Columns) -> None:
        self.pieces = pieces
        self.left, self.right = (columns[0], columns[1]), (columns[2], columns[3])
        """Times and values of the messages that are in no piece, as they came."""
        self.older: list[_Columns] | None = None
        """The pieces, once they were read."""
        self.changed = False


class EveryRow(Kept):
    """All messages of the span."""

    def __init__(self, store: KeyValueStore[bytes, bytes], sides: tuple[Side, Side]) -> None:
        self._store = store
        self._span = sides[0].back_ms + sides[0].ahead_ms + 1
        self._ahead = max(side.ahead_ms for side in sides)
        self._cells: dict[bytes, _Cell | None] = {}
        """By name; None: it is not there."""
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(
            tuple[int, list[int], list[bytes | None], list[int], list[bytes | None]]
        ).decode
        self._decode_piece = msgspec.msgpack.Decoder(_Columns).decode

    @property
    def held(self) -> int:
        return len(self._cells)

    def clear(self) -> None:
        self._cells.clear()

    def save(self) -> None:
        put, encode = self._store.put, self._encode
        for name, cell in self._cells.items():
            if cell is None or not cell.changed:
                continue
            data = encode((cell.pieces, *cell.left, *cell.right))
            if len(data) > _PIECE_BYTES:
                put(_piece(name, cell.pieces), encode((*cell.left, *cell.right)))
                data = encode((cell.pieces + 1, (), (), (), ()))
            put(name, data)
        self._cells.clear()

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
            cell = self._cells[name] = _Cell(0, ([], [], [], []))
        else:
            self._find(side, name, cell, first, last, found)
        if first < start:
            self._look(side, start - span, key, first, last, found)
        elif last >= start + span:
            self._look(side, start + span, key, first, last, found)
        times, values = cell.left if side.is_left else cell.right
        times.append(time_ms)
        values.append(value)
        cell.changed = True
        if len(found) > 1:
            found.sort(key=_by_time)
        return found, None

    def at(self, side: Side, key: bytes, time_ms: int) -> list[bytes | None]:
        name = b"c" + time_bytes(time_ms - time_ms % self._span) + key
        data = self._store.get(name)
        if data is None:
            raise ValueError("the store names a message that is missing there")
        pieces, *_ = decoded = self._decode(data)
        parts = [*self._pieces(name, pieces), decoded[1:]]
        rows = [row for part in parts for row in zip(*(part[:2] if side.is_left else part[2:]), strict=True)]
        return [value for time, value in rows if time == time_ms]

    def drop(self, done: int, before: int, most: int | None) -> None:
        beyond = self._span + self._ahead
        last = done - beyond  # the start of the last cell that goes
        if last // self._span == (before - beyond) // self._span or last < NO_WATERMARK:
            return
        end = b"d" if done == END_OF_TIME else b"c" + time_bytes(last + 1)
        for name, data in islice(self._store.range(b"c", end), most):
            for number in range(self._decode(data)[0]):
                self._store.delete(_piece(name, number))
            self._store.delete(name)

    def _look(self, side: Side, start: int, key: bytes, first: int, last: int, found: list[Row]) -> None:
        """Add the partners that are in another cell."""
        name = b"c" + time_bytes(start) + key
        cell = self._cells.get(name, _ABSENT)
        if cell is _ABSENT:
            cell = self._load(name)
        if cell is not None:
            self._find(side, name, cell, first, last, found)

    def _find(self, side: Side, name: bytes, cell: _Cell, first: int, last: int, found: list[Row]) -> None:
        """Add the messages of the cell that are on the other side and within these times."""
        if cell.pieces:
            if cell.older is None:
                cell.older = list(self._pieces(name, cell.pieces))
            for piece in cell.older:
                rows = zip(*(piece[2:] if side.is_left else piece[:2]), strict=True)
                found += [row for row in rows if first <= row[0] <= last]
        times, values = cell.right if side.is_left else cell.left
        for number, time_ms in enumerate(times):
            if first <= time_ms <= last:
                found.append((time_ms, values[number]))

    def _load(self, name: bytes) -> _Cell | None:
        data = self._store.get(name)
        if data is None:
            self._cells[name] = None
            return None
        pieces, left, left_values, right, right_values = self._decode(data)
        cell = self._cells[name] = _Cell(pieces, (left, left_values, right, right_values))
        return cell

    def _pieces(self, name: bytes, pieces: int) -> Iterator[_Columns]:
        for number in range(pieces):
            data = self._store.get(_piece(name, number))
            if data is None:
                raise ValueError(f"piece {number} of a cell is missing in the store")
            yield self._decode_piece(data)


def _piece(name: bytes, number: int) -> bytes:
    return b"p" + name[1:9] + number.to_bytes(4, "big") + name[9:]
