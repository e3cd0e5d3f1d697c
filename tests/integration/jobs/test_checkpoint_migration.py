"""SEP-28's migration plan, step by step, with real jobs: from checkpoints in version 1 to version 2, and back."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.checkpoint.task_versions import versions_of
from penstock.errors import IncompatibleError
from tests.support.apps import job_app
from tests.support.jobs.home import DEADLINE_S, Home, same

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PLAN = [
    ("1", "1", "before the migration"),
    ("1,2", "1", "both are written, version 1 is read"),
    ("1,2", "1", "the same: a restart from a checkpoint that has both"),
    ("1,2", "2,1", "version 2 is read"),
    ("1,2", "1", "back to version 1"),
    ("2", "2,1", "version 1 is not written any more"),
    ("2", "2", "a restart from a checkpoint that has version 2 alone"),
]


def test_from_version_1_to_version_2_and_back(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Version 1 has no markers of blobs. So the store is restored from its blob where version 2 is read, and from its
    changelog stream, with an error that says so, where version 1 is."""
    home = Home(tmp_path)
    home.config["stores.backup.factories"] = "blob,changelog-stream"
    before: set[int] = set()
    for number, (write, read, step) in enumerate(PLAN):
        home.config["task.checkpoint.write.versions"] = write
        home.config["task.checkpoint.read.versions"] = read
        home.publish(40, seed=number)
        caplog.clear()
        with caplog.at_level(logging.ERROR, "penstock"):
            job = job_app.totals_app(regions=False).run(home.config, spark=spark, until="latest")
            assert job.await_termination(DEADLINE_S), step
        last = home.checkpoints[-1]
        assert versions_of(last) == {int(version) for version in write.split(",")}, step
        same(home.stored("totals"), home.expected()[0], step)
        fell_back = "could not be restored from blob" in caplog.text
        assert fell_back == (bool(before) and read.startswith("1")), step
        before = {int(version) for version in write.split(",")}

    home.config["task.checkpoint.write.versions"] = "1,2"
    home.config["task.checkpoint.read.versions"] = "1"
    with pytest.raises(IncompatibleError, match=r"add 2 to task\.checkpoint\.read\.versions"):
        job_app.totals_app(regions=False).run(home.config, spark=spark, until="latest")
