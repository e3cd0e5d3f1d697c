"""Windows of one size that are not complete, for operators that keep only the content of a window.

They are stored as cells that have nothing but their content; `cells.py` lists the entries. Stored contents are also
kept in memory, as the same bytes, up to `KEPT_BYTES`. Most messages go to few windows, whose cells are then neither
looked up in the store for each key, nor searched for in the order of time when the window is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from penstock.api.serdes import Serde
from penstock.api.state.store import KeyValueStore
from penstock.batch.batch import END_OF_TIME
from penstock.runtime.windows.cells import PLAIN, WindowSlot, key_slot, slot_key
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
