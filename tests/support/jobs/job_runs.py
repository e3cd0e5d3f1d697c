"""Jobs on a Spark session of this process: their starts, their ends, and starts that are refused."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.application.application import Application
from penstock.driver.job import Job
from tests.support.apps import job_app
from tests.support.jobs.home import DEADLINE_S, Home


def start(
    home: Home,
    spark: SparkSession,
    app: Application | None = None,
    *,
    until: Literal["latest"] | None = "latest",
    **config: Any,
) -> Job:
    """Start a job; `config` keys have `_` for a dot."""
    given = {key.replace("_", "."): value for key, value in config.items()}
    return (app or job_app.totals_app()).run({**home.config, **given}, spark=spark, until=until)


def finish(job: Job) -> Job:
    """Wait for its end, which must be a good one."""
    assert job.await_termination(DEADLINE_S), f"the job did not end; it is {job.phase}, at {job.last_progress}"
    return job


def stop_at_once(job: Job) -> None:
    """Stop it as two calls of `stop` do, of which the second one comes before the first one had an effect."""
    job._stop.immediate.set()
    job._stop.graceful.set()
    job.stop()


def refused(home: Home, spark: SparkSession, app: Application, **config: Any) -> ps.PenstockError:
    """A start that must not come about, and must change nothing that counts."""
    before = home.job_files()
    with pytest.raises(ps.PenstockError) as caught:
        finish(start(home, spark, app, **config))
    assert without_lease(home.job_files()) == without_lease(before)
    return caught.value


def without_lease(files: dict[str, bytes]) -> dict[str, bytes]:
    """Without the lease, and what a refused start says of itself: nothing depends on either."""
    shown = ("/metadata/lease/", "/metadata/failure/", "/.")
    return {name: data for name, data in files.items() if not any(part in name for part in shown)}
