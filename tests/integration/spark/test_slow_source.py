"""Stateless code that is slow but progresses, in a Spark worker that Spark kills when it sends nothing for long."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from tests.support.apps.job_app import Event
from tests.support.jobs.home import DEADLINE_S, Home
from tests.support.processes.spark_sessions import Sessions

pytestmark = [pytest.mark.spark, pytest.mark.slow]

IDLE_SECONDS = 12
"""A worker that starts a container sends nothing either."""


@pytest.fixture(scope="module")
def spark(sessions: Sessions) -> SparkSession:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    limit = {
        "spark.python.worker.idleTimeoutSeconds": str(IDLE_SECONDS),
        "spark.python.worker.killOnIdleTimeout": "true",
    }
    return sessions.get(limit)


def slow_app() -> ps.StreamApplication:
    app = ps.StreamApplication("totals")
    evens = app.output("local.evens", key=ps.Bytes(), value=ps.Json())
    app.input("local.events").filter(is_even_slowly).send_to(evens)
    return app


def is_even_slowly(event: Event) -> bool:
    time.sleep(0.15)  # this is the user's code that is slow
    return int(event["n"]) % 2 == 0


def test_a_slow_source_stage_is_not_killed_while_it_progresses(spark: SparkSession, tmp_path: Path) -> None:
    """Its first packet is ready after 15 s: each partition has 100 messages, of 150 ms each."""
    home = Home(tmp_path, job_batch_max_messages=200, job_retry_max=0)
    for partition in range(2):
        home.append(partition, [{"key": f"k{n}", "n": n} for n in range(100)])
    job = slow_app().run(home.config, spark=spark, until="latest")
    assert job.await_termination(DEADLINE_S)
    assert home.length("evens") == 100
    assert job.progress is not None
    assert job.progress.duration_ms["addBatch"] > 1000 * IDLE_SECONDS
