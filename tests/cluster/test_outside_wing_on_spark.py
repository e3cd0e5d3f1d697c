"""A wing of another distribution on two executors: its part is in their containers, and its call reaches them.

`tests/unit/test_wing.py` is the quick proof, in one process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.processes import class_archive
from tests.support.processes.python import run_python
from tests.support.tools.places import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = """
import sys

import penstock as ps


class Passes(ps.StreamTask):
    def process(self, envelope, collector, coordinator):
        pass


app = ps.StreamApplication("counted")
app.input("local.in").process(Passes)
app.run(
    {
        "spark.master": "local-cluster[2,1,1024]",
        "spark.executor.memory": "1g",
        "spark.executor.extraJavaOptions": sys.argv[1],
        "spark.ui.enabled": "false",
        **({"job.latency.target.ms": 100} if sys.argv[2] == "direct" else {}),
        "job.batch.max.messages": 5,
        "audit.every.commits": 1,
    },
    until="latest",
).await_termination()
"""


@pytest.mark.parametrize("mode", ["spark", "direct"])
def test_a_wing_from_outside_counts_in_the_containers_of_executors(tmp_path: Path, mode: str) -> None:
    (tmp_path / "app.py").write_text(SCRIPT)
    outside = ROOT / "tests" / "support" / "outside"
    environment = {
        **os.environ,
        "PENSTOCK_HOME": str(tmp_path / "home"),
        "PYTHONPATH": os.pathsep.join([str(outside), *sys.path]),
    }

    def call(*command: str, given: str = "") -> str:
        return run_python(*command, folder=tmp_path, environ=environment, given=given).stdout

    call("-m", "penstock.cli", "stream", "create", "in", "--partitions", "4")
    rows = "".join(json.dumps({"key": str(n), "value": n}) + "\n" for n in range(40))
    call("-m", "penstock.cli", "stream", "publish", "in", "--file", "-", "--format", "jsonl", given=rows)
    call("app.py", class_archive.java_options(), mode)
    shown = json.loads(call("-m", "penstock.cli", "status", "counted", "--json", "--no-wait"))["wings"]["audit"]
    runs = [row["runs"] for row in shown["tables"][0]["rows"]]
    assert len(runs) == 2, "one container on each executor"
    assert min(runs) >= 1
    assert shown["lines"]["audited commits"] >= 2
    audited = shown["lines"]["audited runs"]
    assert audited >= max(10, sum(runs)), "the last commit asked, and the last heartbeats may have come before that"
