"""window: reduces the messages of a span of time, or a number of messages, to panes.

What came to a window during an attempt is held as objects, and stored once at the end of the attempt's input. Then
windows fire: those whose trigger is due, and those that the watermark has passed, in the order of their ends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from penstock.api.graph import WindowSpec
from penstock.api.serdes.failures import Place
from penstock.api.triggers import Trigger
from penstock.api.windows import Counting, Fixed, Session, TimeWindow, WindowPane
from penstock.api.windows import Firing as FiringType
from penstock.runtime.batch import END_OF_TIME, NO_WATERMARK, Batch, Due
from penstock.runtime.columns import Columns, Raw, Target, encode_column
from penstock.runtime.context import failure_in
from penstock.runtime.operators.base import Firing, Node, Operator, Surroundings
from penstock.runtime.windows.cells import Cell, Cells, Slot, key_slot, slot_key
from penstock.runtime.windows.conditions import due_at, repeats
from penstock.runtime.windows.contents import content_of

_HELD_CELLS = 100_000
"""Cells that an attempt holds before it stores them."""

_AT_MOST = 100_000
"""On-time panes of an attempt, unless operators downstream rely on more: a batch should not take too long."""


class WindowOperator(Operator[WindowSpec]):
    """Windows of the messages' keys, or of the whole task."""

    needs_task = True
    sends = True  # messages that are too late

    def place(self, name: str) -> Place:
        return Place(name, "")

    def build(self, surroundings: Surroundings, downstream: Target) -> Node:
        match self.spec.window.shape:
            case Fixed() as fixed:
                return _FixedNode(self.spec, surroundings, downstream, fixed)
            case Session(gap_ms):
                return _SessionNode(self.spec, surroundings, downstream, gap_ms)
            case Counting(messages):
                return _CountingNode(self.spec, surroundings, downstream, messages)


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
            if self._undoable or len(self._open) > _HELD_CELLS:
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

    def _store_open(self) -> None:
        """Store the cells that are held, and hold them no longer."""
        for cell in self._open.values():
            self._cells.save(cell, self._timer(cell))
        self._open.clear()

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

    def on_end_of_input(self, batch: Batch) -> Iterator[Firing]:
        self._store_open()
        event = self._window.time == "event"
        watermark = batch.firing_watermark(self._spec.id) if event else batch.time_ms
        if batch.control != "none":
            watermark = END_OF_TIME
        for cell in self._cells.triggered_by(batch.time_ms):
            if cell.complete:
                yield self._fire(cell, "late")
            elif cell.slot.end > watermark:  # otherwise it fires on time in the same batch
                yield self._fire(cell, "early")
        output = min(watermark, batch.output_watermark(self._spec.id)) if event else watermark
        for fired, cell in enumerate(self._cells.complete_by(watermark)):
            if fired >= _AT_MOST and cell.slot.end > output and batch.control == "none":
                return  # the next batch begins at once
            yield self._complete(cell, "drain" if batch.control == "drain" else "on-time")
        for cell in self._cells.kept_until(max(NO_WATERMARK, watermark - self._window.allowed_lateness_ms)):
            self._cells.take_out(cell)
            self._forget(cell)

    def next_due(self) -> Due:
        end, trigger = self._cells.next_end(), self._cells.next_trigger()
        if self._window.time == "event":
            return end, trigger
        return None, min((time for time in (end, trigger) if time is not None), default=None)

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
        self._tumbles = shape.size_ms == shape.every_ms and not self._counts

    def _take_all(self, keys: Iterable[bytes | None], columns: Columns, times: Sequence[int] | None) -> list[int]:
        """The same without a call for each message, where one belongs to one window and nothing else is counted."""
        if not self._tumbles:
            return super()._take_all(keys, columns, times)
        offset, size, position = self._shape.offset_ms, self._shape.size_ms, self._position
        get, add, take, now_ms, late = self._open.get, self._content.add, self._take, self._now_ms, []
        for number, (row, key, value) in enumerate(zip(columns.rows, keys, columns.values, strict=True)):
            position.row = row
            time_ms = now_ms if times is None else times[row]
            cell = get((time_ms - (time_ms - offset) % size, key))
            if cell is not None and not cell.complete:
                cell.content = add(cell.content, value, time_ms)
            elif not take(key, value, time_ms):
                late.append(number)
        return late

    def _take(self, key: bytes | None, value: Any, time_ms: int) -> bool:
        shape, cells, in_time = self._shape, self._open, False
        start = time_ms - (time_ms - shape.offset_ms) % shape.every_ms
        while start + shape.size_ms > time_ms:
            cell = cells.get((start, key))
            if cell is None and not self._too_late(start + shape.size_ms):
                cell = cells[start, key] = self._cell(start, key)
            if cell is not None:
                self._add(cell, value, time_ms)
                in_time = True
            start -= shape.every_ms
        return in_time

    def _cell(self, start: int, key: bytes | None) -> Cell:
        slot = Slot(start + self._shape.size_ms, start, key_slot(key))
        complete = slot.end <= self._late_watermark
        cell = self._cells.load(slot) if complete else self._cells.load_from(slot, complete=False)
        return self._cells.new(slot, complete=complete) if cell is None else cell


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
