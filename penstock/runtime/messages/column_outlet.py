"""The way out of a stage for rows of a schema: they stay in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.serdes import ColumnSerde
from penstock.arrays.sequences import ArrowSequence
from penstock.graph.serde_failures import SerdePlace
from penstock.graph.topology import Channel
from penstock.runtime.context import MessagePage, Position
from penstock.runtime.messages.columns import Accept, MessageColumns, Raw, encode_column, rows_of
from penstock.runtime.messages.outlet import MAX_PACKET_BYTES, Outlet
from penstock.runtime.messages.packet import in_one, rows_schema, with_headers

_FLUSH_MESSAGES = 1 << 16
_FLUSH_BYTES = 8 << 20


class _Block:
    """Some messages: their keys, their values, and the rows of the page that they were made from."""

    __slots__ = ("keys", "rows", "values")

    def __init__(self, keys: pa.Array, values: pa.StructArray, rows: Any) -> None:
        self.keys = keys
        self.values = values
        self.rows = rows

    def first(self, count: int) -> _Block:
        return _Block(self.keys.slice(0, count), self.values.slice(0, count), self.rows[:count])


class ColumnOutlet(Outlet):
    """As `Outlet`, of messages whose values are rows of a schema.

    Messages that come one at a time are gathered as bytes, which the serde makes columns again when a block of them is
    complete.
    """

    def __init__(
        self, channel: Channel, position: Position, place: SerdePlace, serde: ColumnSerde, carried: ColumnSerde
    ) -> None:
        """`serde` has the columns of the rows that come, `carried` those that leave."""
        super().__init__(channel, position, place)
        self._serde = serde
        self._carried = carried
        self._position = position
        self._schema = rows_schema(carried)
        self._blocks: list[_Block] = []
        """Messages of the current page."""
        self._ended: list[pa.RecordBatch] = []
        self._count = 0
        self.accept = self._make_accept_columns(position)

    def _make_accept_columns(self, position: Position) -> Accept:
        channel = self.channel

        def accept(columns: MessageColumns) -> None:
            values = rows_of(columns, self._serde, position, channel.source)
            keys = columns.written_by("key", channel.key_serde)
            if keys is None:
                keys = encode_column(
                    "key", channel.key_serde, columns.keys, columns.rows, position, channel.source, self._place
                )
            self._gather()
            self._add(_array(keys), values, _numbers(columns.rows))

        return accept

    def accept_raw(self, keys: Raw, values: Raw, rows: Sequence[int]) -> None:
        raise AssertionError(f"channel `{self.channel.name}` carries columns, not bytes")

    def _add(self, keys: pa.Array, values: pa.StructArray, rows: Any) -> None:
        block = _Block(keys, self._carried.narrow(values), rows)
        self._blocks.append(block)
        self._count += len(block.keys)
        self.bytes += block.keys.nbytes + block.values.nbytes

    def _gather(self) -> None:
        """Make a block of the messages that came one at a time."""
        if not self.keys:
            return
        values, problems = self._serde.read(self.values)
        if problems:
            raise AssertionError(f"channel `{self.channel.name}`: {problems}")  # the serde has just written them
        keys, rows = pa.array(self.keys, pa.binary()), np.array(self._rows, np.int64)
        for column in (self.keys, self.values, self._rows):
            column.clear()
        self._add(keys, values, rows)

    def __len__(self) -> int:
        return self._count + len(self.keys)

    def count_bytes(self) -> int:
        self._gather()
        more, self._counted = self.bytes - self._counted, self.bytes
        return more

    @property
    def is_ready(self) -> bool:
        return len(self) >= _FLUSH_MESSAGES or self.bytes >= _FLUSH_BYTES

    def end_page(self, page: MessagePage) -> None:
        self._gather()
        if not self._blocks:
            return
        times = page.columns()
        for block in self._blocks:
            origins = [pa.array(column[block.rows]) for column in times]
            messages = pa.RecordBatch.from_arrays([block.keys, block.values, *origins], schema=self._schema)
            if page.packed_headers:
                packed = pa.array([page.packed_headers.get(row) for row in block.rows.tolist()], pa.binary())
                messages = with_headers(messages, packed)
                self.bytes += packed.nbytes
            self._ended.append(messages)
        self._blocks = []

    @property
    def has_keyless(self) -> bool:
        return any(messages.column(0).null_count for messages in self._ended)

    def truncate(self, length: int) -> None:
        self._gather()
        left = self._count - length
        while left:
            last = self._blocks.pop()
            size = len(last.keys)
            if size > left:
                self._blocks.append(last.first(size - left))
            left -= min(left, size)
        self._count = length

    def clear(self) -> None:
        super().clear()
        self._blocks, self._ended, self._count = [], [], 0

    def take(self) -> Iterator[pa.RecordBatch]:
        if not self._ended:
            return
        whole = in_one(self._ended)
        rows = max(1, min(_FLUSH_MESSAGES, MAX_PACKET_BYTES * whole.num_rows // max(1, whole.nbytes)))
        for start in range(0, whole.num_rows, rows):
            yield whole.slice(start, rows)
        self.clear()


def _array(keys: Raw) -> pa.Array:
    if isinstance(keys, ArrowSequence):
        return keys.array.cast(pa.binary())
    return pa.array(keys, pa.binary())


def _numbers(rows: Sequence[int]) -> Any:
    return np.arange(rows.start, rows.stop) if isinstance(rows, range) else np.asarray(rows, np.int64)
