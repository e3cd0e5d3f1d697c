"""Requests to drain that the monitor does not see in time, on Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.drain.requests import DRAIN
from penstock.errors import ConfigError
from tests.support.apps import drained_app
from tests.support.jobs.drained_job import DrainHome
from tests.support.jobs.home import DEADLINE_S, wait_until

pytestmark = pytest.mark.spark
NEVER = {"job.drain-monitor.poll.interval.ms": 3_600_000}


@pytest.mark.slow
def test_a_stop_right_after_a_request_drains(spark: SparkSession, tmp_path: Path) -> None:
    """The monitor's next look is an hour away: the run looks once more before it ends."""
    home = DrainHome(tmp_path, "one_exchange", config=NEVER)
    home.put(20)
    job = drained_app.APPS[home.app]().run(home.config, spark=spark)
    read = sum(home.everything.values())
    wait_until(lambda: job.exception or (job.progress and job.progress.total_input_rows == read), "all messages")
    notification = home.ask()
    job.stop(wait=False)
    assert job.await_termination(DEADLINE_S)
    assert job.phase == "drained"
    home.verify_drained(notification)


def test_a_run_that_is_started_to_drain_reads_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """The inputs wait for the next deployment. The drained one does not begin again."""
    home = DrainHome(tmp_path, "one_exchange", config={**NEVER, "app.run.id": "v1"})
    home.put(20)
    app = drained_app.APPS[home.app]()
    job = app.run(home.config, spark=spark, drain=True)
    assert job.await_termination(DEADLINE_S)
    assert (job.phase, job.run_id) == ("drained", "v1")
    assert set(home.read().values()) == {0}
    assert len(home.checkpoints[-1].section(DRAIN).answered) == 1
    with pytest.raises(ConfigError, match="run `v1` has drained"):
        app.run(home.config, spark=spark)
    with pytest.raises(ConfigError, match="reads nothing"):
        app.run(home.config, spark=spark, drain=True, until="latest")
