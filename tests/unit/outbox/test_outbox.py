"""The outbox of a task: what End applies is in it, in order, whatever memory it has."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import Batch
from penstock.errors import ContainerLostError, RetryableError
from penstock.outbox.task import Outbox, OutboxSnapshot, objects_of
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
