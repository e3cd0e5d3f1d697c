"""The node of a BatchProcessor that gets its messages in the order of their event times.

The store has a row for each message that waits: the row's packed bytes under event time, stream, partition, offset, a
number, and the key. Of the messages that the watermark has passed, one sort makes the processor's batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.serdes import PackedColumns
from penstock.arrays.byte_arrays import ByteArray, Integers
from penstock.arrays.entries import Entries, Flags
from penstock.batch.batch import END_OF_TIME, NO_WATERMARK, Batch, Due
from penstock.graph.event_time import EventTimeOrder
from penstock.runtime.messages.columns import MessageColumns
from penstock.runtime.messages.groups import AT_ONCE, column_task_store
from penstock.runtime.operators.base import Firing, Firings, GatheringNode, Node, StageContext
from penstock.runtime.order import NUMBER_BYTES, PLACE_BYTES, TIME_BYTES, number_part, partition_part
from penstock.state.stores.columns import ColumnTaskStore

AT_MOST = 1 << 20
"""Rows of an attempt, unless operators downstream rely on more: the processor gets them all at once."""
_SIGN = np.uint64(1 << 63)
_KEY_AT = TIME_BYTES
"""The position of the byte that says if there is a key."""
_PLACE_AT = _KEY_AT + 1
_NUMBER_AT = _PLACE_AT + PLACE_BYTES
_ROW_BYTES = 4
"""The number of a message among those that came together."""
_HEAD_BYTES = _NUMBER_AT + NUMBER_BYTES + _ROW_BYTES


class OrderedColumnsNode(Node):
    """Holds messages back from a BatchProcessor, and hands them on by event time."""

    def __init__(self, op_id: str, order: EventTimeOrder, stage: StageContext, inner: GatheringNode) -> None:
        super().__init__(self._accept, stage.position)
        serde = order.sources[0].stored_serde
        if not isinstance(serde, PackedColumns):
            raise TypeError(f"operator `{op_id}` reads no columns")
        self._op_id, self._inner, self._packed = op_id, inner, serde.packed
        self._by_offset = order.by_offset
        self._position = stage.position
        self._store = column_task_store(stage.stores[order.store])
        self._new_place = stage.next_list_place
        self._late_to = None if order.late_to is None else stage.outputs[str(order.late_to)]
        self._late = stage.metrics.new_counter(op_id, "late-dropped")
        self._in_order = stage.metrics.new_counter(op_id, "in-order")
        self._late_watermark = NO_WATERMARK
        self._fresh: list[tuple[ByteArray, ByteArray]] = []
        """Entries of the messages of this attempt, and their rows."""
        self._partitions: dict[int, bytes] = {}

    def begin(self, batch: Batch) -> None:
        self._late_watermark = batch.late_watermark(self._op_id)
        self._fresh = []
        self._inner.begin(batch)

    def mark(self) -> int:
        return len(self._fresh)

    def undo(self, mark: int) -> None:
        del self._fresh[mark:]

    # Messages.

    def _accept(self, columns: MessageColumns) -> None:
        keys, rows, times = self._inner.columns_of(columns)
        late = np.flatnonzero(times < self._late_watermark)
        for number in late.tolist():
            self._position.row = int(columns.rows[number])
            if self._late_to is None:
                self._late.inc()
            else:
                self._late_to(columns.keys[number], columns.values[number])
        heads = self._heads(columns.rows, keys, times)
        entry, data = ByteArray.behind(heads, ByteArray.of(keys)), self._packed.pack(rows)
        if len(late):
            kept = np.flatnonzero(times >= self._late_watermark)
            entry, data = entry.take(kept), data.take(kept)
        self._fresh.append((entry, data))

    def _heads(self, rows: Any, keys: pa.Array, times: Integers) -> Any:
        _, origins, offsets = self._position.page.columns()
        where = np.asarray(rows, np.int64)
        origins, offsets = origins[where], offsets[where]
        heads = np.zeros((len(where), _HEAD_BYTES), np.uint8)
        heads[:, :_KEY_AT] = _sortable(times)
        heads[:, _KEY_AT] = keys.is_valid().to_numpy(zero_copy_only=False)
        offset_at = _NUMBER_AT - 8
        for origin in np.unique(origins).tolist():
            part = self._partition(origin, rows, origins)
            heads[origins == origin, _PLACE_AT:offset_at] = np.frombuffer(part, np.uint8)
        heads[:, offset_at:_NUMBER_AT] = _sortable(offsets)
        number = number_part(self._new_place())
        heads[:, _NUMBER_AT:-_ROW_BYTES] = np.frombuffer(number, np.uint8)
        heads[:, -_ROW_BYTES:] = np.arange(len(where), dtype=">u4").view(np.uint8).reshape(-1, _ROW_BYTES)
        return heads

    def _partition(self, origin: int, rows: Any, origins: Integers) -> bytes:
        found = self._partitions.get(origin)
        if found is None:
            row = int(rows[int(np.argmax(origins == origin))])
            found = self._partitions[origin] = partition_part(self._position.page.ssp(row))
        return found

    # The end of input.

    def on_end_of_input(self, batch: Batch) -> Iterator[Firing | Firings]:
        ending = batch.control != "none"
        watermark = END_OF_TIME if ending else batch.firing_watermark(self._op_id)
        output = END_OF_TIME if ending else min(watermark, batch.output_watermark(self._op_id))
        fresh = _joined(self._fresh)
        self._fresh = []
        stored = self._store.where(lambda keys: _times_of(keys) < watermark)
        keys = ByteArray.concat([stored.key_bytes, fresh[0]])
        rows = ByteArray.concat([stored.value_bytes, fresh[1]])
        times = _times_of(keys)
        ready = np.flatnonzero(times < watermark)
        ready = ready[self._order_of(keys.take(ready), rows.take(ready))]
        must = int(np.searchsorted(times[ready], output))
        ready = ready[: max(AT_MOST, must)]  # the next batch begins at once if some are left
        self._write(keys, rows, ready, len(stored))
        if len(ready):
            self._in_order.inc(len(ready))
            found = keys.take(ready)
            self._inner.take(_own_keys(found), self._packed.unpack(rows.take(ready)), times[ready])
        yield from self._inner.on_end_of_input(batch)

    def _order_of(self, keys: ByteArray, rows: ByteArray) -> Integers:
        """By time and key; then by offset, or by content alone."""
        own = _own_keys(keys)
        columns = {"time": pa.array(_times_of(keys)), "has key": own.is_valid(), "key": own}
        if self._by_offset:
            place = keys.rows(_NUMBER_AT)[:, _PLACE_AT:]
            columns["place"] = ByteArray.matrix(np.ascontiguousarray(place)).to_arrow()
        columns["row"] = rows.to_arrow()
        order = [(name, "ascending") for name in columns]
        found: Integers = pc.sort_indices(pa.table(columns), order).to_numpy().astype(np.int64)
        return found

    def _write(self, keys: ByteArray, rows: ByteArray, ready: Integers, stored: int) -> None:
        """Delete from the store what goes on, and add what stays of this attempt."""
        goes = np.zeros(len(keys), np.bool_)
        goes[ready] = True
        of_store = np.arange(len(keys)) < stored
        gone, stays = np.flatnonzero(goes & of_store), np.flatnonzero(~goes & ~of_store)
        changed = np.concatenate((gone, stays))
        if len(changed):
            values = ByteArray.concat([ByteArray.empty(len(gone)), rows.take(stays)])
            self._store.put_many(Entries(keys.take(changed), values, np.arange(len(changed)) >= len(gone)))

    def fired(self, count: int) -> None:
        self._inner.fired(count)

    def next_due(self) -> Due:
        first = first_time(self._store)
        return (None if first is None else first + 1), None

    def close(self) -> None:
        self._inner.close()


def first_time(store: ColumnTaskStore) -> int | None:
    """The earliest event time of a message that waits."""
    return min((int(_times_of(block.key_bytes).min()) for block in store.blocks(AT_ONCE) if len(block)), default=None)


def key_in(entry: bytes) -> bytes | None:
    """The key of the message that an entry's key belongs to."""
    return entry[_HEAD_BYTES:] if entry[_KEY_AT] else None


def _joined(parts: list[tuple[ByteArray, ByteArray]]) -> tuple[ByteArray, ByteArray]:
    if not parts:
        return ByteArray.empty(0), ByteArray.empty(0)
    keys, rows = zip(*parts, strict=True)
    return ByteArray.concat(keys), ByteArray.concat(rows)


def _sortable(numbers: Integers) -> Any:
    """Numbers as eight bytes that sort as they do."""
    return (numbers.astype(np.int64).view(np.uint64) ^ _SIGN).astype(">u8").view(np.uint8).reshape(-1, 8)


def _times_of(keys: ByteArray) -> Integers:
    heads = keys.rows(TIME_BYTES)
    if len(heads) == 0:
        return np.zeros(0, np.int64)
    found: Integers = (np.ascontiguousarray(heads).view(">u8").reshape(-1).astype(np.uint64) ^ _SIGN).view(np.int64)
    return found


def _own_keys(keys: ByteArray) -> pa.Array:
    valid: Flags = keys.rows(_HEAD_BYTES)[:, _KEY_AT] != 0
    return ByteArray(keys.data, keys.starts + _HEAD_BYTES, keys.lengths - _HEAD_BYTES).to_arrow(valid)
