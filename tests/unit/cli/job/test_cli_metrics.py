"""`penstock status JOB --metrics`, of metrics that a run put into the job's folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.checkpoint.log import CheckpointLog
from penstock.job.paths import JobPaths
from penstock.job.shown import MetricsBoard, ShownRun
from penstock.metrics.registry import MetricsRegistry
from penstock.metrics.snapshot import Snapshot
from penstock.objects.file import FileObjectStore
from tests.support.tools.cli import call, call_json, own_home

PATHS = JobPaths("flights", "1")


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileObjectStore:
    """A home with the job flights-1, of which no run has put metrics yet."""
    objects = FileObjectStore(own_home(tmp_path, monkeypatch) / "jobs")
    CheckpointLog(objects, PATHS).claim("run")
    return objects


@pytest.fixture
def shown(objects: FileObjectStore) -> Snapshot:
    job, task = MetricsRegistry("job"), MetricsRegistry("Partition 0")
    commits = job.new_timer("job", "commit-ns")
    for milliseconds in (1_500, 2_500):
        commits.update(milliseconds * 1_000_000)
    job.new_counter("job", "batches").inc(1_234_567)
    task.new_counter("backend.changelog-files", "bytes-uploaded").inc(9_876_543_210_123)
    task.new_counter("backend.changelog-stream", "bytes-uploaded").inc(17)
    task.new_timer("backend.changelog-files", "store-snapshot-ns")
    task.new_gauge("store.totals", "rocksdb.estimate-pending-compaction-bytes").set(987_654_321_987)
    task.new_gauge("user.orders", "share").set(0.25)
    found = Snapshot().merged(job.snapshot(), task.snapshot())
    MetricsBoard(objects, PATHS).put(ShownRun("run", 1, found))
    return found


def test_a_table_at_80_columns(shown: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = call("status", "flights", "--metrics")[0]
    assert max(len(line.rstrip()) for line in said.splitlines()) <= 80
    lines = [re.sub(r"\s{2,}", " | ", line.strip()) for line in said.splitlines()]
    groups = [line for line in lines if line.startswith(("job", "Partition"))]
    assert groups == [
        "Partition 0: backend.changelog-files",
        "Partition 0: backend.changelog-stream",
        "Partition 0: store.totals",
        "Partition 0: user.orders",
        "job",
    ]
    files, stream = (lines.index(group) for group in groups[:2])
    assert "bytes-uploaded | 9,876,543,210,123" in lines[files:stream]
    assert "store-snapshot-ns | 0 of 0.0 ms, at most 0.0 ms" in lines[files:stream]
    assert "bytes-uploaded | 17" in lines[stream:]
    assert "rocksdb.estimate-pending-compaction-bytes | 987,654,321,987" in lines
    assert "share | 0.25" in lines
    assert lines[-3:] == ["batches | 1,234,567", "commit-ns | 2 of 2,000.0 ms, at most 2,500.0 ms", ""]


def test_as_json(shown: Snapshot) -> None:
    assert call_json("status", "flights", "--metrics") == shown.to_dict()


def test_a_job_without_metrics(objects: FileObjectStore) -> None:
    assert "job flights-1 has no metrics yet" in call("status", "flights", "--metrics", status=1)[1]


def test_the_metrics_of_no_job() -> None:
    assert "name it" in call("status", "--metrics", status=2)[1]


def test_metrics_that_cannot_be_read(shown: Snapshot, objects: FileObjectStore) -> None:
    key = PATHS.metadata("metrics", "last-run")
    objects.delete(key)
    objects.put_if_absent(key, b'{"format":1,"run_id":"r","time_ms":1,"metrics":7,"reached":[]}')
    said = call("status", "flights", "--metrics", status=1)[1]
    assert "Delete it" in said
    assert "$.metrics" in said


def test_the_status_counts_dead_letters(objects: FileObjectStore) -> None:
    assert call_json("status", "flights")["deadLetters"] == 0
    assert "dead letters" not in call("status", "flights")[0]
    tasks = [MetricsRegistry(f"Partition {task}") for task in range(2)]
    for task in tasks:
        task.new_counter("stage.1", "dead-letters").inc(600)
        task.new_counter("user.mine", "dead-letters").inc(7)
    MetricsBoard(objects, PATHS).put(ShownRun("run", 1, Snapshot().merged(*[task.snapshot() for task in tasks])))
    assert call_json("status", "flights")["deadLetters"] == 1200
    assert re.search(r"dead letters +1,200 in its last run", call("status", "flights")[0])


def test_status_says_which_way_batches_took(objects: FileObjectStore) -> None:
    assert not call_json("status", "flights")["ways"]
    assert "batches " not in call("status", "flights")[0]
    job = MetricsRegistry("job")
    for way, count in ("direct", 1_250), ("spark-large", 46), ("spark-start", 4):
        job.new_counter("job", f"batches-{way}").inc(count)
    MetricsBoard(objects, PATHS).put(ShownRun("run", 1, job.snapshot()))
    assert call_json("status", "flights")["ways"] == {"direct": 1_250, "spark-large": 46, "spark-start": 4}
    assert "1,250 direct, 50 by Spark (46 large and 4 start); in its last run, at 1970" in call("status", "flights")[0]
