"""The driver's log of a restore that did not use the first backend."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.jobs.fault_jobs import FaultHome
from tests.support.jobs.home import DEADLINE_S
from tests.support.jobs.running_job import Running

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_restore_from_the_second_backend_is_told_with_what_is_missing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home = FaultHome(tmp_path, ("changelog-files", "SecondFiles"))
    running = Running(spark, home, monkeypatch)
    running.publish()
    running.start(until="latest").await_termination(DEADLINE_S)
    data = home.folder / "jobs" / "totals.files-1" / "state" / "totals"
    missing = next(iter(sorted(data.glob("*/*.delta"))))
    missing.unlink()
    for snapshot in data.glob(f"{missing.parent.name}/*.zip"):  # with one the delta is not needed
        snapshot.unlink()
    running.publish()
    with caplog.at_level(logging.ERROR, "penstock"):
        running.start(until="latest").await_termination(DEADLINE_S)
    (told,) = (record.getMessage() for record in caplog.records if "could not be restored" in record.getMessage())
    assert "store `totals` of task" in told
    assert f"{missing.relative_to(home.folder / 'jobs')}` is missing" in told
    assert "SecondFiles was used instead" in told
    last = home.checkpoints[-1]
    by_key, _ = home.expected(last)
    for backend in home.loaded().store("totals").backup_factories:
        assert home.stored_by(backend, "totals", last) == by_key
    home.verify_ended()
