"""Jobs on other versions of Spark than the one that the tests are installed with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.killed_runs import KilledRun
from tests.support.processes.other_pysparks import VERSIONS, pyspark_of
from tests.support.processes.python import PENSTOCK, run_python
from tests.support.tools.places import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_goes_on_after_a_crash(version: str, tmp_path: Path) -> None:
    """Totals over windows, with exactly-once output, of a driver that is killed and started again."""
    environment = {"PYTHONPATH": os.pathsep.join([str(pyspark_of(version)), str(ROOT)])}
    job = KilledRun(tmp_path, APP, {"streams.local.totals.output.guarantee": "exactly-once"}, environment)

    def penstock(*command: str, given: str = "") -> str:
        return run_python(*PENSTOCK, *command, folder=tmp_path, environ=environment, given=given).stdout

    def totals() -> list[dict[str, Any]]:
        shown = penstock("stream", "tail", "totals", "--from-beginning", "--json")
        return [json.loads(json.loads(line)["value"]) for line in shown.splitlines()]

    def publish(first: int, last: int) -> None:
        rows = [{"tail": f"N{n % 5}", "miles": n} for n in range(first, last)]
        penstock("stream", "publish", "flights", "--file", "-", given="\n".join(map(json.dumps, rows)))

    penstock("stream", "create", "flights", "--partitions", "2")
    penstock("stream", "create", "totals", "--partitions", "2")
    publish(0, 500)
    job.kill_once(totals)
    publish(500, 1000)
    job.run_to_the_end()
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
