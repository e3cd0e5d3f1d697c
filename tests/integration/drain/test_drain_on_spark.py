"""Drains on Spark, with each shape of an application: asked for while the job runs, and before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from tests.support.apps import drained_app
from tests.support.faults.plan import Fault
from tests.support.jobs.drained_job import DrainHome
from tests.support.jobs.home import DEADLINE_S, wait_until
from tests.support.jobs.job_runs import stop_at_once

pytestmark = pytest.mark.spark
SHAPES = {
    "high level, one partition": ("one_input", 1),
    "high level, several partitions": ("two_inputs", 2),
    "high level, an exchange": ("one_exchange", 2),
    "high level, exchanges and a merge": ("two_exchanges", 2),
    "high level, a durable exchange and another one": ("two_exchanges_one_durable", 2),
    "low level, one partition": ("task_of_one_input", 1),
    "low level, several partitions": ("task_of_two_inputs", 2),
}
"""The application, and how many partitions each input has."""
QUICK = "high level, exchanges and a merge"
BEFORE = ("high level, several partitions", "high level, exchanges and a merge", "low level, several partitions")
CONFIG = {"stores.backup.factories": "changelog-files", "job.batch.max.messages": 24}


def start(home: DrainHome, spark: SparkSession) -> ps.Job:
    return drained_app.APPS[home.app]().run(home.config, spark=spark)


@pytest.mark.parametrize("shape", [pytest.param(s, marks=() if s == QUICK else pytest.mark.slow) for s in SHAPES])
def test_a_drain_during_the_run_waits_for_messages_in_flight(spark: SparkSession, tmp_path: Path, shape: str) -> None:
    """A message is in user code when the request comes: its batch ends as any other, and it is the last one that
    reads."""
    app, partitions = SHAPES[shape]
    home = DrainHome(tmp_path, app, partitions=partitions, config=CONFIG)
    home.put(20)
    home.put(10, at="process")
    home.put(100)
    home.faults.plan(Fault("hold", "process", "block"))
    job = start(home, spark)
    wait_until(lambda: job.exception or home.faults.is_reached("hold"), "a message in user code")
    batch = job.running_batch
    assert batch is not None
    job.drain(wait=False)
    (notification,) = home.requests.find().notifications
    home.faults.open()
    assert job.await_termination(DEADLINE_S)
    assert job.phase == "drained"
    if not app.endswith("durable"):  # what is in the stream is read in further batches
        assert home.checkpoints[-1].batch == batch.batch + 1
    read = home.read()
    assert all(0 < read[ssp] < there for ssp, there in home.everything.items())
    assert any(message.get("at") for ssp, there in home.given.items() for message in there[: read[ssp]])
    home.verify_drained(notification)


@pytest.mark.slow
@pytest.mark.parametrize("shape", BEFORE)
def test_a_drain_before_the_start_reads_nothing(spark: SparkSession, tmp_path: Path, shape: str) -> None:
    """The run before it was ended at once, after a checkpoint."""
    app, partitions = SHAPES[shape]
    home = DrainHome(tmp_path, app, partitions=partitions, config=CONFIG)
    home.put(30, commit=True)
    former = start(home, spark)
    home.await_checkpoint(home.everything, lambda: former.is_active)
    stop_at_once(former)
    read = home.everything
    home.put(30)
    notification = home.ask()
    job = start(home, spark)
    assert job.await_termination(DEADLINE_S)
    assert job.phase == "drained"
    assert job.progress is not None
    assert (job.progress.total_input_rows, job.run_id) == (0, former.run_id)
    assert home.read() == read
    home.verify_drained(notification, read)


@pytest.mark.slow
def test_the_last_commit_waits_for_the_one_before_and_all_processing(spark: SparkSession, tmp_path: Path) -> None:
    home = DrainHome(tmp_path, "one_exchange")
    job = start(home, spark)
    wait_until(lambda: job.exception or job.phase == "running", "the start checkpoint")
    home.faults.plan(Fault("hold", "upload.begin", "block", times=1000))
    home.put(30, commit=True)
    wait_until(lambda: job.exception or home.faults.is_reached("hold"), "an upload at the gate")
    home.put(10)
    wait_until(lambda: job.exception or (job.progress and job.progress.total_input_rows == 80), "the rest")
    job.drain(wait=False)
    (notification,) = home.requests.find().notifications
    wait_until(lambda: job.exception or len(home.drains("first")) == 2, "the drain of both tasks")
    assert [record.ended for record in home.checkpoints] == [None]
    home.faults.open()
    assert job.await_termination(DEADLINE_S)
    *others, last = home.checkpoints
    assert [record.ended for record in others] == [None] * len(others)
    steps = [(each["point"], each["checkpoint"]) for each in home.faults.trace("upload.end", "snapshot.begin")]
    begin = steps.index(("snapshot.begin", str(last.id)))
    assert {checkpoint for _, checkpoint in steps[begin:]} == {str(last.id)}, "one commit after the other"
    home.verify_drained(notification)
