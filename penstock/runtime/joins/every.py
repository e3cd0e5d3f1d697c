"""keep="all": the messages of a key in cells, each of which has those of one span of time.

| entry | value |
|---|---|
| side start key | a cell: how many pieces it has, and times and values of the messages that are in none of them |
| `p` side start number key | a piece: times and values of older messages of the cell |

The side is `l` or `r`. A span is as long as the bounds of the join, therefore all partners of a message are in two
cells, which are read by their names. A cell is dropped as a whole, and no entry says when a message expires. A cell of
many messages is written in pieces, so that a message costs the same, however many came before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from typing import Any

import msgspec

from penstock.api.store import KeyValueStore
from penstock.runtime.batch import END_OF_TIME, NO_WATERMARK
from penstock.runtime.joins.kept import Kept
from penstock.runtime.joins.side import Row, Side
from penstock.runtime.time_bytes import time_bytes

_PIECE_BYTES = 4096
"""A cell that is larger becomes a piece."""

_ABSENT: Any = object()


class _Cell:
    """A cell as the running attempt sees it."""

    __slots__ = ("changed", "older", "pieces", "times", "values")

    def __init__(self, pieces: int, times: list[int], values: list[bytes | None]) -> None:
        self.pieces = pieces
        self.times = times
        """Of the messages that are in no piece, as they came."""
        self.values = values
        self.older: list[Row] | None = None
        """The messages in the pieces, once they were read."""
        self.changed = False


class EveryRow(Kept):
    """All messages of the span."""

    def __init__(self, store: KeyValueStore[bytes, bytes], sides: tuple[Side, Side]) -> None:
        self._store = store
        self._sides = sides
        self._span = sides[0].back_ms + sides[0].ahead_ms + 1
        self._cells: dict[bytes, _Cell | None] = {}
        """By name; None: it is not there."""
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(tuple[int, list[int], list[bytes | None]]).decode
        self._decode_piece = msgspec.msgpack.Decoder(tuple[list[int], list[bytes | None]]).decode

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
            data = encode((cell.pieces, cell.times, cell.values))
            if len(data) > _PIECE_BYTES:
                put(_piece(name, cell.pieces), encode((cell.times, cell.values)))
                data = encode((cell.pieces + 1, [], []))
            put(name, data)
        self._cells.clear()

    def partners(self, side: Side, key: bytes, first_ms: int, last_ms: int) -> list[Row]:
        found: list[Row] = []
        for start in range(first_ms - first_ms % self._span, last_ms + 1, self._span):
            name = side.letter + time_bytes(start) + key
            cell = self._cells.get(name, _ABSENT)
            if cell is _ABSENT:
                cell = self._load(name)
            if cell is not None:
                if cell.pieces:
                    found += [row for row in self._older(name, cell) if first_ms <= row[0] <= last_ms]
                for number, time_ms in enumerate(cell.times):
                    if first_ms <= time_ms <= last_ms:
                        found.append((time_ms, cell.values[number]))
        if len(found) > 1:
            found.sort(key=itemgetter(0))
        return found

    def add(self, side: Side, key: bytes, row: Row) -> Row | None:
        time_ms, value = row
        name = side.letter + time_bytes(time_ms - time_ms % self._span) + key
        cell = self._cells.get(name, _ABSENT)
        if cell is _ABSENT:
            cell = self._load(name)
        if cell is None:
            cell = self._cells[name] = _Cell(0, [], [])
        cell.times.append(time_ms)
        cell.values.append(value)
        cell.changed = True
        return None

    def at(self, side: Side, key: bytes, time_ms: int) -> list[bytes | None]:
        name = side.letter + time_bytes(time_ms - time_ms % self._span) + key
        data = self._store.get(name)
        if data is None:
            raise ValueError("the store names a message that is missing there")
        pieces, times, values = self._decode(data)
        rows = [*self._pieces(name, pieces), *zip(times, values, strict=True)]
        return [value for time, value in rows if time == time_ms]

    def drop(self, done: int, before: int, most: int | None) -> None:
        for side in self._sides:
            beyond = self._span + side.ahead_ms
            last = done - beyond  # the start of the last cell that goes
            if last // self._span == (before - beyond) // self._span or last < NO_WATERMARK:
                continue
            end = side.letter + (b"\xff" * 9 if done == END_OF_TIME else time_bytes(last + 1))
            for name, data in islice(self._store.range(side.letter, end), most):
                for number in range(self._decode(data)[0]):
                    self._store.delete(_piece(name, number))
                self._store.delete(name)

    def _load(self, name: bytes) -> _Cell | None:
        data = self._store.get(name)
        cell = self._cells[name] = None if data is None else _Cell(*self._decode(data))
        return cell

    def _older(self, name: bytes, cell: _Cell) -> list[Row]:
        if cell.older is None:
            cell.older = list(self._pieces(name, cell.pieces))
        return cell.older

    def _pieces(self, name: bytes, pieces: int) -> Iterator[Row]:
        for number in range(pieces):
            data = self._store.get(_piece(name, number))
            if data is None:
                raise ValueError(f"piece {number} of a cell is missing in the store")
            yield from zip(*self._decode_piece(data), strict=True)


def _piece(name: bytes, number: int) -> bytes:
    return b"p" + name[:9] + number.to_bytes(4, "big") + name[9:]
