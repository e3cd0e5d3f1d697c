"""`penstock status` of a job with pushed tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.checkpoint.log import CheckpointLog
from penstock.driver.show.metrics import JobMetrics
from penstock.job.paths import JobPaths
from penstock.job.shown import MetricsBoard, ShownRun
from penstock.objects.file import FileObjectStore
from tests.support.stores.checkpoints import checkpoint
from tests.support.tools.cli import call, call_json, own_home

PATHS = JobPaths("flights", "1")


@pytest.fixture
def metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobMetrics:
    """The metrics of a run that uses version 6 of one table and cannot load version 7; the other table has none yet."""
    objects = FileObjectStore(own_home(tmp_path, monkeypatch) / "jobs")
    log = CheckpointLog(objects, PATHS)
    log.append(checkpoint(log.claim("run-a"), 4))
    metrics = JobMetrics()
    metrics.table_stands("planes", 6, 7, 40, failing=True)
    metrics.table_stands("airlines", 0, 1, 99, failing=False)
    MetricsBoard(objects, PATHS).put(ShownRun("run-a", 1, metrics.snapshot()))
    return metrics


@pytest.mark.usefixtures("metrics")
def test_the_status_shows_the_versions_in_use_and_loading() -> None:
    text, said = call("status", "flights")
    assert re.search(r"planes +6 +version 7, 40 %", text)
    assert re.search(r"airlines +none yet +version 1, 99 %", text)
    assert "warning: version 7 of table `planes` cannot be loaded; the job keeps trying" in " ".join(said.split())
    airlines, planes = call_json("status", "flights")["tables"]
    assert planes == {"table": "planes", "inUse": 6, "loading": 7, "percent": 40, "failing": True}
    assert airlines == {"table": "airlines", "inUse": None, "loading": 1, "percent": 99, "failing": False}
