"""Modules and work that a start does without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs.home import DEADLINE_S, Home
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
    done = subprocess.run(
        [sys.executable, "-c", JOB, json.dumps({**home.config, "spark.master": "local[2]"})],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"context": True, "session": False, "left": False}
    home.verify()
