"""Windows of one size whose aggregates are computed by column.

The store has a row for each window and key that is not complete: under the window's end, as eight bytes that sort as
numbers, and the key, behind a byte that says if there is one. An attempt adds all messages of a window and key at once.
At the end of its input it takes out the windows that the watermark has passed, and stores the others that it changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.serdes import ColumnSerde
from penstock.api.time.firing import SPAN_COLUMNS, TimeWindow, WindowPane
from penstock.api.time.firing import Firing as FiringType
from penstock.api.time.windows import Fixed, Window
from penstock.arrays.byte_arrays import ByteArray, Integers
from penstock.arrays.entries import Entries, Flags, KeyIndex
from penstock.arrays.given import ArrowSequence
from penstock.batch.batch import END_OF_TIME, Batch, Due
from penstock.graph.aggregation import ColumnAggregates, window_aggregates
from penstock.graph.serdes import SerdePlace
from penstock.graph.specs import WindowSpec
from penstock.runtime.messages.columns import NOWHERE, MessageColumns, Target
from penstock.runtime.messages.entry import StageEntry
from penstock.runtime.messages.groups import AT_ONCE, Folds, column_task_store, refuse_unfit
from penstock.runtime.messages.packet import MESSAGE_SCHEMA
from penstock.runtime.messages.partial import Adder, states_of
from penstock.runtime.operators.base import Firings, KeyValue, Node, Partial, StageContext
from penstock.runtime.operators.window import window_key_bytes
from penstock.state.stores.columns import ColumnTaskStore

_SIGN = np.uint64(1 << 63)
_END_BYTES = 8
_HEAD_BYTES = 9


class ColumnWindowNode(Node):
    """Windows of one size, by column."""

    def __init__(self, spec: WindowSpec, stage: StageContext, downstream: Target, shape: Fixed) -> None:
        super().__init__(self._accept, stage.position)
        serde = spec.message_serde
        if not isinstance(serde, ColumnSerde):
            raise TypeError(f"operator `{spec.id}` reads no columns")
        self._spec, self._shape, self._serde = spec, shape, serde
        self._position = stage.position
        self._downstream = downstream
        place = SerdePlace(f"rows of operator `{spec.id}`", "")
        self._entry = StageEntry(spec.id, place, spec.key_serde, spec.value_serde, stage.position, NOWHERE)
        self._store = column_task_store(stage.stores[spec.stores[0]])
        late_to = spec.window.late_to
        self._late_to = None if late_to is None else stage.outputs[str(late_to)]
        self._late = stage.metrics.new_counter(spec.id, "late-dropped")
        self._pane_count = stage.metrics.new_counter(spec.id, "panes-fired")
        self._folds = Folds(self._store, partial(by_column, spec, serde))
        self._ends: set[int] | None = None
        """The ends of the windows in the store; None: not known yet."""
        self._late_watermark = 0

    @classmethod
    def of(cls, spec: WindowSpec, stage: StageContext, downstream: Target, shape: Fixed) -> Node:
        return cls(spec, stage, downstream, shape)

    @staticmethod
    def adder(spec: WindowSpec, shape: Fixed, carried: ColumnSerde) -> Adder:
        return WindowAdder(spec, shape, carried)

    @staticmethod
    def key_in(entry: bytes) -> bytes | None:
        return entry[_HEAD_BYTES:] if entry[_END_BYTES] else None

    @staticmethod
    def first_due(window: Window, store: KeyValue) -> Due:
        return min(_stored_ends(column_task_store(store)), default=None), None

    def begin(self, batch: Batch) -> None:
        self._late_watermark = batch.late_watermark(self._spec.id)
        self._folds.begin()

    def mark(self) -> int:
        return self._folds.mark()

    def undo(self, mark: int) -> None:
        self._folds.undo(mark)

    # Messages.

    def _accept(self, columns: MessageColumns) -> None:
        self._folds.make_room()
        keys = window_key_bytes(self._spec, columns, self._position)
        array = keys.array if isinstance(keys, ArrowSequence) else pa.array(keys, pa.binary())
        values = self._folds.values_of(columns, self._serde, self._position, self._spec.id)
        times = self._position.page.times_of(columns.rows)
        taken, too_late = _in_windows(self._shape, times, self._late_watermark)
        for numbers, ends in taken:
            some = pa.array(numbers)
            self._folds.add(_window_keys(ends, array.take(some)), values.take(some), times[numbers])
        for number in np.flatnonzero(too_late).tolist():
            self._position.row = int(columns.rows[number])
            if self._late_to is None:
                self._late.inc()
            else:
                self._late_to(columns.keys[number], columns.values[number])

    def merge(self, states: Partial) -> None:
        self._folds.merge(_window_keys(states.times.to_numpy(), states.keys), ByteArray.of(states.states))

    # Panes.

    def on_end_of_input(self, batch: Batch) -> Iterator[Firings]:
        self._folds.settle()
        watermark = END_OF_TIME if batch.control != "none" else batch.firing_watermark(self._spec.id)
        entries, results = self._folds.entries(), self._folds.aggregates.results()
        ends = _ends_of(entries.key_bytes)
        due = ends <= watermark
        other = self._others(entries.key_bytes, watermark)
        self._write(entries, due, other.key_bytes)
        self._ends = {end for end in self._open_ends().union(np.unique(ends).tolist()) if end > watermark}
        fired = np.flatnonzero(due)
        keys, results = entries.key_bytes.take(fired), results.take(pa.array(fired))
        if len(other):
            more = by_column(self._spec, self._serde)
            more.grow(other.value_bytes)
            keys = ByteArray.concat([keys, other.key_bytes])
            results = pa.concat_arrays([results, more.results()])
        if len(keys):
            yield from self._panes(keys, results, "drain" if batch.ending == "drain" else "on-time")

    def _open_ends(self) -> set[int]:
        if self._ends is None:
            self._ends = _stored_ends(self._store)
        return self._ends

    def _others(self, own: ByteArray, watermark: int) -> Entries:
        """The stored rows of windows that are due, apart from those of the batch's own keys."""
        if not any(end <= watermark for end in self._open_ends()):
            return Entries.of({})
        found = self._store.where(lambda keys: _ends_of(keys) <= watermark)
        if len(own) and len(found):
            known = KeyIndex()
            known.add(own)
            found = found.take(np.flatnonzero(known.find(found.key_bytes) < 0))
        return found

    def _write(self, entries: Entries, due: Flags, other: ByteArray) -> None:
        """Store the windows that are still open, and delete from the store those that are due."""
        if not due.any() and not len(other):
            if len(entries):
                self._store.put_many(entries)
            return
        left = np.flatnonzero(~due)
        gone = np.flatnonzero(due & np.concatenate(self._folds.stored)) if self._folds.stored else left[:0]
        keys = ByteArray.concat([entries.key_bytes.take(left), entries.key_bytes.take(gone), other])
        values = ByteArray.concat([entries.value_bytes.take(left), ByteArray.empty(len(keys) - len(left))])
        if len(keys):
            self._store.put_many(Entries(keys, values, np.arange(len(keys)) < len(left)))

    def _panes(self, keys: ByteArray, results: pa.StructArray, firing: FiringType) -> Iterator[Firings]:
        """The panes in the order of their ends, and of their keys."""
        order = pc.sort_indices(keys.to_arrow()).to_numpy()
        keys, results = keys.take(order), results.take(pa.array(order))
        ends = _ends_of(keys)
        cuts = [0, *(np.flatnonzero(np.diff(ends)) + 1).tolist(), len(ends)]
        for begin, behind in pairwise(cuts):
            end, some = int(ends[begin]), slice(begin, behind)
            own, rows = _own_keys(keys.slice(some)), ArrowSequence(results.slice(begin, behind - begin))
            span = TimeWindow(end - self._shape.size_ms, end)
            if self._spec.rows:
                emit = partial(self._emit_rows, own, rows, span)
            else:
                emit = partial(self._emit, own, rows, span, firing)
            yield Firings(own, end - 1, f"{firing} pane 0", emit)

    def _emit(
        self, keys: Sequence[Any], rows: ArrowSequence, span: TimeWindow, firing: FiringType, some: slice, first: int
    ) -> None:
        refuse_unfit(rows[some].array, self._position, first)
        decode = self._spec.key_serde.from_bytes
        shown = [None if key is None else decode(key) for key in keys[some]]
        panes = [WindowPane(key, span, row, firing, 0) for key, row in zip(shown, rows[some], strict=True)]
        self._downstream.accept(MessageColumns(None, shown, panes, range(first, first + len(shown))))

    def _emit_rows(self, keys: ArrowSequence, rows: ArrowSequence, span: TimeWindow, some: slice, first: int) -> None:
        refuse_unfit(rows[some].array, self._position, first)
        own, shown = keys[some], _with_span(span, rows[some].array)
        self._downstream.accept(MessageColumns(self._entry, None, shown, range(first, first + len(own)), own, None))

    def fired(self, count: int) -> None:
        self._pane_count.inc(count)

    def next_due(self) -> Due:
        return min(self._open_ends(), default=None), None


def by_column(spec: WindowSpec, serde: ColumnSerde) -> ColumnAggregates:
    """New aggregates of a window, for messages with these rows."""
    found = window_aggregates(spec.window, serde)
    if found is None:
        raise TypeError(f"operator `{spec.id}` adds its messages one at a time")
    return found


def _in_windows(shape: Fixed, times: Integers, late_watermark: int) -> tuple[list[tuple[Integers, Integers]], Flags]:
    """The windows of messages: for each place of the windows, the numbers of the messages that have one there, and its
    ends; and which messages are too late for all of them."""
    last = times - (times - shape.offset_ms) % shape.every_ms
    too_late = np.ones(len(times), np.bool_)
    found = []
    for start in range(0, shape.size_ms, shape.every_ms):
        ends = last - start + shape.size_ms
        taken = np.flatnonzero((ends > times) & (ends > late_watermark))
        too_late[taken] = False
        if len(taken):
            found.append((taken, ends[taken]))
    return found, too_late


class WindowAdder(Adder):
    """Adds up messages by window and key. The time of a state is the end of its window. Messages that are too late go
    as they are: where they come, they are counted or sent on."""

    def __init__(self, spec: WindowSpec, shape: Fixed, carried: ColumnSerde) -> None:
        self._spec = spec
        self._shape = shape
        self._carried = carried
        self.times = -(-shape.size_ms // shape.every_ms)

    def add_up(self, rows: pa.RecordBatch, batch: Batch) -> Sequence[pa.RecordBatch] | None:
        aggregates = by_column(self._spec, self._carried)
        keys, values, times = rows.columns[:3]
        if keys.null_count:
            return None
        own = aggregates.values_of(values)
        found, too_late = _in_windows(self._shape, times.to_numpy(), batch.late_watermark(self._spec.id))
        late = [rows.filter(pa.array(too_late))] if too_late.any() else []
        if not found:
            return late
        numbers, ends = (np.concatenate(parts) for parts in zip(*found, strict=True))
        by_key, by_end = keys.dictionary_encode(), pa.array(ends).dictionary_encode()
        key_count = len(by_key.dictionary)
        by_both = _codes(by_end) * key_count + _codes(by_key)[numbers]
        groups = pa.array(by_both).dictionary_encode()
        both, some = groups.dictionary.to_numpy(), pa.array(numbers)
        states, first = states_of(aggregates, _codes(groups), len(both), own.take(some), times.to_numpy()[numbers])
        places = [column.take(some.take(first)) for column in rows.columns[3:5]]
        own_keys = by_key.dictionary.take(pa.array(both % key_count))
        own_ends = by_end.dictionary.take(pa.array(both // key_count))
        columns = [own_keys, states, own_ends, *places]
        return [pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA), *late]

    def count(self, rows: pa.RecordBatch) -> int:
        by_key, times, shape = rows.column(0).dictionary_encode(), rows.column(2).to_numpy(), self._shape
        last = (times - (times - shape.offset_ms) % shape.every_ms) // shape.every_ms
        spans = pa.array(last).dictionary_encode()
        both = _codes(spans) * (len(by_key.dictionary) + 1) + by_key.indices.fill_null(-1).to_numpy()
        return int(pc.count_distinct(pa.array(both)).as_py())


def _codes(encoded: pa.DictionaryArray) -> Integers:
    found: Integers = encoded.indices.to_numpy().astype(np.int64)
    return found


def _stored_ends(store: ColumnTaskStore) -> set[int]:
    """The ends of the windows in a store."""
    found: set[int] = set()
    for block in store.blocks(AT_ONCE):
        found.update(np.unique(_ends_of(block.key_bytes)).tolist())
    return found


def _window_keys(ends: Integers, keys: pa.Array) -> ByteArray:
    heads = np.zeros((len(ends), _HEAD_BYTES), np.uint8)
    heads[:, :_END_BYTES] = (ends.view(np.uint64) ^ _SIGN).astype(">u8").view(np.uint8).reshape(-1, _END_BYTES)
    heads[:, _END_BYTES] = 1
    if keys.null_count:
        heads[:, _END_BYTES] = ~keys.is_null().to_numpy(zero_copy_only=False)
    return ByteArray.behind(heads, ByteArray.of(keys))


def _ends_of(keys: ByteArray) -> Integers:
    heads = keys.rows(_END_BYTES)
    if len(heads) == 0:
        return np.zeros(0, np.int64)
    found: Integers = (np.ascontiguousarray(heads).view(">u8").reshape(-1).astype(np.uint64) ^ _SIGN).view(np.int64)
    return found


def _with_span(span: TimeWindow, results: pa.StructArray) -> ArrowSequence:
    """The rows of panes: their span, and their aggregates."""
    bounds = [pa.repeat(pa.scalar(time, pa.int64()), len(results)) for time in (span.start_ms, span.end_ms)]
    fields = [pa.field(name, pa.int64()) for name in SPAN_COLUMNS]
    return ArrowSequence(
        pa.StructArray.from_arrays([*bounds, *results.flatten()], fields=[*fields, *results.type.fields])
    )


def _own_keys(keys: ByteArray) -> ArrowSequence:
    """The keys of messages, without the windows' ends."""
    valid = keys.rows(_HEAD_BYTES)[:, _END_BYTES] != 0
    own = ByteArray(keys.data, keys.starts + _HEAD_BYTES, keys.lengths - _HEAD_BYTES)
    return ArrowSequence(own.to_arrow(valid))
