"""`penstock status JOB --metrics`, of metrics that a run put into the job's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.checkpoint.log import CheckpointLog
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from tests.support.tools.cli import call, call_json, own_home

PATHS = JobPaths("flights", "1")


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileObjectStore:
    """A home with the job flights-1, of which no run has put metrics yet."""
    objects = FileObjectStore(own_home(tmp_path, monkeypatch) / "jobs")
    CheckpointLog(objects, PATHS).claim("run")
    return objects


def test_a_job_without_metrics(objects: FileObjectStore) -> None:
    facts, shown = call_json("status", "flights"), call("status", "flights")[0]
    assert (facts["deadLetters"], facts["ways"]) == (0, {})
    assert "dead letters" not in shown
    assert "batches " not in shown
    assert "job flights-1 has no metrics yet" in call("status", "flights", "--metrics", status=1)[1]


def test_the_metrics_of_no_job() -> None:
    assert "name it" in call("status", "--metrics", status=2)[1]


def test_metrics_that_cannot_be_read(objects: FileObjectStore) -> None:
    key = PATHS.metadata("metrics", "last-run")
    objects.put_if_absent(key, b'{"format":1,"run_id":"r","time_ms":1,"metrics":7,"reached":[]}')
    said = call("status", "flights", "--metrics", status=1)[1]
    assert "Delete it" in said
    assert "$.metrics" in said
