"""A real job whose checkpoint is changed by hand while it is stopped: the next run reads on exactly there."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.cli.main import app
from tests.support.apps import job_app
from tests.support.jobs.home import DEADLINE_S, Home

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
