"""window: reduces the messages of a span of time, or a number of messages, to panes.

What came to a window during an attempt is held as objects, and stored once at the end of the attempt's input. Then
windows fire: those whose trigger is due, and those that the watermark has passed, in the order of their ends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from penstock.api.graph import WindowSpec
from penstock.api.serdes.failures import Place
from penstock.api.triggers import Trigger
from penstock.api.windows import Counting, Fixed, Session, TimeWindow, WindowPane
from penstock.api.windows import Firing as FiringType
from penstock.runtime.batch import END_OF_TIME, NO_WATERMARK, Batch, Due
from penstock.runtime.columns import Columns, Raw, Target, encode_column, index_of_last
from penstock.runtime.context import failure_in
from penstock.runtime.operators.base import Firing, Firings, Node, Operator, Surroundings
from penstock.runtime.windows.cells import Cell, Cells, Slot, key_slot, slot_key
from penstock.runtime.windows.conditions import due_at, repeats
from penstock.runtime.windows.contents import content_of
from penstock.runtime.windows.open_windows import OpenWindow, OpenWindows

_HELD_CELLS = 100_000
"""Cells that an attempt holds before it stores them."""

_AT_ONCE = 1024
"""Panes that are emitted together, where none of them has to be undone alone."""

_AT_MOST = 100_000
"""On-time panes of an attempt, unless operators downstream rely on more: a batch should not take too long."""

_ABSENT: Final = object()


class WindowOperator(Operator[WindowSpec]):
    """Windows of the messages' keys, or of the whole task."""

    needs_task = True
    sends = True  # messages that are too late

    def place(self, name: str) -> Place:
        return Place(name, "")

    def build(self, surroundings: Surroundings, downstream: Target) -> Node:
        match self.spec.window.shape:
            case Fixed() as fixed:
                node = _PlainNode if _is_plain(self.spec, surroundings) else _FixedNode
                return node(self.spec, surroundings, downstream, fixed)
            case Session(gap_ms):
                return _SessionNode(self.spec, surroundings, downstream, gap_ms)
            case Counting(messages):
                return _CountingNode(self.spec, surroundings, downstream, messages)


def _is_plain(spec: WindowSpec, surroundings: Surroundings) -> bool:
    """Whether nothing is kept of a window but its content, until it is complete."""
    return spec.window.early is None and not spec.window.keeps_messages and not surroundings.undoable


class _WindowNode(Node):
    """What all shapes have in common: lateness, triggers, panes."""

    def __init__(self, spec: WindowSpec, surroundings: Surroundings, downstream: Target) -> None:
        one = Node.of_columns(self._accept, surroundings.position)
        super().__init__(one.accept, one.push)
        self._spec, self._window = spec, spec.window
        self._position = surroundings.position
        self._downstream = downstream
        self._content = content_of(spec.window, spec.message_serde)
        self._cells = Cells(surroundings.stores[spec.stores[0]], self._content)
        self._undoable = surroundings.undoable
        self._open: dict[Any, Any] = {}
        """Cells that are held: what came to them in this attempt is not stored yet."""
        self._counts = spec.window.early is not None or isinstance(spec.window.shape, Counting)
        """Whether it matters how many messages have come, and when."""
        self._triggers = spec.window.early is not None or spec.window.allowed_lateness_ms > 0
        """Whether a window can fire before it is complete, or again."""
        late_to = spec.window.late_to
        self._late_to = None if late_to is None else surroundings.outputs[str(late_to)]
        self._late = surroundings.metrics.new_counter(spec.id, "late-dropped")
        self._begin_at(NO_WATERMARK, 0)

    def _begin_at(self, late: int, now_ms: int) -> None:
        self._late_watermark, self._now_ms = late, now_ms

    def begin(self, batch: Batch) -> None:
        event = self._window.time == "event"
        self._begin_at(batch.late_watermark(self._spec.id) if event else NO_WATERMARK, batch.time_ms)
        self._open.clear()

    # Messages.

    def _accept(self, columns: Columns) -> None:
        times = self._position.page.timestamps if self._window.time == "event" else None
        keys: Iterable[bytes | None] = self._key_bytes(columns) if self._window.keyed else [None] * len(columns.rows)
        try:
            for number in self._take_all(keys, columns, times):
                self._position.row = columns.rows[number]
                self._send_late(columns, number)
            if self._undoable or self._held() > _HELD_CELLS:
                self._store_open()
        except BaseException as error:
            self._open.clear()  # the message is undone in the store; nothing of it may be stored later
            raise failure_in(self._spec.id, error) from error

    def _key_bytes(self, columns: Columns) -> Raw:
        serde = self._spec.key_serde
        written = columns.written_by("key", serde)
        if written is not None:
            return written
        place = Place(f"keys of operator `{self._spec.id}`", "")
        return encode_column("key", serde, columns.keys, columns.rows, self._position, self._spec.id, place)

    def _take_all(self, keys: Iterable[bytes | None], columns: Columns, times: Sequence[int] | None) -> list[int]:
        """Add messages to their windows. Returns the numbers of those that are too late."""
        position, now_ms, take = self._position, self._now_ms, self._take
        late = []
        for number, (row, key, value) in enumerate(zip(columns.rows, keys, columns.values, strict=True)):
            position.row = row
            if not take(key, value, now_ms if times is None else times[row]):
                late.append(number)
        return late

    @abstractmethod
    def _take(self, key: bytes | None, value: Any, time_ms: int) -> bool:
        """Add a message to its windows. False if it is too late for one of them."""

    def _held(self) -> int:
        """How many cells are held."""
        return len(self._open)

    def _store_open(self) -> None:
        """Store the cells that are held, and hold them no longer."""
        for cell in self._open.values():
            self._cells.save(cell, self._timer(cell))
        self._open.clear()

    def _store_before_firing(self) -> None:
        """The end of input: windows fire as they are in the store."""
        self._store_open()

    def _add(self, cell: Cell, value: Any, time_ms: int) -> None:
        cell.content = self._content.add(cell.content, value, time_ms)
        if self._counts or cell.complete:
            if not cell.since:
                cell.first_ms = self._now_ms
            cell.last_ms = self._now_ms
            cell.since += 1
            cell.messages += 1

    def _too_late(self, end: int) -> bool:
        return end + self._window.allowed_lateness_ms <= self._late_watermark

    def _send_late(self, columns: Columns, number: int) -> None:
        if self._late_to is None:
            self._late.inc()
        else:
            self._late_to(columns.keys[number], columns.values[number])

    # Panes.

    def on_end_of_input(self, batch: Batch) -> Iterator[Firing | Firings]:
        self._store_before_firing()
        watermark, output = self._watermarks(batch)
        if self._triggers:
            for cell in self._cells.triggered_by(batch.time_ms):
                if cell.complete:
                    yield self._fire(cell, "late")
                elif cell.slot.end > watermark:  # otherwise it fires on time in the same batch
                    yield self._fire(cell, "early")
        yield from self._fire_complete(watermark, output, "drain" if batch.control == "drain" else "on-time")
        if self._window.allowed_lateness_ms:
            for cell in self._cells.kept_until(max(NO_WATERMARK, watermark - self._window.allowed_lateness_ms)):
                self._cells.take_out(cell)
                self._forget(cell)

    def _watermarks(self, batch: Batch) -> tuple[int, int]:
        """Up to which end windows fire in this batch, and up to which they must."""
        if batch.control != "none":
            return END_OF_TIME, END_OF_TIME
        if self._window.time == "processing":
            return batch.time_ms, batch.time_ms
        watermark = batch.firing_watermark(self._spec.id)
        return watermark, min(watermark, batch.output_watermark(self._spec.id))

    def _fire_complete(self, watermark: int, output: int, firing: FiringType) -> Iterator[Firing | Firings]:
        """The panes of windows that are complete; those that may wait if there are very many."""
        for fired, cell in enumerate(self._cells.complete_by(watermark)):
            if fired >= _AT_MOST and cell.slot.end > output:
                return  # the next batch begins at once
            yield self._complete(cell, firing)

    def next_due(self) -> Due:
        end = self._next_end()
        trigger = self._cells.next_trigger() if self._triggers else None
        if self._window.time == "event":
            return end, trigger
        return None, min((time for time in (end, trigger) if time is not None), default=None)

    def _next_end(self) -> int | None:
        """The end of the first window that is not complete."""
        return self._cells.next_end()

    def _fire(self, cell: Cell, firing: FiringType) -> Firing:
        """A pane of a window that goes on."""
        content, number = self._cells.whole(cell), cell.number
        cell.number += 1
        cell.since, cell.fired = 0, True
        if not self._window.accumulating:
            self._cells.empty(cell)
        self._cells.save(cell, self._timer(cell))
        return self._pane(cell.slot, content, firing, number)

    def _complete(self, cell: Cell, firing: FiringType) -> Firing:
        """The pane of a window that is complete."""
        number = cell.number
        if not (self._window.allowed_lateness_ms and cell.slot.end < END_OF_TIME):
            self._cells.take_out(cell)
            self._forget(cell)
            return self._pane(cell.slot, cell.content, firing, number)
        content = self._cells.whole(cell)
        cell.number += 1
        cell.since, cell.fired = 0, False
        if not self._window.accumulating:
            self._cells.empty(cell)
        self._cells.close(cell)
        return self._pane(cell.slot, content, firing, number)

    def _forget(self, cell: Cell) -> None:
        """A cell is no more in the store."""

    def _timer(self, cell: Cell) -> int:
        """The batch time at which a trigger fires the cell. Without one, late messages fire it in their batch."""
        trigger: Trigger | None = self._window.late if cell.complete else self._window.early
        if trigger is None:
            return cell.last_ms if cell.complete and cell.since else END_OF_TIME
        if cell.fired and not repeats(trigger):
            return END_OF_TIME
        return due_at(trigger, cell.since, cell.first_ms, cell.last_ms)

    def _pane(self, slot: Slot, content: Any, firing: FiringType, number: int) -> Firing:
        bounded = slot.end < END_OF_TIME
        time_ms = slot.end - 1 if bounded else self._now_ms
        span = TimeWindow(slot.start, slot.end) if bounded else None
        key = slot_key(slot.key)
        emit = partial(self._emit, key, span, content, firing, number)
        return Firing(key, time_ms, f"{firing} pane {number}", emit)

    def _emit(self, key: bytes | None, span: TimeWindow | None, content: Any, firing: FiringType, number: int) -> None:
        shown_key = None if key is None else self._spec.key_serde.from_bytes(key)
        pane = WindowPane(shown_key, span, self._content.shown(content), firing, number)
        self._downstream.push(shown_key, pane)


class _FixedNode(_WindowNode):
    """Windows of one size."""

    def __init__(self, spec: WindowSpec, surroundings: Surroundings, downstream: Target, shape: Fixed) -> None:
        super().__init__(spec, surroundings, downstream)
        self._shape = shape
        self._open: dict[tuple[int, bytes | None], Cell] = {}

    def _take(self, key: bytes | None, value: Any, time_ms: int) -> bool:
        shape, in_time = self._shape, False
        start = time_ms - (time_ms - shape.offset_ms) % shape.every_ms
        while start + shape.size_ms > time_ms:
            in_time = self._take_into(start, key, value, time_ms) or in_time
            start -= shape.every_ms
        return in_time

    def _take_into(self, start: int, key: bytes | None, value: Any, time_ms: int) -> bool:
        """Add a message to the window that begins there. False if it is too late for it."""
        cell = self._open.get((start, key))
        if cell is None:
            if self._too_late(start + self._shape.size_ms):
                return False
            cell = self._open[start, key] = self._cell(start, key)
        self._add(cell, value, time_ms)
        return True

    def _cell(self, start: int, key: bytes | None) -> Cell:
        slot = Slot(start + self._shape.size_ms, start, key_slot(key))
        complete = slot.end <= self._late_watermark
        cell = self._cells.load(slot) if complete else self._cells.load_from(slot, complete=False)
        return self._cells.new(slot, complete=complete) if cell is None else cell


class _PlainNode(_FixedNode):
    """Windows of one size of which nothing but the content is kept, until they are complete. Their messages are taken,
    and their panes emitted, many at once. Messages that come later are added to cells, as in other windows."""

    def __init__(self, spec: WindowSpec, surroundings: Surroundings, downstream: Target, shape: Fixed) -> None:
        super().__init__(spec, surroundings, downstream, shape)
        self._windows = OpenWindows(surroundings.stores[spec.stores[0]], self._content, shape.size_ms)

    def _held(self) -> int:
        return len(self._open) + self._windows.held()

    def _store_open(self) -> None:
        super()._store_open()
        self._windows.store()

    def _store_before_firing(self) -> None:
        super()._store_open()  # what fires in the batch in which it came is never stored

    def _next_end(self) -> int | None:
        return self._windows.next_end()

    def _take_all(self, keys: Iterable[bytes | None], columns: Columns, times: Sequence[int] | None) -> list[int]:
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
        """The same for windows that overlap."""
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
                most = _AT_ONCE if window.end <= output else min(_AT_ONCE, _AT_MOST - fired)
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
        """Cells for messages that come late."""
        for key, content in zip(keys, contents, strict=True):
            cell = self._cells.new(Slot(window.end, window.start, key_slot(key)), complete=True)
            cell.number = 1
            if self._window.accumulating:
                cell.content = content
            self._cells.save(cell, END_OF_TIME)

    def _panes(
        self, window: OpenWindow, keys: Sequence[bytes | None], contents: Sequence[Any], firing: FiringType
    ) -> Firings:
        span = TimeWindow(window.start, window.end)
        return Firings(keys, window.end - 1, f"{firing} pane 0", partial(self._emit_all, keys, span, contents, firing))

    def _emit_all(
        self, keys: Sequence[bytes | None], span: TimeWindow, contents: Sequence[Any], firing: FiringType, first: int
    ) -> None:
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
        panes = [WindowPane(key, span, message, firing, 0) for key, message in zip(shown_keys, shown, strict=True)]
        self._downstream.accept(Columns(None, shown_keys, panes, range(first, first + len(keys))))


class _CountingNode(_WindowNode):
    """Windows of so many messages, which fire with the last of them."""

    def __init__(self, spec: WindowSpec, surroundings: Surroundings, downstream: Target, messages: int) -> None:
        super().__init__(spec, surroundings, downstream)
        self._most = messages
        self._open: dict[bytes | None, Cell] = {}

    def _take(self, key: bytes | None, value: Any, time_ms: int) -> bool:
        cell = self._open.get(key)
        if cell is None:
            slot = Slot(END_OF_TIME, 0, key_slot(key))
            cell = self._open[key] = self._cells.load(slot) or self._cells.new(slot)
        self._add(cell, value, time_ms)
        if cell.messages >= self._most:
            self._cells.take_out(cell)
            del self._open[key]
            self._emit(key, None, cell.content, "on-time", cell.number)
        return True


class _SessionNode(_WindowNode):
    """Windows that grow with the messages of a key."""

    def __init__(self, spec: WindowSpec, surroundings: Surroundings, downstream: Target, gap_ms: int) -> None:
        super().__init__(spec, surroundings, downstream)
        self._gap_ms = gap_ms
        self._open: dict[bytes, list[Cell]] = {}
        """By key: all its sessions."""

    def _take(self, key: bytes | None, value: Any, time_ms: int) -> bool:
        slot_key = key_slot(key)
        sessions = self._open.get(slot_key)
        if sessions is None:
            sessions = self._open[slot_key] = self._cells.sessions(slot_key)
        start, end = time_ms, time_ms + self._gap_ms
        met = [cell for cell in sessions if cell.slot.start < end and start < cell.slot.end]
        if met:
            start, end = min(start, met[0].slot.start), max(end, met[-1].slot.end)
        if self._too_late(end):
            return False
        slot = Slot(end, start, slot_key)
        if len(met) == 1 and met[0].slot == slot:
            self._add(met[0], value, time_ms)
            return True
        cell = self._merged(slot, met)
        self._add(cell, value, time_ms)
        self._open[slot_key] = sorted([each for each in sessions if each not in met] + [cell], key=_start)
        return True

    def _merged(self, slot: Slot, met: list[Cell]) -> Cell:
        """One session of several, in their order."""
        cell = self._cells.new(slot, complete=slot.end <= self._late_watermark)
        for number, each in enumerate(met):
            self._cells.take_out(each)
            cell.content = self._content.merge(cell.content, each.content) if number else each.content
            cell.messages += each.messages
            cell.number = max(cell.number, each.number)
            if each.since:
                cell.first_ms = min(cell.first_ms, each.first_ms) if cell.since else each.first_ms
                cell.last_ms = max(cell.last_ms, each.last_ms)
            cell.since += each.since
            cell.fired = cell.fired or (each.fired and each.complete == cell.complete)
        return cell

    def _store_open(self) -> None:
        for key, sessions in self._open.items():
            for cell in sessions:
                self._cells.save(cell, self._timer(cell))
            self._cells.save_sessions(key, sessions)
        self._open.clear()

    def _forget(self, cell: Cell) -> None:
        self._cells.forget_session(cell.slot)


def _start(cell: Cell) -> int:
    return cell.slot.start
