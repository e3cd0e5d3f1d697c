"""Windows of one size that begin at regular intervals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from penstock.api.time.windows import Firing as FiringType
from penstock.api.time.windows import Fixed, TimeWindow, WindowPane
from penstock.batch.batch import END_OF_TIME, Due
from penstock.graph.specs import WindowSpec
from penstock.runtime.messages.columns import MessageColumns, Target, index_of_last
from penstock.runtime.operators.base import Firing, Firings, Node, StageContext
from penstock.runtime.windows.cells import Cell, WindowSlot, key_slot
from penstock.runtime.windows.node import WindowNode, next_due
from penstock.runtime.windows.open_windows import OpenWindow, OpenWindows

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
