"""Python workers read a job's state, called here without Spark."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.record import CheckpointRecord
from penstock.config.load import load_config
from penstock.errors import NotFoundError, SerdeError
from penstock.spark.state_columns import StateColumn, StateColumns
from penstock.spark.stored_state import ReadChanges, ReadEntries, StoreSource
from tests.support.stores.state_job import JOB, StateJob
from tests.support.tools.fixtures import fixture_of

KEYS = (("key", StateColumn("key", pa.binary())),)
RAW = StateColumns("first", KEYS, StateColumn("value", pa.binary()))
TASKS = 3


job = fixture_of(lambda tmp_path: StateJob(tmp_path / "home", tasks=TASKS))


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "blockmgr"
    folder.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{folder},{tmp_path / 'another'}")
    return folder


def source(job: StateJob) -> StoreSource:
    name, job_id = JOB.split("-")
    overrides = {"job.name": name, "job.id": job_id, "job.root": str(job.home / "jobs")}
    return StoreSource(load_config(overrides=overrides, environ={}), job.paths, "first", None)


def tasks(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array([number], pa.int64())], ["id"]) for number in numbers]


def rows(function: Any, *numbers: int) -> list[dict[str, Any]]:
    """The rows that a worker makes of these tasks. It gets the function as bytes."""
    sent = pickle.loads(pickle.dumps(function))
    return [row for batch in sent(iter(tasks(*numbers))) for row in batch.to_pylist()]


def entries(job: StateJob, record: CheckpointRecord) -> list[tuple[bytes, int, bytes]]:
    return [(key, task, value) for (key, task), value in job.expected(record).items()]


def three(job: StateJob) -> list[CheckpointRecord]:
    """Three checkpoints: entries come, change and go."""
    return [
        job.commit({task: {f"k{task}-{n}".encode(): b"%d" % n for n in range(5)} for task in range(TASKS)}),
        job.commit({0: {b"k0-0": None, b"k0-1": b"new", b"k0-9": b"9"}, 1: {b"k1-4": b"four"}}),
        job.commit({0: {b"k0-9": None}, 2: {b"k2-0": b"0"}}),
    ]


def test_entries_of_each_task_at_each_checkpoint(job: StateJob, scratch: Path) -> None:
    for record in three(job):
        found = rows(ReadEntries(source(job), record, RAW), *range(TASKS))
        assert sorted((row["key"], row["task"], row["value"]) for row in found) == entries(job, record)
    assert list(scratch.iterdir()) == []


def test_changes_between_any_two_checkpoints(job: StateJob, scratch: Path) -> None:
    records = three(job)
    for before in records:
        for after in records:
            old, new = job.expected(before), job.expected(after)
            expected = {
                (key, task, old.get((key, task)), new.get((key, task)))
                for key, task in old.keys() | new.keys()
                if old.get((key, task)) != new.get((key, task))
            }
            found = rows(ReadChanges(source(job), before, after, RAW), *range(TASKS))
            assert {(row["key"], row["task"], row["before"], row["after"]) for row in found} == expected
            assert len(found) == len(expected)
            for row in found:
                kinds = {(True, False): "added", (False, True): "removed", (False, False): "changed"}
                assert row["change"] == kinds[row["before"] is None, row["after"] is None]


def test_batches_are_bounded(job: StateJob, scratch: Path) -> None:
    big = {b"%05d" % n: b"x" * 1_000_000 for n in range(9)}
    many = {b"%05d" % n: b"" for n in range(20_000)}
    record = job.commit({0: big, 1: many})
    read = ReadEntries(source(job), record, RAW)
    assert [batch.num_rows for batch in read(tasks(0))] == [5, 4]
    assert [batch.num_rows for batch in read(tasks(1))] == [8192, 8192, 20_000 - 2 * 8192]


def test_a_checkpoint_that_left_the_list(job: StateJob, scratch: Path) -> None:
    record = three(job)[0]
    read = ReadEntries(source(job), record, RAW)
    job.commit({}, retained=[])
    with pytest.raises(NotFoundError, match=f"checkpoint {record.id} was retained when it was chosen and no longer is"):
        list(read(tasks(0)))
    assert list(scratch.iterdir()) == []


def test_a_checkpoint_that_leaves_the_list_while_it_is_read(job: StateJob, scratch: Path) -> None:
    """A restored task is local: its rows are those of the checkpoint. A task that is restored later raises."""
    record = job.commit({task: {b"%05d" % n: b"v" for n in range(10_000)} for task in range(TASKS)})
    batches = ReadEntries(source(job), record, RAW)(tasks(0, 1))
    first = next(batches)
    job.commit({0: {b"%05d" % n: None for n in range(10_000)}}, retained=[])
    second = next(batches)
    assert first.num_rows + second.num_rows == 10_000
    with pytest.raises(NotFoundError, match="no longer is"):
        next(batches)


def test_scratch_folders_of_killed_workers_are_removed(job: StateJob, scratch: Path) -> None:
    """Spark kills a worker whose rows nobody wants. A generator that is not closed stands for it here."""
    record = three(job)[0]
    left = next(ReadEntries(source(job), record, RAW)(tasks(0)))  # closed by the garbage collector
    assert left.num_rows == 5
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    dead = scratch / f"penstock-read-{ended.pid}"
    (dead / "penstock-read-x" / "0").mkdir(parents=True)
    other = scratch / "penstock-read-of-somebody"
    other.mkdir()
    assert rows(ReadEntries(source(job), record, RAW), 0)
    assert list(scratch.iterdir()) == [other]


def test_without_a_scratch_folder_of_spark(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    record = three(job)[0]
    assert len(rows(ReadEntries(source(job), record, RAW), *range(TASKS))) == 5 * TASKS


def test_an_entry_that_does_not_decode_is_named(job: StateJob, scratch: Path) -> None:
    record = job.commit({1: {b"a": b"1", b"b": b"two"}})
    columns = StateColumns("first", KEYS, StateColumn("value", pa.int64(), int))
    with pytest.raises(SerdeError, match=r"store `first`, task 1: the value b'two' cannot be decoded: ValueError"):
        rows(ReadEntries(source(job), record, columns), 1)


def test_a_value_that_does_not_fit_its_type_is_named(job: StateJob, scratch: Path) -> None:
    record = job.commit({1: {b"a": b"1", b"b": b"two"}})
    columns = StateColumns("first", KEYS, StateColumn("value", pa.int64(), bytes.decode))
    with pytest.raises(SerdeError, match=r"the value b'1' does not have the type int64: .*Give another `value_type`"):
        rows(ReadEntries(source(job), record, columns), 1)
