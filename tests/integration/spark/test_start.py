"""Starts on Spark: what they read, sources that are slow, and Spark Connect."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from tests.support.apps.job_app import Event
from tests.support.jobs.home import DEADLINE_S, Home
from tests.support.processes.other_pysparks import connect_client
from tests.support.processes.python import run_python
from tests.support.processes.spark_sessions import Sessions
from tests.support.tools.places import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]
JOB = """
import json, sys
from pyspark import SparkContext
from pyspark.sql import SparkSession
from tests.support.apps import job_app

job = job_app.totals_app().run(json.loads(sys.argv[1]), until="latest")
found = {"context": SparkContext._active_spark_context is not None}
found["session"] = SparkSession.getActiveSession() is not None
job.await_termination()
found["left"] = SparkContext._active_spark_context is not None
print(json.dumps(found))
"""


def test_a_job_makes_no_sql_session(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.publish(50)
    given = json.dumps({**home.config, "spark.master": "local[2]"})
    done = run_python("-c", JOB, given, environ={"PYTHONPATH": str(ROOT)})
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"context": True, "session": False, "left": False}
    home.verify()


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


_WAIT_S = 300.0
CLIENT = """
import json
import sys

import penstock as ps
import penstock.spark as pss
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote("local[2]").getOrCreate()
app = ps.StreamApplication("rates")
app.input("spark.rates", value=pss.Rows()).send_to(app.output("spark.out", value=pss.Rows("n LONG")))
rates = spark.readStream.format("rate").load()
said = []
for start in (
    lambda: app.run({"job.root": sys.argv[1]}, spark=spark),
    lambda: pss.run_application(app, rates, root=sys.argv[1]),
    lambda: pss.transform_with_state(rates, processor=None, key="value", output="n LONG", root=sys.argv[1]),
):
    try:
        start()
    except ps.ConfigError as error:
        said.append(str(error))
rows = pss.read_state(spark, sys.argv[1], "totals").collect()
changes = pss.read_changes(spark, sys.argv[1], "totals", 0, "latest").collect()
added = [[row.key, row.after] for row in changes if row.change == "added"]
print(json.dumps([said, sorted([row.key, row.value] for row in rows), sorted(added)]))
"""


def test_a_client_reads_state_and_starts_nothing(settled: Home, tmp_path: Path) -> None:
    path = os.pathsep.join([str(connect_client()), str(ROOT)])
    environ = {"PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = run_python("-c", CLIENT, str(settled.config["job.root"]), folder=tmp_path, environ=environ)
    said, rows, added = json.loads(done.stdout.splitlines()[-1])
    assert len(said) == 3
    assert all("this is a client of Spark Connect" in each for each in said)
    assert rows == added != [], "the checkpoint before is of an empty state"
