"""Packets of many messages, which travel between stages.

A data packet carries up to a few thousand messages of one channel for one task, as an Arrow batch in its payload, so
that the JVM never touches a single message. Attempts end their output with a trailer packet for every task of every
stage that they send to (`incoming.py`), and each has one report packet for the driver.

Timestamps, origins and offsets are in few bytes: each column is its least value and the differences. Most messages of
a packet come from one partition, and from offsets that are close together. As integers of 64 bits, these columns
would be longer than the rows of many streams.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.api.messages import unpack_headers
from penstock.api.serdes import ColumnSerde, Serde
from penstock.errors import CorruptError
from penstock.system.base import RawRecord

_HEAD = struct.Struct("<qq")
"""The least value, and the number of bytes of each difference: none if all values are equal."""
_WIDTHS = (0, 1, 2, 4, 8)
_ALIGNED = 8


def pack_places(columns: Sequence[Any]) -> bytes:
    """The bytes of the columns.

    Args:
        columns: arrays of int64 of one length, which is not 0.
    """
    parts: list[bytes] = []
    for column in columns:
        least, greatest = int(column.min()), int(column.max())
        width = next(each for each in _WIDTHS if greatest - least < 1 << 8 * each)
        parts.append(_HEAD.pack(least, width))
        if width:
            data = (column - least).astype(f"<u{width}").tobytes()  # the difference wraps around in int64, and back
            parts.append(data + bytes(-len(data) % _ALIGNED))
    return b"".join(parts)


def unpack_places(data: bytes | pa.Buffer, columns: int, count: int) -> list[Any]:
    """As many columns of `count` values, as arrays of their own. Raises CorruptError if the bytes are others."""
    view, found, begin = memoryview(data), [], 0
    try:
        for _ in range(columns):
            least, width = _HEAD.unpack_from(view, begin)
            begin += _HEAD.size
            if width not in _WIDTHS:
                raise ValueError(f"a difference of {width} bytes")
            values = np.full(count, least, np.int64)
            if width:
                values += np.frombuffer(view, f"<u{width}", count, begin).astype(np.int64)
                begin += count * width + -(count * width) % _ALIGNED
            found.append(values)
        if begin != len(view):
            raise ValueError(f"{len(view)} bytes, and {begin} expected")
    except (struct.error, ValueError) as error:
        raise CorruptError(f"the places of {count} messages are damaged: {error}") from error
    return found


REPORT_STAGE = -1
"""The stage number that report packets are addressed to: the driver."""

_MAX_COLUMN_BYTES = 2**31 - 1
"""A binary column has offsets of 32 bits."""


class PacketKind(IntEnum):
    """The kind of a packet."""

    DATA = 0
    TRAILER = 1
    """The attempts in its payload have ended; `places` has how much each sent to this task."""
    REPORT = 2
    PARTIAL = 3
    """As DATA, with states of the aggregate that the channel leads to in the place of its messages' values."""


WITH_MESSAGES = frozenset({PacketKind.DATA, PacketKind.PARTIAL})
"""The kinds of packets that have messages, or states in their place."""


class Packet(NamedTuple):
    """A packet. `dest` and `stage` are its target; `source_*` and `token` name the attempt that sent it (a trailer does
    so in its payload); `seq` numbers the data packets from one attempt to one task of one stage. Messages that stay in
    columns have their timestamps, origins and offsets in `places`."""

    dest: int
    stage: int
    kind: int
    source_stage: int
    source_task: int
    token: str
    channel: int
    partition: int
    seq: int
    messages: int
    payload: bytes | pa.Buffer | None
    places: bytes | pa.Buffer | None = None


PACKET_SCHEMA = pa.schema(
    [
        pa.field("dest", pa.int32()),
        pa.field("stage", pa.int32()),
        pa.field("kind", pa.int32()),
        pa.field("source_stage", pa.int32()),
        pa.field("source_task", pa.int32()),
        pa.field("token", pa.string()),
        pa.field("channel", pa.int32()),
        pa.field("partition", pa.int32()),
        pa.field("seq", pa.int32()),
        pa.field("messages", pa.int32()),
        pa.field("payload", pa.binary()),
        pa.field("places", pa.binary()),
    ]
)

_INTEGERS = PACKET_SCHEMA.get_field_index("payload")
_TOKEN = PACKET_SCHEMA.get_field_index("token")
"""All columns before the payload are integers, except for this one."""

NO_PACKETS = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in PACKET_SCHEMA], schema=PACKET_SCHEMA)
"""A batch that only shows that its sender is alive."""

MESSAGE_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.int64()),
        pa.field("origin", pa.int64()),
        pa.field("offset", pa.int64()),
    ]
)
"""The columns of messages. `origin` and `offset` name the input message a message was made from."""


_PLACES = MESSAGE_SCHEMA.get_field_index("timestamp")
"""The first of the columns that say when and where a message came from."""

_HEADERS = len(MESSAGE_SCHEMA)
"""The place of one more column, with packed headers, which a batch has only if one of its messages has headers."""
_HEADERS_FIELD = pa.field("headers", pa.binary())
_HEADED = b"PENSTHDR"
"""The first bytes of a payload with that column. It has eight, so that what follows stays aligned."""


def with_headers(messages: pa.RecordBatch, headers: pa.Array) -> pa.RecordBatch:
    """The messages with their headers: a null for a message without. The batch as it is, if no message has any."""
    return messages if headers.null_count == len(headers) else messages.append_column(_HEADERS_FIELD, headers)


def in_one(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The messages of all batches, of which some may have headers."""
    if len({batch.num_columns for batch in batches}) > 1:
        batches = [
            batch
            if batch.num_columns > _HEADERS
            else batch.append_column(_HEADERS_FIELD, pa.nulls(batch.num_rows, pa.binary()))
            for batch in batches
        ]
    return pa.concat_batches(batches)


def records_of(messages: pa.RecordBatch) -> Iterable[RawRecord]:
    """The messages as they are written to a system."""
    keys, values, timestamps = (messages.column(i).to_pylist() for i in range(3))
    if messages.num_columns == _HEADERS:
        return zip(timestamps, keys, values, strict=True)
    packed = messages.column(_HEADERS).to_pylist()
    return (
        (timestamp, key, value) if own is None else (timestamp, key, value, unpack_headers(own))
        for timestamp, key, value, own in zip(timestamps, keys, values, packed, strict=True)
    )


def rows_schema(value: ColumnSerde) -> pa.Schema:
    """`MESSAGE_SCHEMA` with rows of a schema in place of values."""
    number = MESSAGE_SCHEMA.get_field_index("value")
    return MESSAGE_SCHEMA.set(number, pa.field("value", value.type))


def origin_code(input_index: int, partition: int) -> int:
    """The number that names an input's partition: `input_index` counts the inputs of the application."""
    return input_index << 32 | partition


def fired_origin(task: int) -> int:
    return origin_code(-1, task)


def split_origin(code: int) -> tuple[int, int]:
    """(input index, partition) of an origin code; index -1 and the task for a firing."""
    return code >> 32, code & 0xFFFFFFFF


def to_batch(packets: Sequence[Packet]) -> pa.RecordBatch:
    if not packets:
        return NO_PACKETS
    columns = list(zip(*packets, strict=True))
    arrays = [
        pa.array(column, pa.string()) if number == _TOKEN else _integer_column(column)
        for number, column in enumerate(columns[:_INTEGERS])
    ]
    arrays += map(_binary_column, columns[_INTEGERS:])
    return pa.RecordBatch.from_arrays(arrays, schema=PACKET_SCHEMA)


def _integer_column(cells: Sequence[int]) -> pa.Int32Array:
    """The cells as a column, in half the time that `pa.array` takes for a few of them."""
    return pa.Array.from_buffers(pa.int32(), len(cells), [None, pa.py_buffer(array("i", cells))])


def _binary_column(cells: Sequence[bytes | pa.Buffer | None]) -> pa.BinaryArray:
    """The cells as a column of bytes, with one copy.

    `pa.array` does not take Arrow buffers as cells, and it must not get memoryviews of them: for each of these pyarrow
    (26.0.1) keeps a reference to the memory until the process ends. It does not for bytes or bytearray.

        data = bytearray(1000)
        arrays = [pa.array([memoryview(data)], pa.binary()) for _ in range(100)]
        del arrays; print(sys.getrefcount(data))  # 102, and 2 is right
    """
    if not any(cells):
        return pa.array([None if cell is None else b"" for cell in cells], pa.binary())
    offsets = list(accumulate(map(_size, cells), initial=0))
    if offsets[-1] > _MAX_COLUMN_BYTES:
        raise ValueError(f"packets of {offsets[-1]} bytes together do not fit into one Arrow batch")
    valid = None if all(cell is not None for cell in cells) else pa.array([cell is not None for cell in cells])
    data = b"".join([cell for cell in cells if cell is not None])
    buffers = [valid and valid.buffers()[1], pa.py_buffer(array("i", offsets)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(cells), buffers)


def from_batch(batch: pa.RecordBatch) -> Iterator[Packet]:
    """The packets of an Arrow batch; payloads are views into it, not copies. Raises CorruptError if it is damaged."""
    with _decoding():
        batch.validate(full=True)
    columns: list[Iterable[Any]] = [batch.column(i).to_pylist() for i in range(_INTEGERS)]
    columns += [(scalar.as_buffer() for scalar in batch.column(i)) for i in range(_INTEGERS, len(PACKET_SCHEMA))]
    for row in zip(*columns, strict=True):
        yield Packet(*row)


class PacketColumns(NamedTuple):
    """The columns of a packet."""

    keys: pa.Array
    values: pa.Array
    places: list[Any]
    """Timestamps, origins and offsets, as arrays of int64 that may be changed."""
    packed_headers: dict[int, bytes]
    """By row, of the messages that have some."""


def encode_messages(messages: pa.RecordBatch) -> bytes | pa.Buffer:
    data = messages.serialize()
    return data if messages.num_columns == _HEADERS else _HEADED + data


def encode_rows(messages: pa.RecordBatch) -> tuple[bytes | pa.Buffer, bytes]:
    """The payload and the places of a packet of messages that stay in columns (`rows_schema`)."""
    columns, places = messages.columns, range(_PLACES, _HEADERS)
    body = messages.select([number for number in range(messages.num_columns) if number not in places])
    data = body.serialize()
    packed = pack_places([columns[number].to_numpy() for number in places])
    return data if messages.num_columns == _HEADERS else _HEADED + data, packed


def decode_columns(packet: Packet, value: Serde[Any]) -> PacketColumns:
    """The columns of a packet whose values have this serde.

    Raises:
        CorruptError: the packet is damaged.
    """
    payload = packet.payload or b""
    if not isinstance(value, ColumnSerde):
        messages = decode_messages(payload)
        columns = messages.columns
        places = [column.to_numpy().copy() for column in columns[_PLACES:_HEADERS]]
        headers = columns[_HEADERS:]
    else:
        schema = rows_schema(value)
        messages = read_batch(payload, pa.schema(list(schema)[:_PLACES]))
        columns = messages.columns
        places = unpack_places(packet.places or b"", len(schema) - _PLACES, messages.num_rows)
        headers = columns[_PLACES:]
    packed = {row: own for column in headers for row, own in enumerate(column.to_pylist()) if own is not None}
    return PacketColumns(columns[0], columns[1], places, packed)


def decode_messages(payload: bytes | pa.Buffer) -> pa.RecordBatch:
    """The messages of a data packet whose values are bytes. Raises CorruptError if it is damaged."""
    return read_batch(payload, MESSAGE_SCHEMA)


def read_batch(data: bytes | pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The batch of a payload; it may have one more column, of headers. Raises CorruptError if the bytes are damaged."""
    if memoryview(data)[: len(_HEADED)] == _HEADED:
        data, schema = pa.py_buffer(data).slice(len(_HEADED)), schema.append(_HEADERS_FIELD)
    with _decoding():
        batch = pa.ipc.read_record_batch(data, schema)
        batch.validate(full=True)
        return batch


@contextmanager
def _decoding() -> Iterator[None]:
    """Turn Arrow's errors into CorruptError. A batch has to be validated here: Arrow believes its offsets, and wrong
    ones end the process."""
    try:
        yield
    except (pa.ArrowException, EOFError, OSError) as error:
        raise CorruptError(f"a packet of messages is damaged: {error}") from error


def split_by_size(packets: Iterable[Packet], limit_bytes: int = 4 << 20) -> Iterator[list[Packet]]:
    """Groups of about `limit_bytes`, in order, so that no Arrow batch grows without bound."""
    group: list[Packet] = []
    size = 0
    for packet in packets:
        group.append(packet)
        size += 256 + _size(packet.payload) + _size(packet.places)
        if size >= limit_bytes:
            yield group
            group, size = [], 0
    if group:
        yield group


def _size(payload: bytes | pa.Buffer | None) -> int:
    return 0 if payload is None else len(payload)
