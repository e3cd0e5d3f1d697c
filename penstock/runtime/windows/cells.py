"""A window operator's cells in its store, one for each key and window, found by key and in the order of their ends.

| entry | value |
|---|---|
| `o` end start key | a cell that is not complete: an `_Entry` |
| `f` end start key | a complete cell that is kept for late messages |
| `p` length of (end start key), (end start key), number | a piece of a content that is only added to |
| `t` time end start key | the batch time at which a trigger of the cell fires |
| `s` key | the sessions of a key: [start, end] of each |

Times are eight bytes whose order is that of the numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from penstock.api.serdes import Serde
from penstock.api.state.store import KeyValueStore
from penstock.base.documents import decoder
from penstock.batch.batch import END_OF_TIME as NEVER
from penstock.runtime.time_bytes import BIAS, out_of_range, time_bytes, time_of
from penstock.runtime.windows.contents import WindowContent

_SPAN = struct.Struct(">QQ")
_pack, _unpack = _SPAN.pack, _SPAN.unpack_from
PLAIN = b"\x00"
"""The first byte of a cell that has nothing but its content; an `_Entry` begins with another one."""
NO_KEY = b"\x00"


def key_slot(key: bytes | None) -> bytes:
    return NO_KEY if key is None else b"\x01" + key


def slot_key(slot: bytes) -> bytes | None:
    return None if slot == NO_KEY else slot[1:]


def key_in(entry: bytes) -> bytes | None:
    """The key of the message that an entry's key belongs to."""
    match entry[:1]:
        case b"s":
            return slot_key(entry[1:])
        case b"t":
            return slot_key(entry[25:])
        case b"p":
            return slot_key(entry[21:-4])
        case _:
            return slot_key(entry[17:])


class _Entry(msgspec.Struct, array_like=True):
    """A cell as it is stored."""

    number: int
    messages: int
    since: int
    first_ms: int
    last_ms: int
    fired: bool
    timer_ms: int
    pieces: int
    content: bytes


class WindowSlot(NamedTuple):
    """A window of a key."""

    end: int
    start: int
    key: bytes
    """As `key_slot` makes it."""

    def encode(self) -> bytes:
        try:
            return _pack(self.end + BIAS, self.start + BIAS) + self.key
        except struct.error as error:
            raise out_of_range(self.start, self.end) from error

    @classmethod
    def decode(cls, data: bytes) -> WindowSlot:
        end, start = _unpack(data)
        return cls(end - BIAS, start - BIAS, data[16:])


class Cell:
    """A window of a key, as the running attempt sees it."""

    __slots__ = (
        "complete",
        "content",
        "fired",
        "first_ms",
        "last_ms",
        "messages",
        "number",
        "pieces",
        "place",
        "since",
        "slot",
        "stored",
        "timer_ms",
    )

    def __init__(self, slot: WindowSlot, content: Any, *, complete: bool = False) -> None:
        self.slot = slot
        self.place = slot.encode()
        self.content = content
        """The new part, if the content is only added to."""
        self.complete = complete
        """The window has fired on time: later messages are late."""
        self.number = 0
        """Panes emitted."""
        self.messages = 0
        """All messages of the window. A node that does not count (`WindowNode._counts`) leaves out those that come
        before the window is complete."""
        self.since = 0
        """Messages since the last pane."""
        self.first_ms = self.last_ms = 0
        """Batch times of the first and of the last message since the last pane."""
        self.fired = False
        """A trigger has fired it, before it was complete or since then. A trigger that does not repeat is done."""
        self.timer_ms = NEVER
        """The batch time at which a trigger fires, as it is stored."""
        self.pieces = 0
        self.stored = False


class Cells:
    """The cells of an operator in its store."""

    def __init__(self, store: KeyValueStore[bytes, bytes], content: WindowContent, key_serde: Serde[Any]) -> None:
        self._store = store
        self._content = content
        self._key_serde = key_serde
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = decoder(_Entry)

    def new(self, slot: WindowSlot, *, complete: bool = False) -> Cell:
        """A cell without messages. A window that is complete before its first message is so late that only its late
        messages will be known."""
        return Cell(slot, self._content.initial(), complete=complete)

    def load(self, slot: WindowSlot) -> Cell | None:
        return self.load_from(slot, complete=False) or self.load_from(slot, complete=True)

    def load_from(self, slot: WindowSlot, *, complete: bool) -> Cell | None:
        """The window's complete (`complete=True`) or incomplete cell, or None."""
        data = self._store.get((b"f" if complete else b"o") + slot.encode())
        return None if data is None else self._cell(slot, data, complete=complete)

    def _cell(self, slot: WindowSlot, data: bytes, *, complete: bool) -> Cell:
        if data[:1] == PLAIN:
            cell = Cell(slot, self._content.from_bytes(data[1:]), complete=complete)
            cell.stored = True
            return cell
        entry = self._decoder.decode(data)
        appends = self._content.appends
        cell = Cell(slot, self._content.initial() if appends else self._content.from_bytes(entry.content))
        cell.complete = complete
        cell.number, cell.messages, cell.since = entry.number, entry.messages, entry.since
        cell.first_ms, cell.last_ms, cell.fired = entry.first_ms, entry.last_ms, entry.fired
        cell.timer_ms, cell.pieces, cell.stored = entry.timer_ms, entry.pieces, True
        return cell

    def save(self, cell: Cell, timer_ms: int) -> None:
        place = cell.place
        if cell.timer_ms != timer_ms:
            self._drop_timer(cell)
            if timer_ms != NEVER:
                self._store.put(b"t" + time_bytes(timer_ms) + place, b"")
            cell.timer_ms = timer_ms
        content = b""
        if not self._content.appends:
            content = self._written(cell)
        elif cell.content:
            self._store.put(_piece(place, cell.pieces), self._written(cell))
            cell.pieces += 1
            cell.content = self._content.initial()
        if not (cell.number or cell.since or cell.messages or self._content.appends):
            data = PLAIN + content
        else:
            data = self._encoder.encode(self._entry(cell, timer_ms, content))
        self._store.put((b"f" if cell.complete else b"o") + place, data)
        cell.stored = True

    def _written(self, cell: Cell) -> bytes:
        try:
            return self._content.to_bytes(cell.content)
        except Exception as error:
            key = slot_key(cell.slot.key)
            shown = None if key is None else self._key_serde.from_bytes(key)
            raise self._content.unwritable(cell.content, shown, error) from error

    def _entry(self, cell: Cell, timer_ms: int, content: bytes) -> _Entry:
        return _Entry(
            cell.number,
            cell.messages,
            cell.since,
            cell.first_ms,
            cell.last_ms,
            cell.fired,
            timer_ms,
            cell.pieces,
            content,
        )

    def take_out(self, cell: Cell) -> None:
        """Remove the cell from the store, if it is there; it has its whole content afterwards."""
        if not cell.stored:
            return
        cell.content = self.whole(cell)
        self._drop_timer(cell)
        self._drop_pieces(cell)
        self._store.delete((b"f" if cell.complete else b"o") + cell.place)
        cell.stored = False

    def empty(self, cell: Cell) -> None:
        """Forget the content: the next pane begins with none."""
        self._drop_pieces(cell)
        cell.content = self._content.initial()

    def close(self, cell: Cell) -> None:
        """Make a stored cell complete, and keep it for late messages."""
        if not cell.stored or cell.complete:
            raise ValueError("only a stored cell that is not complete can be closed")
        self._store.delete(b"o" + cell.place)
        cell.complete = True
        self.save(cell, NEVER)

    def whole(self, cell: Cell) -> Any:
        if not cell.pieces:
            return cell.content
        found = self._content.initial()
        for number in range(cell.pieces):
            piece = self._store.get(_piece(cell.place, number))
            if piece is None:
                raise ValueError(f"piece {number} of a window's content is missing in the store")
            found = self._content.merge(found, self._content.from_bytes(piece))
        return self._content.merge(found, cell.content)

    def _drop_timer(self, cell: Cell) -> None:
        if cell.timer_ms != NEVER:
            self._store.delete(b"t" + time_bytes(cell.timer_ms) + cell.place)
            cell.timer_ms = NEVER

    def _drop_pieces(self, cell: Cell) -> None:
        for number in range(cell.pieces):
            self._store.delete(_piece(cell.place, number))
        cell.pieces = 0

    # In the order of time.

    def complete_by(self, watermark: int) -> Iterator[Cell]:
        """Cells whose window ends at the watermark or before and has not fired, by end, start and key."""
        for key, data in self._store.range(b"o", b"o" + time_bytes(min(watermark, NEVER - 1) + 1)):
            yield self._cell(WindowSlot.decode(key[1:]), data, complete=False)
        if watermark >= NEVER:  # those without an end
            last = b"o" + time_bytes(NEVER)
            for key, data in self._store.range(last, b"p"):
                yield self._cell(WindowSlot.decode(key[1:]), data, complete=False)

    def kept_until(self, end: int) -> Iterator[Cell]:
        """Complete cells whose window ends at `end` or before."""
        for key, data in self._store.range(b"f", b"f" + time_bytes(min(end, NEVER - 1) + 1)):
            yield self._cell(WindowSlot.decode(key[1:]), data, complete=True)

    def triggered_by(self, batch_ms: int) -> Iterator[Cell]:
        """Cells with a trigger that fires at this batch time or before, by its time."""
        for key, _ in self._store.range(b"t", b"t" + time_bytes(min(batch_ms, NEVER - 1) + 1)):
            cell = self.load(WindowSlot.decode(key[9:]))
            if cell is None:
                raise ValueError("a trigger in the store belongs to no window")
            yield cell

    # Sessions of a key.

    def sessions(self, key: bytes) -> list[Cell]:
        found = [self.load(WindowSlot(end, start, key)) for start, end in self._spans(key)]
        if any(cell is None for cell in found):
            raise ValueError("a session that the store names is missing there")
        return [cell for cell in found if cell is not None]

    def save_sessions(self, key: bytes, cells: list[Cell]) -> None:
        self._save_spans(key, [(cell.slot.start, cell.slot.end) for cell in cells])

    def forget_session(self, slot: WindowSlot) -> None:
        self._save_spans(slot.key, [span for span in self._spans(slot.key) if span != (slot.start, slot.end)])

    def _spans(self, key: bytes) -> list[tuple[int, int]]:
        data = self._store.get(b"s" + key)
        return [] if data is None else msgspec.msgpack.decode(data, type=list[tuple[int, int]])

    def _save_spans(self, key: bytes, spans: list[tuple[int, int]]) -> None:
        if spans:
            self._store.put(b"s" + key, self._encoder.encode(sorted(spans)))
        else:
            self._store.delete(b"s" + key)


def next_end(store: KeyValueStore[bytes, bytes]) -> int | None:
    """The end of the first window in a store that is not complete; None if there is none, or it has no end."""
    first = next(iter(store.range(b"o", b"o" + time_bytes(NEVER))), None)
    return None if first is None else time_of(first[0][1:9])


def next_trigger(store: KeyValueStore[bytes, bytes]) -> int | None:
    """The first batch time at which a trigger of a store fires; None if there is none."""
    first = next(iter(store.range(b"t", b"u")), None)
    return None if first is None else time_of(first[0][1:9])


def _piece(place: bytes, number: int) -> bytes:
    return b"p" + len(place).to_bytes(4, "big") + place + number.to_bytes(4, "big")
