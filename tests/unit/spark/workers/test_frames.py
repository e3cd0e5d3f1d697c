"""Batches of packets as frames in the streams between Spark and its Python workers."""

from __future__ import annotations

import io
import struct

import pyarrow as pa
import pytest
from pyspark.serializers import SpecialLengths

from penstock.runtime.messages.packet import PACKET_SCHEMA, Packet, PacketKind, from_batch, to_batch
from penstock.spark.workers.frames import FramesByLane, PacketSerializer
from penstock.spark.workers.worker import ByLane


def packet(dest: int, payload: bytes = b"payload") -> Packet:
    return Packet(dest, 1, PacketKind.DATA, 0, 3, "token", 0, 3, 0, 5, payload)


BATCHES = [
    to_batch([packet(0), packet(1, b"")]),
    to_batch([]),
    to_batch([packet(2, bytes(range(256)) * 300_000)]),
    to_batch([packet(n) for n in range(50)]).slice(7, 30),
]


class Noted(io.BytesIO):
    """Knows how long it was when it was flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[int] = []

    def flush(self) -> None:
        self.flushed.append(self.tell())


def dumped(batches: list[pa.RecordBatch]) -> bytes:
    stream = io.BytesIO()
    PacketSerializer().dump_stream(batches, stream)
    return stream.getvalue()


@pytest.mark.parametrize("end", [b"", struct.pack("!i", SpecialLengths.END_OF_DATA_SECTION) + b"what comes after"])
def test_batches_come_back(end: bytes) -> None:
    """A worker's input ends with a mark, the driver's with the stream."""
    stream = io.BytesIO(dumped(BATCHES) + end)
    assert list(PacketSerializer().load_stream(stream)) == BATCHES
    assert not end or stream.read() == b"what comes after"


@pytest.mark.few(1)
@pytest.mark.parametrize("lost", [1, 100, 1000])
def test_a_frame_that_breaks_off_is_an_error(lost: int) -> None:
    stream = io.BytesIO(dumped([BATCHES[0], BATCHES[2]])[:-lost])
    batches = PacketSerializer().load_stream(stream)
    assert next(batches) == BATCHES[0]
    with pytest.raises(EOFError, match="a frame of"):
        next(batches)


def test_a_length_that_breaks_off_is_an_error() -> None:
    with pytest.raises(EOFError, match="length"):
        list(PacketSerializer().load_stream(io.BytesIO(dumped(BATCHES) + b"\0\0")))


def test_an_empty_batch_is_sent_at_once_with_what_came_before() -> None:
    stream = Noted()
    PacketSerializer().dump_stream([BATCHES[0], BATCHES[1], BATCHES[0]], stream)
    assert stream.flushed == [len(dumped(BATCHES[:2]))]


def test_lanes_are_numbers_of_eight_bytes_before_their_frames() -> None:
    stream = Noted()
    FramesByLane().dump_stream([(3, BATCHES[0]), (2**40, BATCHES[1])], stream)
    data = stream.getvalue()
    first = dumped(BATCHES[:1])
    lane = struct.Struct("!iq")
    assert data[:12] == lane.pack(8, 3)
    assert data[12 : 12 + len(first)] == first
    assert data[12 + len(first) :][:12] == lane.pack(8, 2**40)
    assert stream.flushed == [len(data)]


def test_a_batch_is_cut_by_the_lanes_of_its_packets() -> None:
    lane_of = (1, 0, 1, 2)
    packets = [packet(n % 4, b"%d" % n) for n in range(20)]
    found: dict[int, list[Packet]] = {}
    for lane, batch in ByLane(lane_of)(iter([to_batch(packets[:9]), to_batch(packets[9:])])):
        assert batch.schema == PACKET_SCHEMA
        found.setdefault(lane, []).extend(from_batch(batch))
    expected: dict[int, list[Packet]] = {}
    for each in packets:
        expected.setdefault(lane_of[each.dest], []).append(each)
    assert {lane: [plain(p) for p in own] for lane, own in found.items()} == expected


def test_a_batch_for_one_lane_and_an_empty_one_pass_as_they_are() -> None:
    one, none = to_batch([packet(1), packet(3)]), to_batch([])
    passed = list(ByLane((0, 5, 0, 5))(iter([one, none])))
    assert [lane for lane, _ in passed] == [5, 0]
    assert passed[0][1] is one
    assert passed[1][1] is none


def plain(packet: Packet) -> Packet:
    return packet._replace(payload=bytes(packet.payload or b""))
