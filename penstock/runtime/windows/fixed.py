"""Windows of one size that begin at regular intervals.

Windows that are not complete are stored as cells, which `cells.py` lists. Those of operators that keep only the
content of a window have nothing but that. Stored contents are also kept in memory, as the same bytes, up to
`KEPT_BYTES`. Most messages go to few windows, whose cells are then neither looked up in the store for each key, nor
searched for in the order of time when the window is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from penstock.api.serdes import Serde
from penstock.api.store import KeyValueStore
from penstock.api.time.firing import Firing as FiringType
from penstock.api.time.firing import TimeWindow, WindowPane
from penstock.api.time.windows import Fixed
from penstock.batch.batch import END_OF_TIME, Due
from penstock.graph.specs import WindowSpec
from penstock.runtime.messages.columns import MessageColumns, Target, index_of_last
from penstock.runtime.operators.base import Firing, Firings, Node, StageContext
from penstock.runtime.operators.window import WindowNode, next_due
from penstock.runtime.windows.cells import PLAIN, Cell, WindowSlot, key_slot, slot_key
from penstock.runtime.windows.contents import WindowContent

KEPT_BYTES = 32 << 20
"""Memory for the stored cells that an operator of a task keeps."""
_CELL_BYTES = 200
"""Memory of a cell besides its key and its content."""
_BLOCK_BYTES = 1 << 20
"""Stored bytes of the contents that are taken out at once, about."""

Key: TypeAlias = "bytes | None"
Taken: TypeAlias = tuple[list[Key], list[Any]]
_KEYED = key_slot(b"")
_BEHIND_ALL_KEYS = b"\x02"


class OpenWindow:
    """One window, with the contents of its keys."""

    __slots__ = ("end", "held", "left", "new", "place", "start", "stored")

    def __init__(self, start: int, end: int, stored: dict[Key, bytes] | None) -> None:
        self.start, self.end = start, end
        self.place = b"o" + WindowSlot(end, start, b"").encode()
        self.held: dict[Key, Any] = {}
        """Contents that the running attempt has changed and not stored yet."""
        self.stored = stored
        """All its stored contents; None: only the store knows."""
        self.left: Iterator[tuple[Key, bytes]] | None = None
        """While it fires: the cells that have not fired."""
        self.new: set[Key] = set()
        """While it fires: keys without a cell in the store."""

    def cells(self, keys: Iterable[Key]) -> list[bytes]:
        keyed = self.place + _KEYED
        return [self.place + key_slot(None) if key is None else keyed + key for key in keys]


class OpenWindows:
    """An operator's windows that are not complete, as the running attempt sees them. They belong to the operator, which
    goes with an attempt that is discarded."""

    def __init__(
        self, store: KeyValueStore[bytes, bytes], content: WindowContent, key_serde: Serde[Any], size_ms: int
    ) -> None:
        self._store = store
        self._key_serde = key_serde
        self._content = content
        self._size_ms = size_ms
        self._by_start: dict[int, OpenWindow] | None = None
        self._kept = 0
        """Bytes that the `stored` of all windows take in memory."""
        self.held = 0
        """Cells loaded to be held since the last `store`."""

    def _windows(self) -> dict[int, OpenWindow]:
        """All windows with a cell, by their start. Finds the windows that an earlier process left by one look-up for
        each window, not for each cell."""
        if self._by_start is None:
            self._by_start, behind = {}, b"o"
            while (first := next(iter(self._store.range(behind, b"p")), None)) is not None:
                slot = WindowSlot.decode(first[0][1:])
                window = self._by_start[slot.start] = OpenWindow(slot.start, slot.end, None)
                behind = window.place + _BEHIND_ALL_KEYS
        return self._by_start

    def get(self, start: int) -> OpenWindow:
        windows = self._windows()
        window = windows.get(start)
        if window is None:
            window = windows[start] = OpenWindow(start, start + self._size_ms, {})
        return window

    def load(self, window: OpenWindow, key: Key) -> Any:
        """The content of a key that is not held. The caller holds it from now on."""
        self.held += 1
        if window.stored is None:
            data: bytes | None = self._store.get(window.place + key_slot(key))
        else:
            data = window.stored.get(key)
        return self._content.initial() if data is None else self._content.from_bytes(data[1:])

    def store(self) -> None:
        """Store the held contents, and hold none."""
        for window in self._windows().values():
            if window.held:
                encoded = self._encoded(window)
                self._store.put_all(dict(zip(window.cells(encoded), encoded.values(), strict=True)))
                self._keep(window, encoded)
        self.held = 0
        if self._kept > KEPT_BYTES:
            self._forget_some()

    def _encoded(self, window: OpenWindow) -> dict[Key, bytes]:
        """The held contents as they are stored. They are no longer held."""
        encode, held = self._content.to_bytes, window.held
        window.held = {}
        key: Key = None
        content: Any = None
        encoded: dict[Key, bytes] = {}
        try:
            for key, content in held.items():
                encoded[key] = PLAIN + encode(content)
        except Exception as error:
            shown = None if key is None else self._key_serde.from_bytes(key)
            raise self._content.unwritable(content, shown, error) from error
        return encoded

    def _keep(self, window: OpenWindow, encoded: dict[Key, bytes]) -> None:
        if window.stored is not None:
            before = {key: window.stored[key] for key in window.stored.keys() & encoded.keys()}
            window.stored.update(encoded)
            self._kept += _size(encoded) - _size(before)

    def _forget_some(self) -> None:
        """Keep no more than may be kept. Forgets the oldest windows first, because they get the fewest messages."""
        for window in self.due(END_OF_TIME):
            if self._kept > KEPT_BYTES:
                self._forget(window)

    def _forget(self, window: OpenWindow) -> None:
        if window.stored is not None:
            self._kept -= _size(window.stored)
            window.stored = None

    # In the order of time.

    def due(self, watermark: int) -> list[OpenWindow]:
        """The windows that end at the watermark or before, in order."""
        found = [window for window in self._windows().values() if window.end <= watermark]
        return sorted(found, key=lambda window: window.end)

    def next_end(self) -> int | None:
        return min((window.end for window in self._windows().values()), default=None)

    def take_out(self, window: OpenWindow, most: int) -> Taken:
        """Remove the next cells from a complete window, at most `most`, in the order of their keys. Returns none, and
        removes the window itself, once all cells were taken."""
        if window.left is None:
            window.left = self._begin_firing(window)
        keys, found, size = [], [], 0
        for key, data in window.left:
            keys.append(key)
            found.append(data)
            size += len(data)
            if len(keys) >= most or size >= _BLOCK_BYTES:
                break
        if not keys:
            self._forget(window)
            del self._windows()[window.start]
        gone = [key for key in keys if key not in window.new] if window.new else keys
        self._store.put_all(dict.fromkeys(window.cells(gone)))
        decode = self._content.from_bytes
        return keys, [decode(data[1:]) for data in found]

    def _begin_firing(self, window: OpenWindow) -> Iterator[tuple[Key, bytes]]:
        """All cells in the order of their keys. A held content never comes into the store if the store has no cell of
        it."""
        encoded = self._encoded(window)
        if window.stored is None:
            self._store.put_all(dict(zip(window.cells(encoded), encoded.values(), strict=True)))
            return self._scan(window)
        window.new = encoded.keys() - window.stored.keys()
        self._keep(window, encoded)
        stored = window.stored
        keys = sorted(key for key in stored if key is not None)
        order: list[Key] = [None, *keys] if None in stored else [*keys]
        return ((key, stored[key]) for key in order)

    def _scan(self, window: OpenWindow) -> Iterator[tuple[Key, bytes]]:
        place = window.place
        for key, data in self._store.range(place, place + _BEHIND_ALL_KEYS):
            yield slot_key(key[len(place) :]), data

    def leave(self, window: OpenWindow) -> None:
        """Leave the cells of a complete window that have not fired in the store until the next batch."""
        left = dict(window.left or ()) if window.stored is not None else {}
        kept = {key: data for key, data in left.items() if key in window.new}
        self._store.put_all(dict(zip(window.cells(kept), kept.values(), strict=True)))
        self._forget(window)
        window.left, window.new = None, set()


def _size(cells: Mapping[Key, bytes]) -> int:
    return sum(map(len, cells.values())) + sum(map(len, filter(None, cells))) + _CELL_BYTES * len(cells)


_AT_ONCE = 1024
"""Panes that are emitted together, unless one of them may have to be undone alone."""

_ABSENT: Final = object()


def is_plain(spec: WindowSpec, stage: StageContext) -> bool:
    """True if only the content of a window is kept until it is complete."""
    return spec.window.early is None and not spec.window.keeps_messages and not stage.undoable


class FixedNode(WindowNode):
    """Windows of one size."""

    def __init__(self, spec: WindowSpec, stage: StageContext, downstream: Target, shape: Fixed) -> None:
        super().__init__(spec, stage, downstream, shape)
        self._shape = shape
        self._open: dict[tuple[int, bytes | None], Cell] = {}

    @classmethod
    def of(cls, spec: WindowSpec, stage: StageContext, downstream: Target, shape: Fixed) -> Node:  # type: ignore[override]
        return (PlainNode if is_plain(spec, stage) else FixedNode)(spec, stage, downstream, shape)

    def _take(self, key: bytes | None, value: Any, time_ms: int) -> bool:
        shape, in_time = self._shape, False
        start = time_ms - (time_ms - shape.offset_ms) % shape.every_ms
        while start + shape.size_ms > time_ms:
            in_time = self._take_into(start, key, value, time_ms) or in_time
            start -= shape.every_ms
        return in_time

    def _take_into(self, start: int, key: bytes | None, value: Any, time_ms: int) -> bool:
        """Add a message to the window that begins there. Returns False if it is too late for it."""
        cell = self._open.get((start, key))
        if cell is None:
            if self._too_late(start + self._shape.size_ms):
                return False
            cell = self._open[start, key] = self._cell(start, key)
        self._add(cell, value, time_ms)
        return True

    def _cell(self, start: int, key: bytes | None) -> Cell:
        slot = WindowSlot(start + self._shape.size_ms, start, key_slot(key))
        complete = slot.end <= self._late_watermark
        cell = self._cells.load(slot) if complete else self._cells.load_from(slot, complete=False)
        return self._cells.new(slot, complete=complete) if cell is None else cell


class PlainNode(FixedNode):
    """Windows of one size that keep only their content until they are complete. Their messages are taken, and their
    panes emitted, many at once. Later messages are added to cells, as in other windows."""

    def __init__(self, spec: WindowSpec, stage: StageContext, downstream: Target, shape: Fixed) -> None:
        super().__init__(spec, stage, downstream, shape)
        self._store = stage.stores[spec.stores[0]]
        self._windows = OpenWindows(self._store, self._content, spec.key_serde, shape.size_ms)

    def _held(self) -> int:
        return len(self._open) + self._windows.held

    def _store_open(self) -> None:
        super()._store_open()
        self._windows.store()

    def _store_before_firing(self) -> None:
        super()._store_open()  # what fires in the batch in which it came is never stored

    def next_due(self) -> Due:
        return next_due(self._window, self._windows.next_end(), self._store)

    def _take_all(
        self, keys: Iterable[bytes | None], columns: MessageColumns, times: Sequence[int] | None
    ) -> list[int]:
        rows, position = columns.rows, self._position
        moments = [self._now_ms] * len(rows) if times is None else [times[row] for row in rows]
        take_each = self._take_each_once if self._shape.every_ms == self._shape.size_ms else self._take_each
        elements = position.elements = iter(columns.values)
        try:
            return [index_of_last(elements, len(rows)) for _ in take_each(keys, elements, moments)]
        except BaseException:
            position.row = rows[index_of_last(elements, len(rows))]
            raise
        finally:
            position.elements = None

    def _take_each_once(
        self, keys: Iterable[bytes | None], values: Iterator[Any], moments: Iterable[int]
    ) -> Iterator[None]:
        """Add messages to the one window of each. Yields at each that is too late."""
        offset, size, add, load = self._shape.offset_ms, self._shape.size_ms, self._content.add, self._windows.load
        last: int | None = None
        window: OpenWindow | None = None
        for key, value, time_ms in zip(keys, values, moments, strict=True):
            start = time_ms - (time_ms - offset) % size
            if start != last:
                last, window = start, self._open_window(start)
            if window is None:
                if not self._take_into(start, key, value, time_ms):
                    yield
                continue
            content = window.held.get(key, _ABSENT)
            if content is _ABSENT:
                content = load(window, key)
            window.held[key] = add(content, value, time_ms)

    def _take_each(self, keys: Iterable[bytes | None], values: Iterator[Any], moments: Iterable[int]) -> Iterator[None]:
        for key, value, time_ms in zip(keys, values, moments, strict=True):
            if not self._take(key, value, time_ms):
                yield

    def _take_into(self, start: int, key: bytes | None, value: Any, time_ms: int) -> bool:
        window = self._open_window(start)
        if window is None:
            return super()._take_into(start, key, value, time_ms)
        content = window.held.get(key, _ABSENT)
        if content is _ABSENT:
            content = self._windows.load(window, key)
        window.held[key] = self._content.add(content, value, time_ms)
        return True

    def _open_window(self, start: int) -> OpenWindow | None:
        """The window that begins there, unless it was complete before this batch: some of its cells may have fired."""
        return None if start + self._shape.size_ms <= self._late_watermark else self._windows.get(start)

    def _fire_complete(self, watermark: int, output: int, firing: FiringType) -> Iterator[Firing | Firings]:
        fired = 0
        for window in self._windows.due(watermark):
            while True:
                most = _AT_ONCE if window.end <= output else min(_AT_ONCE, self.at_most - fired)
                if most <= 0:
                    self._windows.leave(window)
                    self._windows.store()
                    return  # the next batch begins at once
                keys, contents = self._windows.take_out(window, most)
                if not keys:
                    break
                fired += len(keys)
                if self._window.allowed_lateness_ms:
                    self._keep_complete(window, keys, contents)
                yield self._panes(window, keys, contents, firing)
        self._windows.store()

    def _keep_complete(self, window: OpenWindow, keys: Sequence[bytes | None], contents: Sequence[Any]) -> None:
        for key, content in zip(keys, contents, strict=True):
            cell = self._cells.new(WindowSlot(window.end, window.start, key_slot(key)), complete=True)
            cell.number = 1
            if self._window.accumulating:
                cell.content = content
            self._cells.save(cell, END_OF_TIME)

    def _panes(
        self, window: OpenWindow, keys: Sequence[bytes | None], contents: Sequence[Any], firing: FiringType
    ) -> Firings:
        span = TimeWindow(window.start, window.end)
        emit = partial(self._emit_all, keys, span, contents, firing)
        return Firings(keys, self._pane_time(window.end - 1), f"{firing} pane 0", emit)

    def _emit_all(
        self,
        keys: Sequence[bytes | None],
        span: TimeWindow,
        contents: Sequence[Any],
        firing: FiringType,
        some: slice,
        first: int,
    ) -> None:
        keys, contents = keys[some], contents[some]
        position, decode, show = self._position, self._spec.key_serde.from_bytes, self._content.shown
        elements = position.elements = iter(keys)
        try:
            shown_keys = [None if key is None else decode(key) for key in elements]
            elements = position.elements = iter(contents)
            shown = [show(content) for content in elements]
        except BaseException:
            position.row = first + index_of_last(elements, len(keys))
            raise
        finally:
            position.elements = None
        emitted = self._spec.shown
        panes = [
            emitted(WindowPane(key, span, message, firing, 0)) for key, message in zip(shown_keys, shown, strict=True)
        ]
        self._downstream.accept(MessageColumns(None, shown_keys, panes, range(first, first + len(keys))))
