"""window: reduces the messages of a span of time, or a number of messages, to panes. Each shape of windows names its
node, which is in `penstock.runtime.windows`.

A running operator holds the new content of windows as objects during an attempt, and stores it once at the end of the
input. Then windows fire: first those with a trigger that is due, then those that the watermark has passed, in the
order of their ends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from penstock.api.serdes import ColumnSerde
from penstock.api.time.firing import (
    AllTrigger,
    AnyTrigger,
    CountTrigger,
    RepeatTrigger,
    SinceFirstTrigger,
    SinceLastTrigger,
    TimeWindow,
    Trigger,
    WindowPane,
)
from penstock.api.time.firing import Firing as FiringType
from penstock.api.time.windows import Window, WindowShape
from penstock.base.plugins import load
from penstock.batch.batch import END_OF_TIME, NO_WATERMARK, Batch, Due
from penstock.batch.batch import END_OF_TIME as NEVER
from penstock.graph.aggregation import window_aggregates
from penstock.graph.serdes import SerdePlace
from penstock.graph.specs import WindowSpec
from penstock.runtime.context import Position, failure_in
from penstock.runtime.messages.columns import MessageColumns, Raw, Target, encode_column
from penstock.runtime.messages.partial import Adder
from penstock.runtime.operators.base import Firing, Firings, KeyInEntry, KeyValue, Node, Operator, StageContext
from penstock.runtime.windows.cells import Cell, Cells, WindowSlot, key_in, next_end, next_trigger, slot_key
from penstock.runtime.windows.contents import content_of


class ShapeNode(Protocol):
    """The class that runs the windows of a shape, which alone knows the entries of their store."""

    def of(self, spec: WindowSpec, stage: StageContext, downstream: Target, shape: Any) -> Node:
        """The running operator."""

    def key_in(self, entry: bytes) -> bytes | None:
        """The key of the message that an entry's key belongs to."""

    def first_due(self, window: Window, store: KeyValue) -> Due:
        """When the first of the windows in a store fires."""


class ColumnShapeNode(ShapeNode, Protocol):
    """As ShapeNode, of windows by column."""

    def adder(self, spec: WindowSpec, shape: Any, carried: ColumnSerde) -> Adder:
        """Adds up the messages of the windows before they come."""


class WindowOperator(Operator[WindowSpec]):
    """Windows of the messages' keys, or of the whole task."""

    @property
    def time_stores(self) -> tuple[str, ...]:
        return (self.spec.stores[0],)

    @property
    def undoes_many(self) -> bool:  # type: ignore[override]
        return self._by_column

    @property
    def _by_column(self) -> bool:
        return window_aggregates(self.spec.window, self.spec.message_serde) is not None

    @property
    def _node(self) -> ShapeNode:
        shape = self.spec.window.shape
        node: ShapeNode = load(shape.column_node if self._by_column else shape.node)
        return node

    def next_due(self, store: KeyValue) -> Due:
        return self._node.first_due(self.spec.window, store)

    def key_in(self, store: str) -> KeyInEntry:
        return KeyInEntry(self.spec.key_serde, self._node.key_in)

    def place(self, name: str) -> SerdePlace:
        return SerdePlace(name, "")

    def adder(self, carried: ColumnSerde) -> Adder | None:
        if not self._by_column:
            return None
        node: ColumnShapeNode = load(self.spec.window.shape.column_node)
        return node.adder(self.spec, self.spec.window.shape, carried)

    def build(self, stage: StageContext, downstream: Target) -> Node:
        return self._node.of(self.spec, stage, downstream, self.spec.window.shape)


def due_at(trigger: Trigger, messages: int, first_ms: int, last_ms: int) -> int:
    """The batch time at which the trigger fires if no further message comes, which may have passed; NEVER if it does
    not.

    Args:
        messages: messages since the window fired last.
        first_ms: the batch time of the first of them.
        last_ms: the batch time of the last of them.
    """
    if not messages:
        return NEVER
    match trigger:
        case CountTrigger(least):
            return last_ms if messages >= least else NEVER
        case SinceFirstTrigger(ms):
            return first_ms + ms
        case SinceLastTrigger(ms):
            return last_ms + ms
        case AnyTrigger(triggers):
            return min(due_at(each, messages, first_ms, last_ms) for each in triggers)
        case AllTrigger(triggers):
            return max(due_at(each, messages, first_ms, last_ms) for each in triggers)
        case RepeatTrigger(repeated):
            return due_at(repeated, messages, first_ms, last_ms)
    raise TypeError(f"{trigger!r} is not a trigger of `Triggers`")


def repeats(trigger: Trigger) -> bool:
    return isinstance(trigger, RepeatTrigger)


def has_triggers(window: Window) -> bool:
    """True if a window can fire before it is complete, or again."""
    return window.early is not None or window.allowed_lateness_ms > 0


def next_due(window: Window, end: int | None, store: KeyValue) -> Due:
    """When the first of the windows in a store fires. `end`: of the first window that is not complete, or None."""
    trigger = next_trigger(store) if has_triggers(window) else None
    if window.time == "event":
        return end, trigger
    return None, min((time for time in (end, trigger) if time is not None), default=None)


def window_key_bytes(spec: WindowSpec, columns: MessageColumns, position: Position) -> Raw:
    """The bytes of the messages' keys."""
    written = columns.written_by("key", spec.key_serde)
    if written is not None:
        return written
    place = SerdePlace(f"keys of operator `{spec.id}`", "")
    return encode_column("key", spec.key_serde, columns.keys, columns.rows, position, spec.id, place)


class WindowNode(Node):
    """The common part of all shapes: lateness, triggers, panes."""

    held_cells = 100_000
    at_most = 100_000
    """On-time panes of an attempt, unless operators downstream rely on more: a batch should not take too long."""

    def __init__(self, spec: WindowSpec, stage: StageContext, downstream: Target, shape: WindowShape) -> None:
        super().__init__(self._accept, stage.position)
        self._spec, self._window = spec, spec.window
        self._position = stage.position
        self._downstream = downstream
        self._content = content_of(spec.window, spec.message_serde)
        self._content.operator = spec.id
        self._cells = Cells(stage.stores[spec.stores[0]], self._content, spec.key_serde)
        self._undoable = stage.undoable
        self._open: dict[Any, Any] = {}
        """Held cells: their content from this attempt is not stored yet."""
        self._counts = spec.window.early is not None or shape.counts
        """It matters how many messages have come, and when."""
        self._triggers = has_triggers(spec.window)
        late_to = spec.window.late_to
        self._late_to = None if late_to is None else stage.outputs[str(late_to)]
        self._late = stage.metrics.new_counter(spec.id, "late-dropped")
        self._pane_count = stage.metrics.new_counter(spec.id, "panes-fired")
        self._by_event_time = spec.window.time == "event" and not shape.counts
        self._begin_at(NO_WATERMARK, 0)

    @classmethod
    def of(cls, spec: WindowSpec, stage: StageContext, downstream: Target, shape: WindowShape) -> Node:
        return cls(spec, stage, downstream, shape)

    @staticmethod
    def key_in(entry: bytes) -> bytes | None:
        return key_in(entry)

    @staticmethod
    def first_due(window: Window, store: KeyValue) -> Due:
        return next_due(window, next_end(store), store)

    def _begin_at(self, late: int, now_ms: int, earliest: int = NO_WATERMARK) -> None:
        self._late_watermark, self._now_ms, self._earliest = late, now_ms, earliest

    def begin(self, batch: Batch) -> None:
        late = batch.late_watermark(self._spec.id) if self._window.time == "event" else NO_WATERMARK
        earliest = NO_WATERMARK if self._by_event_time else batch.earliest_output(self._spec.id)
        self._begin_at(late, batch.time_ms, earliest)
        self._forget_open()

    # Messages.

    def _accept(self, columns: MessageColumns) -> None:
        times = self._position.page.timestamps if self._window.time == "event" else None
        keys: Iterable[bytes | None] = self._key_bytes(columns) if self._window.keyed else [None] * len(columns.rows)
        try:
            for number in self._take_all(keys, columns, times):
                self._position.row = columns.rows[number]
                self._send_late(columns, number)
            if self._undoable or self._held() > self.held_cells:
                self._store_open()
        except BaseException as error:
            self._forget_open()  # the message is undone in the store; nothing of it may be stored later
            raise failure_in(self._spec.id, error) from error

    def _key_bytes(self, columns: MessageColumns) -> Raw:
        return window_key_bytes(self._spec, columns, self._position)

    def _take_all(
        self, keys: Iterable[bytes | None], columns: MessageColumns, times: Sequence[int] | None
    ) -> list[int]:
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
        """Add a message to its windows. Returns False if it is too late for all of them."""

    def _held(self) -> int:
        return len(self._open)

    def _forget_open(self) -> None:
        """Forget what is not stored."""
        self._open.clear()

    def _store_open(self) -> None:
        for cell in self._open.values():
            self._cells.save(cell, self._timer(cell))
        self._open.clear()

    def _store_before_firing(self) -> None:
        """Called at the end of input: windows fire as they are in the store."""
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

    def _send_late(self, columns: MessageColumns, number: int) -> None:
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
        drains = batch.ending == "drain"
        yield from self._fire_complete(watermark, output, "drain" if drains else "on-time")
        if self._window.allowed_lateness_ms:
            for cell in self._cells.kept_until(max(NO_WATERMARK, watermark - self._window.allowed_lateness_ms)):
                self._cells.take_out(cell)
                self._forget(cell)
                if cell.since:  # late messages that still wait for their trigger
                    yield self._pane(cell.slot, cell.content, "drain" if drains else "late", cell.number)

    def _watermarks(self, batch: Batch) -> tuple[int, int]:
        """The watermark up to which windows fire in this batch, and the one up to which they must."""
        if batch.control != "none":
            return END_OF_TIME, END_OF_TIME
        if self._window.time == "processing":
            return batch.time_ms, batch.time_ms
        watermark = batch.firing_watermark(self._spec.id)
        return watermark, min(watermark, batch.output_watermark(self._spec.id))

    def _fire_complete(self, watermark: int, output: int, firing: FiringType) -> Iterator[Firing | Firings]:
        """The panes of complete windows. If there are very many, those that may wait are left out."""
        for fired, cell in enumerate(self._cells.complete_by(watermark)):
            if fired >= self.at_most and cell.slot.end > output:
                return  # the next batch begins at once
            yield self._complete(cell, firing)

    def fired(self, count: int) -> None:
        self._pane_count.inc(count)

    def _fire(self, cell: Cell, firing: FiringType) -> Firing:
        content, number = self._cells.whole(cell), cell.number
        cell.number += 1
        cell.since, cell.fired = 0, True
        if not self._window.accumulating:
            self._cells.empty(cell)
        self._cells.save(cell, self._timer(cell))
        return self._pane(cell.slot, content, firing, number)

    def _complete(self, cell: Cell, firing: FiringType) -> Firing:
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
        """Called when a cell is no longer in the store."""

    def _timer(self, cell: Cell) -> int:
        """The batch time at which a trigger fires the cell. Without one, late messages fire it in their batch."""
        trigger: Trigger | None = self._window.late if cell.complete else self._window.early
        if trigger is None:
            return cell.last_ms if cell.complete and cell.since else END_OF_TIME
        if cell.fired and not repeats(trigger):
            return END_OF_TIME
        return due_at(trigger, cell.since, cell.first_ms, cell.last_ms)

    def _pane(self, slot: WindowSlot, content: Any, firing: FiringType, number: int) -> Firing:
        bounded = slot.end < END_OF_TIME
        time_ms = self._pane_time(slot.end - 1 if bounded else self._now_ms)
        span = TimeWindow(slot.start, slot.end) if bounded else None
        key = slot_key(slot.key)
        emit = partial(self._emit, key, span, content, firing, number)
        return Firing(key, time_ms, f"{firing} pane {number}", emit)

    def _pane_time(self, time_ms: int) -> int:
        """The timestamp of a pane. A batch time may be behind the watermark: the pane is late nowhere all the same."""
        return max(time_ms, self._earliest)

    def _emit(self, key: bytes | None, span: TimeWindow | None, content: Any, firing: FiringType, number: int) -> None:
        shown_key = None if key is None else self._spec.key_serde.from_bytes(key)
        pane = WindowPane(shown_key, span, self._content.shown(content), firing, number)
        self._downstream.push(shown_key, self._spec.shown(pane))
