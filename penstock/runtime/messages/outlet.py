"""The ways out of a stage: messages in columns, until they are cut into packets.

Rows of a schema stay in columns. An exactly-once output may refuse some records. A refused record fails in the
operator that made it, like one that is not serialised. Once it was in a checkpoint, no start could publish it, and
each would end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.messages import headers_size
from penstock.api.serdes import ColumnSerde, not_bytes
from penstock.arrays.given import ArrowSequence
from penstock.batch.batch import Batch
from penstock.errors import ConfigError
from penstock.graph.serdes import SerdePlace
from penstock.graph.topology import Channel
from penstock.runtime.context import MessagePage, OperatorFailedError, Position, failure_in
from penstock.runtime.messages.columns import Accept, MessageColumns, Push, Raw, encode_column, rows_of
from penstock.runtime.messages.packet import MESSAGE_SCHEMA, in_one, rows_schema, with_headers
from penstock.system.contract.messages import RecordLimits

FLUSH_MESSAGES = 8192
"""Messages that a channel collects before they are cut into packets."""
FLUSH_BYTES = 8 << 20
"""Bytes of keys and values that a channel collects before they are cut into packets."""

MAX_PACKET_BYTES = 16 << 20
"""A packet of more than one message stays below this many bytes of keys and values."""


class Outlet:
    """One channel's way out of a stage: serialised messages in columns, until they are cut into packets.

    For each message only the row of the page it was made from is noted; at the page's end the rows are turned into
    origins, offsets and timestamps, all at once.

    It is a `Target`: a message that does not serialise failed in the operator that made it.
    """

    def __init__(self, channel: Channel, position: Position, place: SerdePlace) -> None:
        self.channel = channel
        self._place = place
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.bytes = 0
        """Bytes of the keys and values that `count_bytes` has seen."""
        self._counted = 0
        self._rows: list[int] = []
        self._pages: list[tuple[Any, Any, Any]] = []
        self._headers: dict[int, bytes] = {}
        """Number of the message → its packed headers, for the messages of ended pages that have headers."""
        self.push = self._make_push(position)
        """Serialise and add a message that the message at the position led to."""
        self.accept = self._make_accept(position)
        """Add messages. Serialises those that do not have the bytes of the channel's serdes."""
        self.push_raw = self._make_push_raw(position)

    def _make_push(self, position: Position) -> Push:
        key_serde, value_serde = self.channel.key_serde, self.channel.value_serde
        encode_key, encode_value = key_serde.to_bytes, value_serde.to_bytes
        add_key, add_value, add_row = self.keys.append, self.values.append, self._rows.append
        operator, place = self.channel.source, self._place

        def push(key: Any, value: Any) -> None:
            try:
                try:
                    key_bytes = None if key is None else encode_key(key)
                except Exception as error:
                    raise place.unwritable("key", key_serde, key, error) from error
                try:
                    value_bytes = None if value is None else encode_value(value)
                except Exception as error:
                    raise place.unwritable("value", value_serde, value, error, key) from error
                if value_bytes is not None and type(value_bytes) is not bytes:
                    raise not_bytes(value_serde, value_bytes, f"{place.name}, value of key {key!r}")
                if key_bytes is not None and type(key_bytes) is not bytes:
                    raise not_bytes(key_serde, key_bytes, f"{place.name}, key {key!r}")
            except BaseException as error:
                raise failure_in(operator, error) from error
            add_key(key_bytes)
            add_value(value_bytes)
            add_row(position.row)

        return push

    def _make_push_raw(self, position: Position) -> Push:
        add_key, add_value, add_row = self.keys.append, self.values.append, self._rows.append

        def push_raw(key: bytes | None, value: bytes | None) -> None:
            add_key(key)
            add_value(value)
            add_row(position.row)

        return push_raw

    def _make_accept(self, position: Position) -> Accept:
        key_serde, value_serde = self.channel.key_serde, self.channel.value_serde
        source, place = self.channel.source, self._place

        def accept(columns: MessageColumns) -> None:
            rows = columns.rows
            keys, values = columns.written_by("key", key_serde), columns.written_by("value", value_serde)
            if keys is None:
                keys = encode_column("key", key_serde, columns.keys, rows, position, source, place)
            if values is None:
                values = encode_column("value", value_serde, columns.values, rows, position, source, place)
            self.accept_raw(keys, values, rows)

        return accept

    def accept_raw(self, keys: Raw, values: Raw, rows: Sequence[int]) -> None:
        """Add messages that are serialised already; `rows` are those of the page they were made from."""
        self.keys.extend(keys)
        self.values.extend(values)
        self._rows.extend(rows)

    def __len__(self) -> int:
        return len(self.keys)

    def count_bytes(self) -> int:
        """Add the messages since the last call to `bytes`, and return their bytes."""
        start, self._counted = self._counted, len(self.keys)
        more = sum(sum(map(len, filter(None, islice(column, start, None)))) for column in (self.keys, self.values))
        self.bytes += more
        return more

    @property
    def is_ready(self) -> bool:
        return len(self.keys) >= FLUSH_MESSAGES or self.bytes >= FLUSH_BYTES

    def end_page(self, page: MessagePage) -> None:
        """Resolve the rows noted on this page, from which all messages collected since the last page are."""
        if self._rows:
            if page.packed_headers:
                first = len(self.keys) - len(self._rows)
                own = {n: packed for n, row in enumerate(self._rows, first) if (packed := page.packed_headers.get(row))}
                self._headers |= own
                self.bytes += sum(map(len, own.values()))
            rows = np.fromiter(self._rows, np.int64, len(self._rows))
            timestamps, origins, offsets = (column[rows] for column in page.columns())
            self._pages.append((timestamps, origins, offsets))
            self._rows.clear()

    @property
    def has_keyless(self) -> bool:
        """True if a message of an ended page has no key."""
        return None in self.keys

    def truncate(self, length: int) -> None:
        """Forget the messages of the current page after the first `length`."""
        forgotten = len(self.keys) - length
        for column in (self.keys, self.values):
            del column[length:]
        del self._rows[len(self._rows) - forgotten :]

    def begin(self, batch: Batch | None) -> None:
        """Begin an attempt: the outlet is empty. `batch`: messages may leave added up (`PartialOutlet`); None: they
        leave as they are."""
        self.clear()

    def clear(self) -> None:
        for column in (self.keys, self.values, self._rows, self._pages, self._headers):
            column.clear()
        self.bytes = self._counted = 0

    def take(self) -> Iterator[pa.RecordBatch]:
        """The messages of all ended pages, in order, in batches of bounded size; the outlet is empty afterwards."""
        if not self.keys:
            return
        origins = [pa.array(np.concatenate(column)) for column in zip(*self._pages, strict=True)]
        self.count_bytes()
        headers = self._headers
        for start, end in _cuts(self.keys, self.values, self.bytes):
            arrays = [pa.array(column[start:end], pa.binary()) for column in (self.keys, self.values)]
            arrays += [column.slice(start, end - start) for column in origins]
            messages = pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA)
            if headers:
                messages = with_headers(messages, pa.array(map(headers.get, range(start, end)), pa.binary()))
            yield messages
        self.clear()


def _cuts(keys: list[bytes | None], values: list[bytes | None], total: int) -> Iterator[tuple[int, int]]:
    """Index ranges of at most MAX_PACKET_BYTES each, or of one message; `total` is the bytes of all."""
    if total <= MAX_PACKET_BYTES:
        if keys:
            yield 0, len(keys)
        return
    start = size = 0
    for i, (key, value) in enumerate(zip(keys, values, strict=True)):
        more = len(key or b"") + len(value or b"")
        if i > start and size + more > MAX_PACKET_BYTES:
            yield start, i
            start, size = i, 0
        size += more
    yield start, len(keys)


FLUSH_ROWS = 1 << 16
"""As FLUSH_MESSAGES, of messages in columns."""


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
        return len(self) >= FLUSH_ROWS or self.bytes >= FLUSH_BYTES

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
        rows = max(1, min(FLUSH_ROWS, MAX_PACKET_BYTES * whole.num_rows // max(1, whole.nbytes)))
        for start in range(0, whole.num_rows, rows):
            yield whole.slice(start, rows)
        self.clear()


def _array(keys: Raw) -> pa.Array:
    if isinstance(keys, ArrowSequence):
        return keys.array.cast(pa.binary())
    return pa.array(keys, pa.binary())


def _numbers(rows: Sequence[int]) -> Any:
    return np.arange(rows.start, rows.stop) if isinstance(rows, range) else np.asarray(rows, np.int64)


class LimitedOutlet(Outlet):
    """An outlet that takes no record which its stream refuses."""

    def __init__(self, channel: Channel, position: Position, place: SerdePlace, limits: RecordLimits) -> None:
        self._limits = limits
        self._position = position
        super().__init__(channel, position, place)

    def _make_push(self, position: Position) -> Push:
        return self._checking(super()._make_push(position))

    def _make_push_raw(self, position: Position) -> Push:
        return self._checking(super()._make_push_raw(position))

    def _checking(self, push: Push) -> Push:
        keys, values, refused, position = self.keys, self.values, self._limits.refused, self._position

        def checked(key: Any, value: Any) -> None:
            push(key, value)
            if (reason := refused(keys[-1], values[-1], self._headers_bytes(position.row))) is not None:
                self.truncate(len(keys) - 1)
                raise self._failure(reason)

        return checked

    def accept_raw(self, keys: Raw, values: Raw, rows: Sequence[int]) -> None:
        least = self._limits.least_bytes
        total = sum(len(part or b"") for column in (keys, values) for part in column)
        is_small = least is None or total + sum(map(len, self._position.page.packed_headers.values())) <= least
        if not is_small or (self._limits.needs_key and None in keys):
            for key, value, row in zip(keys, values, rows, strict=True):
                if (reason := self._limits.refused(key, value, self._headers_bytes(row))) is not None:
                    self._position.row = row
                    raise self._failure(reason)
        super().accept_raw(keys, values, rows)

    def _headers_bytes(self, row: int) -> int:
        page = self._position.page
        return headers_size(page.headers(row)) if row in page.packed_headers else 0

    def _failure(self, reason: str) -> OperatorFailedError:
        remedy = self._limits.remedy and f". {self._limits.remedy}"
        return failure_in(
            self.channel.source,
            ConfigError(
                f"the output `{self.channel.output}` refuses a message: {reason} (by its settings when the run "
                f"started). It was not sent, and is in no checkpoint{remedy}"
            ),
        )
