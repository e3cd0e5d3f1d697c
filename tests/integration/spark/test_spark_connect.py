"""A client of Spark Connect reads the state of jobs, and starts none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs.home import Home
from tests.support.processes.other_pysparks import connect_client
from tests.support.tools.places import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]
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
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, str(settled.config["job.root"])],
        capture_output=True, text=True, timeout=_WAIT_S, cwd=tmp_path, check=False,
        env={**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    assert not done.returncode, done.stdout + done.stderr
    said, rows, added = json.loads(done.stdout.splitlines()[-1])
    assert len(said) == 3
    assert all("this is a client of Spark Connect" in each for each in said)
    assert rows == added != [], "the checkpoint before is of an empty state"
