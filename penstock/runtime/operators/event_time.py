"""Operators by event time: those that take their messages in its order, and the join with a table as of that time.

order="event-time": the messages of an operator wait until the watermark has passed them, and come by event time. The
operator itself knows nothing of it: another one is around it, which holds its messages back.

join_table(as_of=True): joins each message with the table's value as of the message's event time. A message waits in
the operator's store until the watermark is above its time: then all versions up to that time are in the table. It is
joined at the end of the input, in the order of times and keys.

| entry | value |
|---|---|
| `w` time, key, number | a message's value: 00 for None, or 01 and its bytes |
| `n` | the number of the next message |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.batch.batch import END_OF_TIME, NO_WATERMARK, Batch, Due
from penstock.graph.event_time import EARLIEST_MS
from penstock.graph.serdes import SerdePlace
from penstock.graph.specs import OperatorSpec, TemporalJoinSpec
from penstock.runtime import order_columns
from penstock.runtime.context import failure_in
from penstock.runtime.messages.columns import MessageColumns, Raw, Target, encode_column
from penstock.runtime.messages.groups import column_task_store
from penstock.runtime.operators import base
from penstock.runtime.order import OrderedNode, key_in, time_in
from penstock.runtime.order_columns import OrderedColumnsNode
from penstock.runtime.timers import time_bytes, time_of
from penstock.state.stores.task_store import TaskStore

_AT_MOST = 50_000
"""Messages that an attempt joins, unless operators downstream rely on more: a batch should not take too long."""
_NUMBER_BYTES = 8
_ZERO, _ESCAPED_ZERO, _END = b"\x00", b"\x00\xff", b"\x00\x01"
_NO_KEY, _KEY = b"\x00", b"\x01"
_NONE, _SOME = b"\x00", b"\x01"
_WAITS, _NEXT = b"w", b"n"


class TemporalJoin(base.Operator[TemporalJoinSpec]):
    """Joins with the table's value as of the message's event time."""

    @property
    def time_stores(self) -> tuple[str, ...]:
        return (self.spec.stores[1],)

    def key_in(self, store: str) -> base.KeyInEntry | None:
        if store != self.spec.stores[1]:
            return None
        return base.KeyInEntry(self.spec.key_serde, _key_of, merges={_NEXT: max})

    def next_due(self, store: base.KeyValue) -> Due:
        first = next(iter(store.range(_WAITS, _WAITS + time_bytes(END_OF_TIME))), None)
        return (None if first is None else _due(time_of(first[0][1:9])), None)

    def build(self, stage: base.StageContext, downstream: Target) -> base.Node:
        return _TemporalJoinNode(self.spec, stage, downstream)

    def watched(self, watch: base.CallWatch) -> OperatorSpec:
        op_id, function = self.spec.id, self.spec.function

        def watched(value: Any, found: Any) -> Any:
            with watch.call(op_id, value):
                return function(value, found)

        return replace(self.spec, function=watched)


class _TemporalJoinNode(base.Node):
    def __init__(self, spec: TemporalJoinSpec, stage: base.StageContext, downstream: Target) -> None:
        super().__init__(self._accept, stage.position)
        self._spec = spec
        self._position = stage.position
        self._downstream = downstream
        self._versions, self._waiting = (stage.stores[name] for name in spec.stores)
        self._late_to = None if spec.late_to is None else stage.outputs[str(spec.late_to)]
        self._late = stage.metrics.new_counter(spec.id, "late-dropped")
        self._joined = stage.metrics.new_counter(spec.id, "joined-later")
        self._late_watermark = NO_WATERMARK

    def begin(self, batch: Batch) -> None:
        self._late_watermark = batch.late_watermark(self._spec.id)

    # Messages.

    def _accept(self, columns: MessageColumns) -> None:
        try:
            keys = self._bytes_of("key", columns)
            values = self._bytes_of("value", columns)
            late = self._keep(keys, values, columns)
            for number in late:
                self._position.row = columns.rows[number]
                self._send_late(columns, number)
        except BaseException as error:
            raise failure_in(self._spec.id, error) from error

    def _bytes_of(self, part: Any, columns: MessageColumns) -> Raw:
        spec = self._spec
        serde = spec.key_serde if part == "key" else spec.message_serde
        written = columns.written_by(part, serde)
        if written is not None:
            return written
        found = columns.keys if part == "key" else columns.values
        place = SerdePlace(f"{part}s of operator `{spec.id}`", "")
        return encode_column(part, serde, found, columns.rows, self._position, spec.id, place)

    def _keep(self, keys: Raw, values: Raw, columns: MessageColumns) -> list[int]:
        times, store, late = self._position.page.timestamps, self._waiting, []
        place = first = int.from_bytes(store.get(_NEXT, b""), "big")
        for number, (row, key, value) in enumerate(zip(columns.rows, keys, values, strict=True)):
            time_ms = times[row]
            if time_ms < self._late_watermark:
                late.append(number)
            elif key is not None or self._spec.kind == "left":
                data = _NONE if value is None else _SOME + value
                store.put(_WAITS + time_bytes(time_ms) + _key_part(key) + place.to_bytes(_NUMBER_BYTES, "big"), data)
                place += 1
        if place != first:
            store.put(_NEXT, place.to_bytes(_NUMBER_BYTES, "big"))
        return late

    def _send_late(self, columns: MessageColumns, number: int) -> None:
        if self._late_to is None:
            self._late.inc()
        else:
            self._late_to(columns.keys[number], columns.values[number])

    # The end of input.

    def on_end_of_input(self, batch: Batch) -> Iterator[base.Firing]:
        spec_id, ending = self._spec.id, batch.control != "none"
        watermark = END_OF_TIME if ending else batch.firing_watermark(spec_id)
        output = END_OF_TIME if ending else min(watermark, batch.output_watermark(spec_id))
        for fired, (entry, data) in enumerate(self._waiting.range(_WAITS, _WAITS + time_bytes(watermark))):
            time_ms, key = time_of(entry[1:9]), _key_of(entry)
            if fired >= _AT_MOST and _due(time_ms) > output:
                return  # the next batch begins at once
            self._waiting.delete(entry)
            value = None if data == _NONE else data[1:]
            yield base.Firing(key, time_ms, "join", partial(self._join, key, time_ms, value), value=value)

    def _join(self, key: bytes | None, time_ms: int, data: bytes | None) -> None:
        shown = None if key is None else self._spec.key_serde.from_bytes(key)
        value = None if data is None else self._spec.message_serde.from_bytes(data)
        found = None if key is None else self._as_of(shown, time_ms)
        if found is not None or self._spec.kind == "left":
            self._downstream.push(shown, self._spec.function(value, found))

    def _as_of(self, key: Any, time_ms: int) -> Any:
        """The value of the newest version up to the time; None if that version says that there is no value."""
        versions = self._versions.range((key, time_ms), (key, EARLIEST_MS))
        return next((value for _, value in versions), None)

    def fired(self, count: int) -> None:
        self._joined.inc(count)


def _due(time_ms: int) -> int:
    """The watermark at which a message is joined: a version of the same time may still come before it."""
    return time_ms + 1


def _key_part(key: bytes | None) -> bytes:
    """A key as a part of an entry's key, which sorts as keys do and marks its own end."""
    return _NO_KEY if key is None else _KEY + key.replace(_ZERO, _ESCAPED_ZERO) + _END


def _key_of(entry: bytes) -> bytes | None:
    part = entry[9:-_NUMBER_BYTES]
    return None if part == _NO_KEY else part[1 : -len(_END)].replace(_ESCAPED_ZERO, _ZERO)


class OrderedOperator(base.Operator[OperatorSpec]):
    """Holds messages back from an operator, and hands them on by event time."""

    undoes_many = True

    def __init__(self, spec: OperatorSpec, inner: base.Operator[OperatorSpec]) -> None:
        """`inner` is the operator of `spec.without_order()`."""
        super().__init__(spec)
        if spec.ordering is None:
            raise ValueError(f"operator `{spec.id}` takes its messages as they come")
        self._order = spec.ordering
        self._inner = inner

    @property
    def _by_column(self) -> bool:
        return self.spec.waits_as_columns

    @property
    def time_stores(self) -> tuple[str, ...]:
        return (*self._inner.time_stores, self._order.store)

    def next_due(self, store: base.KeyValue) -> Due:
        if not isinstance(store, TaskStore) or store.name != self._order.store:
            return self._inner.next_due(store)
        if self._by_column:
            first = order_columns.first_time(column_task_store(store))
        else:
            first = next((time_in(entry) for entry, _ in store.all()), None)
        return (None if first is None else first + 1), None

    def key_in(self, store: str) -> base.KeyInEntry | None:
        if store != self._order.store:
            return self._inner.key_in(store)
        return base.KeyInEntry(self._order.sources[0].key_serde, order_columns.key_in if self._by_column else key_in)

    def place(self, name: str) -> SerdePlace:
        return self._inner.place(name)

    def build(self, stage: base.StageContext, downstream: Target) -> base.Node:
        own = {name: store for name, store in stage.stores.items() if name != self._order.store}
        inner = self._inner.build(replace(stage, stores=own), downstream)
        if isinstance(inner, base.GatheringNode):
            return OrderedColumnsNode(self.spec.id, self._order, stage, inner)
        return OrderedNode(self.spec.id, self._order, stage, inner)

    def watched(self, watch: base.CallWatch) -> OperatorSpec:
        return replace(self._inner.watched(watch), ordering=self.spec.ordering, stores=self.spec.stores)
