"""Jobs on other versions of Spark than the one that the tests are installed with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.other_pysparks import VERSIONS, pyspark_of
from tests.support.tools.places import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]
_WAIT_S = 240.0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_goes_on_after_a_crash(version: str, tmp_path: Path) -> None:
    """Totals over windows, with exactly-once output, of a driver that is killed and started again."""
    (tmp_path / "flights_job.py").write_text(APP, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(pyspark_of(version)), str(ROOT)])}
    environment.pop("SPARK_HOME", None)
    output = "streams.local.totals.output.guarantee=exactly-once"
    run = ["run", "flights_job.py:app", "-c", "spark.master=local[2]", "-c", "task.commit.ms=200", "-c", output]

    def penstock(*command: str, given: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli", *command],
            input=given, capture_output=True, text=True, timeout=_WAIT_S, cwd=tmp_path, env=environment, check=False,
        )  # fmt: skip
        assert not done.returncode, done.stdout + done.stderr
        return done.stdout

    def totals() -> list[dict[str, Any]]:
        shown = penstock("stream", "tail", "totals", "--from-beginning", "--json")
        return [json.loads(json.loads(line)["value"]) for line in shown.splitlines()]

    def publish(first: int, last: int) -> None:
        rows = [{"tail": f"N{n % 5}", "miles": n} for n in range(first, last)]
        penstock("stream", "publish", "flights", "--file", "-", given="\n".join(map(json.dumps, rows)))

    penstock("stream", "create", "flights", "--partitions", "2")
    penstock("stream", "create", "totals", "--partitions", "2")
    publish(0, 500)
    log = (tmp_path / "driver.log").open("w")
    driver = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", *run], cwd=tmp_path, env=environment, stdout=log, stderr=log
    )
    try:
        end = time.monotonic() + _WAIT_S
        while not totals():
            waits = driver.poll() is None and time.monotonic() < end
            assert waits, (tmp_path / "driver.log").read_text()
            time.sleep(1)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    publish(500, 1000)
    penstock(*run, "--until", "latest")
    last: dict[str, int] = {}
    for each in totals():
        assert each["miles"] > last.get(each["tail"], -1), "no total comes twice"
        last[each["tail"]] = each["miles"]
    assert last == {f"N{n}": sum(range(n, 1000, 5)) for n in range(5)}


APP = """
import penstock as ps

app = ps.StreamApplication("flights")
flights = app.input("local.flights").partition_by(lambda flight: flight["tail"])
totals = flights.reduce(lambda one, other: {**other, "miles": one["miles"] + other["miles"]}, id="totals")
totals.send_to(app.output("local.totals"))
"""
