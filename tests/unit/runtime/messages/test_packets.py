"""Packets as Arrow batches: every payload comes back, and none is kept after its batch is gone."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptError
from penstock.runtime.context import MessagePage, ReceivedPage, SspTable
from penstock.runtime.messages import packet as packets_module
from penstock.runtime.messages.packet import (
    PACKET_SCHEMA,
    Packet,
    PacketKind,
    from_batch,
    origin_code,
    pack_places,
    split_by_size,
    to_batch,
    unpack_places,
)

PAYLOADS = st.none() | st.binary(max_size=40) | st.binary(max_size=40).map(pa.py_buffer)


def packet(seq: int, payload: bytes | pa.Buffer | None) -> Packet:
    return Packet(seq % 3, 1, PacketKind.DATA, 0, 3, "token", 0, 3, seq, 5, payload)


def plain(packet: Packet) -> Packet:
    payload, places = (None if part is None else bytes(part) for part in (packet.payload, packet.places))
    return packet._replace(payload=payload, places=places)


class Memory(np.ndarray):
    """Memory that can be watched: Arrow's own buffers take no weak references."""


@given(st.lists(st.tuples(PAYLOADS, PAYLOADS)))
def test_packets_come_back(parts: list[tuple[bytes | pa.Buffer | None, bytes | pa.Buffer | None]]) -> None:
    sent = [packet(seq, payload)._replace(places=places) for seq, (payload, places) in enumerate(parts)]
    batch = to_batch(sent)
    batch.validate(full=True)
    assert batch.schema == PACKET_SCHEMA
    assert [plain(p) for p in from_batch(batch)] == [plain(p) for p in sent]


def test_a_payload_is_released_with_its_batch() -> None:
    memory = np.zeros(1000, np.uint8).view(Memory)
    released = weakref.ref(memory)
    batches = [to_batch([packet(0, pa.py_buffer(memory)), packet(1, b"x"), packet(2, None)])]
    del memory
    batches.clear()
    gc.collect()
    assert released() is None


def test_packets_that_no_batch_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets_module, "_MAX_COLUMN_BYTES", 10)
    to_batch([packet(0, b"12345"), packet(1, b"67890")])
    with pytest.raises(ValueError, match="11 bytes"):
        to_batch([packet(0, b"12345"), packet(1, b"678901")])


def test_groups_are_bounded_by_bytes() -> None:
    sent = [packet(seq, b"x" * 1000) for seq in range(50)]
    groups = list(split_by_size(sent, 10_000))
    assert [p for group in groups for p in group] == sent
    assert {len(group) for group in groups[:-1]} == {8}


def test_a_received_page_says_where_messages_came_from_and_keeps_nothing_of_the_packet() -> None:
    data = np.array([[1000, 1001], [origin_code(0, 3), origin_code(1, 0)], [7, 2**40]], np.int64)
    page = ReceivedPage(SspTable((("m", "a"), ("m", "b"))), *(column.copy() for column in data))
    assert [str(page.ssp(row)) for row in range(2)] == ["m.a.3", "m.b.0"]
    assert (page.timestamps, page.offsets) == ([1000, 1001], [7, 2**40])
    assert all(type(value) is int for value in (*page.timestamps, *page.offsets))
    assert [column.tolist() for column in page.columns()] == data.tolist()
    listed = MessagePage(SspTable((("m", "a"), ("m", "b"))), *data.tolist())
    assert [column.tolist() for column in listed.columns()] == data.tolist()


LONG = st.integers(-(2**63), 2**63 - 1)
NEAR = st.builds(lambda least, more: min(least + more, 2**63 - 1), st.just(2**62), st.integers(0, 70_000))


@given(st.lists(st.tuples(LONG, NEAR, st.just(7)), min_size=1, max_size=50))
def test_columns_come_back(rows: list[tuple[int, int, int]]) -> None:
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    found = unpack_places(pack_places(columns), 3, len(rows))
    assert [column.tolist() for column in found] == [column.tolist() for column in columns]


def test_columns_that_hardly_differ_are_short() -> None:
    offsets = np.arange(1 << 40, (1 << 40) + 50_000)
    packed = pack_places([np.full(50_000, -1), np.zeros(50_000, np.int64), offsets])
    assert len(packed) == 3 * 16 + 2 * 50_000


@pytest.mark.parametrize("wrong", [b"", b"1234567", bytes(16), b"\x01" * 48])
def test_damaged_places_are_refused(wrong: bytes) -> None:
    with pytest.raises(CorruptError, match="the places of 3 messages are damaged"):
        unpack_places(wrong, 3, 3)


def test_places_of_another_number_of_messages_are_refused() -> None:
    packed = pack_places([np.arange(100)] * 3)
    for count in (96, 105, 300):
        with pytest.raises(CorruptError):
            unpack_places(packed, 3, count)
