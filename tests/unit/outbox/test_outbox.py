"""The outbox of a task, its objects, and the messages of a checkpoint that are a job's own."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import Batch
from penstock.errors import ContainerLostError, CorruptError, IncompatibleError, RetryableError
from penstock.job.paths import JobPaths
from penstock.outbox import task as outbox_objects
from penstock.outbox.start import warn_of_copy
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
from penstock.outbox.wing import OutboxObject, OutputPart, OwedOutput, UnpublishedObjects, own_debt
from penstock.runtime.messages.incoming import DiscardedAttemptError, mark_of
from penstock.runtime.reports import Report
from penstock.runtime.settings import RuntimeSettings
from penstock.runtime.stage.task_instance import TaskInstance
from penstock.system.base import RawRecord
from tests.support.streams.outboxes import attempt_on, bring, once_topology, packets_of, record
from tests.support.streams.trailers import trailer


def file_sizes(folder: Path) -> list[int]:
    """Sizes of the unnamed files that this process has open in a folder."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(link.readlink()).startswith(f"{folder}/"):
                found.append(link.stat().st_size)
    return found


def content(taken: OutboxSnapshot | None) -> dict[int, list[RawRecord]]:
    """By partition, the messages in the order in which they are published."""
    found: dict[int, list[RawRecord]] = {}
    if taken is not None:
        for one in objects_of(taken, str):
            for chunk in one.chunks:
                found.setdefault(chunk.ssp.partition, []).extend(one.records(chunk))
    return found


@pytest.mark.parametrize("memory_bytes", [0, 1500, 1 << 20])
def test_messages_are_in_the_order_of_batch_stage_task_and_sequence(tmp_path: Path, memory_bytes: int) -> None:
    outbox = Outbox(0, memory_bytes, str(tmp_path))
    expected: dict[int, list[RawRecord]] = {}
    number = 0
    for batch in (1, 2):
        attempt = attempt_on(outbox, batch, tasks=2)
        sent = []
        for task in (0, 1):
            parts = []
            for partition in (0, 4, 0):
                records = [record(number + n) for n in range(3)]
                number += 3
                parts.append((0, partition, records))
                expected.setdefault(partition, []).extend(records)
            sent.append(packets_of((0, task), parts, f"{batch}-{task}"))
        for packet in [*reversed(sent[1]), *sent[0]]:  # out of order
            assert list(attempt.accept(packet)) == []
        (report,) = attempt.finish()
        read = Report.decode(bytes(report.payload or b""))
        assert (read.stage, read.messages, read.written, read.token) == (1, 18, {"m.out": 18}, f"token-{batch}")
        assert read.read == {0: mark_of(0, [(0, f"{batch}-0"), (1, f"{batch}-1")])}
        assert attempt.apply() > 0
    taken = outbox.take()
    assert content(taken) == expected
    assert outbox.take() is None
    outbox.close()
    assert content(taken) == expected


def test_a_discarded_attempt_leaves_nothing(tmp_path: Path) -> None:
    outbox = Outbox(0, 0, str(tmp_path))
    for run in range(50):
        attempt = attempt_on(outbox, 1)
        for packet in packets_of((0, 0), [(0, 0, [record(run, 10_000)])], "s")[: 1 + run % 2]:
            attempt.accept(packet)
        attempt.close()
        attempt.close()
    assert outbox.take() is None
    bring(outbox, 1, (0, [record(1)]))
    dropped = attempt_on(outbox, 2)
    dropped.accept(packets_of((0, 0), [(0, 0, [record(7)])], "s")[0])
    bring(outbox, 2, (0, [record(2)]))
    dropped.close()
    bring(outbox, 3, (0, [record(3)]))
    (size,) = file_sizes(tmp_path)
    assert size < 30_000  # what is discarded is written over
    assert content(outbox.take()) == {0: [record(1), record(2), record(3)]}


def test_an_attempt_whose_source_failed_has_nothing(tmp_path: Path) -> None:
    outbox = Outbox(0, 100, str(tmp_path))
    attempt = attempt_on(outbox, 1)
    attempt.accept(packets_of((0, 0), [(0, 0, [record(1)])], "s")[0])
    attempt.accept(trailer((0, 0), 1, 1, token="s", failed=True))
    (report,) = attempt.finish()
    read = Report.decode(bytes(report.payload or b""))
    assert (read.upstream_failed, read.messages, read.written) == (True, 0, {})


def test_an_attempt_without_every_trailer_is_discarded(tmp_path: Path) -> None:
    attempt = attempt_on(Outbox(0, 100, str(tmp_path)), 1)
    attempt.accept(packets_of((0, 0), [(0, 0, [record(1)])], "s")[0])
    with pytest.raises(DiscardedAttemptError):
        attempt.finish()


def test_an_attempt_from_before_a_commit_cannot_be_applied(tmp_path: Path) -> None:
    outbox = Outbox(0, 100, str(tmp_path))
    old = attempt_on(outbox, 1)
    trailing = packets_of((0, 0), [(0, 0, [record(1)])], "s")
    bring(outbox, 1, (0, [record(2)]))
    taken = outbox.take()
    with pytest.raises(DiscardedAttemptError, match="commit of task 0"):
        old.accept(trailing[0])
    with pytest.raises(ContainerLostError):
        old.apply()
    assert outbox.take() is None
    assert content(taken) == {0: [record(2)]}


def test_what_does_not_fit_into_memory_is_in_one_file_without_a_name(tmp_path: Path) -> None:
    outbox = Outbox(0, 4000, str(tmp_path))
    for batch in range(1, 2001):
        bring(outbox, batch, (batch % 3, [record(batch)]))
    assert len(file_sizes(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []
    taken = outbox.take()
    assert taken is not None
    assert content(taken) == {p: [record(n) for n in range(1, 2001) if n % 3 == p] for p in range(3)}
    taken.close()
    assert file_sizes(tmp_path) == []


def test_a_disk_that_is_full_fails_the_attempt_and_not_the_outbox(tmp_path: Path) -> None:
    outbox = Outbox(0, 0, str(tmp_path / "missing"))
    attempt = attempt_on(outbox, 1)
    with pytest.raises(RetryableError, match="messages that wait for an output cannot be kept in"):
        attempt.accept(packets_of((0, 0), [(0, 0, [record(1)])], "s")[0])
    attempt.close()
    (tmp_path / "missing").mkdir()
    bring(outbox, 1, (0, [record(1)]))
    assert content(outbox.take()) == {0: [record(1)]}


def test_end_applies_the_attempt_that_it_names(tmp_path: Path) -> None:
    topology = once_topology()
    settings = RuntimeSettings("a", 1, {"m.out": 3})
    outbox = Outbox(0, 100, str(tmp_path))
    task = TaskInstance(0, topology, settings, {}, 0, kept_output=outbox)
    for batch in (1, 2):
        for token in ("good", "bad"):
            attempt = task.begin_attempt(1, token, Batch(batch, 1, 0))
            number = 10 * batch + (token == "good")
            for packet in packets_of((0, 0), [(0, 2, [record(number)])], f"s-{token}"):
                list(attempt.accept(packet))
            list(attempt.finish())
            task.finish_attempt(attempt)
        before = task.pending_bytes
        for _ in range(2):  # a second time it does nothing
            task.end(batch, {1: "good"})
        assert task.pending_bytes > before
        before = task.pending_bytes
    task.take_changes()
    assert task.pending_bytes == 0
    assert content(outbox.take()) == {2: [record(11), record(21)]}
    assert outbox.take() is None
    task.close()


def test_the_partition_of_a_message_is_kept() -> None:
    outbox = Outbox(0)
    bring(outbox, 1, (5, [record(1)]), (2, [record(2)]))
    taken = outbox.take()
    assert taken is not None
    assert set(taken.parts) == {SystemStreamPartition("m", "out", 5), SystemStreamPartition("m", "out", 2)}


def taken_of(*packets: tuple[int, list[RawRecord]]) -> OutboxSnapshot:
    outbox = Outbox(0)
    for batch, packet in enumerate(packets, 1):
        bring(outbox, batch, packet)
    taken = outbox.take()
    assert taken is not None
    return taken


def written(taken: OutboxSnapshot) -> list[tuple[OutboxObject, bytes]]:
    return [encode(one, 3) for one in objects_of(taken, "a-1/outbox/7-5-0-3-{}".format)]


def read_back(objects: list[ObjectContents]) -> dict[int, list[RawRecord]]:
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
    assert read_back(read) == expected
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
    assert read_back(found)[2] == huge[0][1]


def test_small_packets_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    packets = [(n % 2, [record(n)]) for n in range(1000)]
    ((joined, data),) = written(taken_of(*packets))
    monkeypatch.setattr(outbox_objects, "_SMALL_BYTES", 0)
    ((apart, separate),) = written(taken_of(*packets))
    assert len(data) < 70 * 1000 < 400 * 1000 < len(separate)
    assert joined.parts == apart.parts
    assert read_back([decode(joined, data)]) == read_back([decode(apart, separate)])


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
    assert read_back([decode(named, data)]) == {0: [record(1)]}


def of(data: bytes, named: OutboxObject) -> OutboxObject:
    """The record names these bytes."""
    return replace(named, size_bytes=len(data), sha256=outbox_objects._hash(data))


def test_an_object_that_is_none_is_refused() -> None:
    ((named, data),) = written(taken_of((0, [record(1)])))
    other = b"whatever"
    with pytest.raises(CorruptError, match="does not begin with `PENSTOB1`"):
        decode(of(other, named), other)
    newer = b"PENSTOB2" + data[8:]
    with pytest.raises(IncompatibleError, match=r"format 2; .* up to 1\. Run the version that wrote it, or a newer"):
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
    assert read_back([decode(replace(named, parts=some), data)]) == {0: [record(1), record(3)]}


def test_a_payload_that_cannot_be_decoded_names_object_and_chunk() -> None:
    ((named, data),) = written(taken_of((0, [record(1)])))
    zeros = data[:-200] + bytes(200)
    contents = decode(of(zeros, named), zeros)
    with pytest.raises(CorruptError, match=r"object `a-1/outbox/7-5-0-3-0` .* chunk 0 of `m\.out\.0`"):
        list(contents.records(contents.chunks[0]))


PATHS = JobPaths("visits", "1")
ROWS, SENT = SystemStreamPartition("spark", "out", 0), SystemStreamPartition("kafka", "out", 0)


def left(slot: int, *parts: SystemStreamPartition) -> UnpublishedObjects:
    """A record that left an object with two messages for each of these."""
    key = PATHS.outbox(f"7-{slot}-0")
    return UnpublishedObjects(slot, (OutboxObject(key, 0, 10, "hash", dict.fromkeys(parts, OutputPart(1, 2))),))


OWED = OwedOutput((left(1, SENT), left(2, ROWS, SENT), left(3, ROWS)), ("kafka",), "visits-1-abc")


def test_the_job_itself_owes_everything(caplog: pytest.LogCaptureFixture) -> None:
    assert own_debt(OWED, "abc", PATHS) == OWED
    with caplog.at_level(logging.WARNING):
        warn_of_copy(OWED, own_debt(OWED, "abc", PATHS))
    assert not caplog.messages


def test_a_copy_owes_the_rows_of_its_dataframes(caplog: pytest.LogCaptureFixture) -> None:
    own = own_debt(OWED, "xyz", PATHS)
    assert [(each.slot, [*each.objects[0].parts]) for each in own.unpublished] == [(2, [ROWS]), (3, [ROWS])]
    assert (own.keepers, own.publisher) == ((), "")
    with caplog.at_level(logging.WARNING):
        warn_of_copy(OWED, own)
    (told,) = caplog.messages
    assert "up to 4 messages" in told
