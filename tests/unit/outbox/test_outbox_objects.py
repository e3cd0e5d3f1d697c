"""The objects of an outbox: what comes out is what was put in, and damage is noticed."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import CorruptError, IncompatibleError
from penstock.outbox import task as outbox_objects
from penstock.outbox.task import (
    CHUNK_BYTES,
    CHUNK_MESSAGES,
    ObjectContents,
    Outbox,
    OutboxSnapshot,
    decode,
    encode,
    objects_of,
)
from penstock.outbox.wing import OutboxObject, OutputPart
from penstock.system.base import RawRecord
from tests.support.streams.outboxes import bring, record


def taken_of(*packets: tuple[int, list[RawRecord]]) -> OutboxSnapshot:
    outbox = Outbox(0)
    for batch, packet in enumerate(packets, 1):
        bring(outbox, batch, packet)
    taken = outbox.take()
    assert taken is not None
    return taken


def written(taken: OutboxSnapshot) -> list[tuple[OutboxObject, bytes]]:
    return [encode(one, 3) for one in objects_of(taken, "a-1/outbox/7-5-0-3-{}".format)]


def content(objects: list[ObjectContents]) -> dict[int, list[RawRecord]]:
    found: dict[int, list[RawRecord]] = {}
    for one in objects:
        for chunk in one.chunks:
            records = list(one.records(chunk))
            assert len(records) == chunk.messages
            found.setdefault(chunk.ssp.partition, []).extend(records)
    return found


PACKETS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(
            st.tuples(st.integers(-(2**62), 2**62), st.none() | st.binary(max_size=20), st.none() | st.binary()),
            min_size=1,
            max_size=4,
        ),
    ),
    min_size=1,
    max_size=12,
)


@given(PACKETS, st.integers(1, 8), st.integers(1, 2000), st.integers(1, 4000), st.sampled_from([0, 450, 4000]))
def test_any_messages_come_back_in_order(
    packets: list[tuple[int, list[RawRecord]]], messages: int, chunk_bytes: int, object_bytes: int, small_bytes: int
) -> None:
    expected: dict[int, list[RawRecord]] = {}
    for partition, records in packets:
        expected.setdefault(partition, []).extend(records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outbox_objects, "CHUNK_MESSAGES", messages)
        patch.setattr(outbox_objects, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(outbox_objects, "OBJECT_BYTES", object_bytes)
        patch.setattr(outbox_objects, "_SMALL_BYTES", small_bytes)
        found = written(taken_of(*packets))
    read = [decode(named, data) for named, data in found]
    assert content(read) == expected
    for ssp in {ssp for named, _ in found for ssp in named.parts}:  # numbers go on from object to object
        numbers = [chunk.number for one in read for chunk in one.chunks if chunk.ssp == ssp]
        assert numbers == list(range(sum(named.parts[ssp].chunks for named, _ in found if ssp in named.parts)))
    assert [named.key for named, _ in found] == [f"a-1/outbox/7-5-0-3-{n}" for n in range(len(found))]
    assert all(named.task == 3 for named, _ in found)


def test_chunks_and_objects_are_bounded() -> None:
    small = [(0, [record(n)]) for n in range(CHUNK_MESSAGES + 1)]
    large = [(1, [record(n, 300_000)]) for n in range(8)]
    huge = [(2, [record(0, 3 << 20), record(1, 3 << 20)])]
    found = [decode(named, data) for named, data in written(taken_of(*small, *large, *huge))]
    chunks = [chunk for one in found for chunk in one.chunks]
    assert [chunk.messages for chunk in chunks if chunk.ssp.partition == 0] == [2436] * 4 + [257]
    assert [chunk.messages for chunk in chunks if chunk.ssp.partition == 1] == [3, 4, 1]
    assert [chunk.messages for chunk in chunks if chunk.ssp.partition == 2] == [2]
    assert all(chunk.size_bytes <= CHUNK_BYTES for chunk in chunks if chunk.ssp.partition != 2)
    assert content(found)[2] == huge[0][1]


def test_small_packets_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    packets = [(n % 2, [record(n)]) for n in range(1000)]
    ((joined, data),) = written(taken_of(*packets))
    monkeypatch.setattr(outbox_objects, "_SMALL_BYTES", 0)
    ((apart, separate),) = written(taken_of(*packets))
    assert len(data) < 70 * 1000 < 400 * 1000 < len(separate)
    assert joined.parts == apart.parts
    assert content([decode(joined, data)]) == content([decode(apart, separate)])


def test_the_same_messages_make_the_same_bytes() -> None:
    packets = [(n % 3, [record(n)]) for n in range(20)]
    assert written(taken_of(*packets)) == written(taken_of(*packets))


@pytest.mark.parametrize("place", [0, 3, 9, 20, 60, -1])
def test_damage_is_noticed(place: int) -> None:
    ((named, data),) = written(taken_of((0, [record(1)])))
    damaged = bytearray(data)
    damaged[place] ^= 1
    for bad in (bytes(damaged), data[:-1], data + b"\0", b""):
        with pytest.raises(CorruptError, match="object `a-1/outbox/7-5-0-3-0` of the outbox is damaged"):
            decode(named, bad)
    assert content([decode(named, data)]) == {0: [record(1)]}


def of(data: bytes, named: OutboxObject) -> OutboxObject:
    """The record names these bytes."""
    return replace(named, size_bytes=len(data), sha256=outbox_objects._hash(data))


def test_an_object_that_is_none_is_refused() -> None:
    ((named, data),) = written(taken_of((0, [record(1)])))
    other = b"whatever"
    with pytest.raises(CorruptError, match="does not begin with `PENSTOB1`"):
        decode(of(other, named), other)
    newer = b"PENSTOB2" + data[8:]
    with pytest.raises(IncompatibleError, match="of a version that this Penstock does not read"):
        decode(of(newer, named), newer)
    shorter = data[:11]
    with pytest.raises(CorruptError, match="is damaged"):
        decode(of(shorter, named), shorter)
    head = msgspec.msgpack.encode([{"system": "m"}])
    broken = data[:8] + len(head).to_bytes(4, "little") + head
    with pytest.raises(CorruptError, match=r"is damaged: .*stream"):
        decode(of(broken, named), broken)


def test_an_object_with_other_chunks_than_the_record_names_is_refused() -> None:
    ((named, data),) = written(taken_of((0, [record(1)])))
    ssp = SystemStreamPartition("m", "out", 0)
    with pytest.raises(CorruptError, match="has other partitions or chunks"):
        decode(replace(named, parts={ssp: OutputPart(2, 1)}), data)


def test_only_the_partitions_that_the_record_names_are_there() -> None:
    """A record of a copied job names those of DataFrames, not those that the original publishes."""
    ((named, data),) = written(taken_of((0, [record(1)]), (1, [record(2)]), (0, [record(3)])))
    some = {ssp: part for ssp, part in named.parts.items() if ssp.partition == 0}
    assert len(some) < len(named.parts)
    assert content([decode(replace(named, parts=some), data)]) == {0: [record(1), record(3)]}


def test_a_payload_that_cannot_be_decoded_names_object_and_chunk() -> None:
    ((named, data),) = written(taken_of((0, [record(1)])))
    zeros = data[:-200] + bytes(200)
    contents = decode(of(zeros, named), zeros)
    with pytest.raises(CorruptError, match=r"object `a-1/outbox/7-5-0-3-0` .* chunk 0 of `m\.out\.0`"):
        list(contents.records(contents.chunks[0]))
