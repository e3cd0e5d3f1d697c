"""Checkpoints that are set by hand, or written in another version."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.checkpoint.task_versions import versions_of
from penstock.cli.main import app
from penstock.errors import IncompatibleError
from tests.support.apps import job_app
from tests.support.jobs.home import DEADLINE_S, Home, same

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BACK = 7


def penstock(home: Home, *arguments: str, text: str | None = None) -> str:
    """A command on the job's own folders."""
    folders = ("job.root", "systems.local.path")
    options = [option for key in folders for option in ("-c", f"{key}={home.config[key]}")]
    result = CliRunner().invoke(app, [*arguments, *options], input=text)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_partition_set_back_by_k_messages_is_read_again_from_there(spark: SparkSession, tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.publish(120)
    ends = {partition: len(events) for partition, events in home.events["events"].items()}
    assert job_app.totals_app().run(home.config, spark=spark, until="latest").await_termination(DEADLINE_S)
    home.verify_ended()
    before, exported = home.checkpoints[-1], penstock(home, "checkpoint", "export", "totals")

    wanted = {"local.events": {"0": ends[0] - BACK}}
    penstock(home, "checkpoint", "set", "totals", "--offsets", "-", "--yes", text=json.dumps(wanted))
    again = job_app.totals_app().run(home.config, spark=spark, until="latest")
    assert again.await_termination(DEADLINE_S)
    assert again.progress is not None
    assert again.progress.total_input_rows == BACK
    assert home.length("totals") == 120 + BACK
    replayed = Counter(event["key"] for event in home.events["events"][0][-BACK:] if event)
    counts = {key: total["count"] for key, total in home.stored("totals").items()}
    assert counts == {key: total["count"] + replayed[key] for key, total in home.expected()[0].items()}

    penstock(home, "checkpoint", "import", "totals", "-", "--yes", text=exported)
    restored = home.checkpoints[-1]
    assert restored.next_offsets == before.next_offsets
    home.verify_checkpoint(restored)  # positions and state are those of before
    home.publish(10, seed=2)
    assert job_app.totals_app().run(home.config, spark=spark, until="latest").await_termination(DEADLINE_S)
    home.verify_checkpoint(home.checkpoints[-1])


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
