"""Packets in PySpark's RDDs: Arrow batches as frames of bytes, into which neither Spark nor pickle looks."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import pyarrow as pa
from pyspark.serializers import Serializer, SpecialLengths

from penstock.errors import CorruptError
from penstock.runtime.messages.packet import PACKET_SCHEMA, read_batch

_LENGTH = struct.Struct("!i")
_LANE = struct.Struct("!iq")
"""The number of a partition, with its length before it, as PySpark's PairwiseRDD reads it."""


class PacketSerializer(Serializer):
    """Serializes batches of packets. An empty batch is sent at once, with everything written before it: it shows that
    the worker is alive."""

    def dump_stream(self, iterator: Iterable[pa.RecordBatch], stream: BinaryIO) -> None:
        for batch in iterator:
            _write(batch, stream)

    def load_stream(self, stream: BinaryIO) -> Iterator[pa.RecordBatch]:
        return (read_batch(frame, PACKET_SCHEMA) for frame in _read_frames(stream))


class RawFrames(Serializer):
    """Elements that are bytes. Read-only."""

    def load_stream(self, stream: BinaryIO) -> Iterator[pa.Buffer]:
        return _read_frames(stream)


class FramesByLane(Serializer):
    """Serializes (lane, batch) for the JVM's exchange: the lane is the partition that the batch goes to."""

    def dump_stream(self, iterator: Iterable[tuple[int, pa.RecordBatch]], stream: BinaryIO) -> None:
        for lane, batch in iterator:
            stream.write(_LANE.pack(_LANE.size - _LENGTH.size, lane))
            _write(batch, stream)


def _read_frames(stream: BinaryIO) -> Iterator[pa.Buffer]:
    while (length := _read_length(stream)) is not None:
        frame = stream.read(length)
        if len(frame) < length:
            raise EOFError(f"a frame of {length} bytes ends after {len(frame)}")
        yield pa.py_buffer(frame)


def _write(batch: pa.RecordBatch, stream: BinaryIO) -> None:
    frame = batch.serialize()
    stream.write(_LENGTH.pack(frame.size))
    stream.write(frame)
    if not batch.num_rows:
        stream.flush()


def _read_length(stream: BinaryIO) -> int | None:
    """The length of the next frame. None at the end, which the stream tells a worker and the driver sees."""
    head = stream.read(_LENGTH.size)
    if not head:
        return None
    if len(head) < _LENGTH.size:
        raise EOFError("the length of a frame breaks off")
    length = int(_LENGTH.unpack(head)[0])
    if length == SpecialLengths.END_OF_DATA_SECTION:
        return None
    if length < 0:
        raise CorruptError(f"a stream of packets is damaged: it has a frame of {length} bytes")
    return length
