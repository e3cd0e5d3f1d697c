"""The page about PySpark's StatefulProcessor, the notebook, and the demo: they run as they are."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.jobs.home import wait_until
from tests.support.oracles import beside_pyspark
from tests.support.processes.python import run_python
from tests.support.tools.places import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_the_examples_of_the_page(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of two starts: the second one reads what is new, and continues with the state. Then its checkpoint
    location is set back behind the first one."""
    events = spark.range(1000).selectExpr("concat('u', id % 7) AS user", "id")
    found: dict[str, Any] = {"__name__": "__main__", "spark": spark}
    found |= {name: str(tmp_path / name) for name in ("root", "path", "location", "copy")}
    for times in (1, 2):
        monkeypatch.setattr(sys, "stdout", printed := io.StringIO())  # the listener prints in another thread, in pieces
        events.write.mode("append").parquet(str(tmp_path / "events"))
        found["events"] = spark.readStream.schema("user STRING, id LONG").parquet(str(tmp_path / "events"))
        for block in _blocks("pyspark.md"):
            if "from_checkpoint" in block and times == 1:
                shutil.copytree(tmp_path / "location", tmp_path / "copy")
            exec(compile(block, "docs/pyspark.md", "exec"), found)
        if times == 2:
            (state,) = found["query"].lastProgress.stateOperators
            assert (state.numRowsUpdated, state.numRowsDroppedByWatermark) == (7, 0)
            # The total is as of the containers' last beats: it may be unknown.
            wait_until(partial(_is_printed, r"processor (7|None) 0\n", printed), "the listener's line")
        spark.streams.removeListener(found["dashboard"])
        wanted = {f"u{n}": times * len(range(n, 1000, 7)) for n in range(7)}
        assert {row.user: row.n for row in found["visits"]} == wanted
        batches = [each["batchId"] for each in found["query"].recentProgress if each["numInputRows"]]
        assert batches == list(range(1, times)), "the last query is the one that goes back"
        highest = {f"u{n}": max(range(n, 1000, 7)) for n in range(7)}
        totals = spark.read.parquet(f"{tmp_path}/path-totals").where(f"batch = {times - 1}").collect()
        assert {row.user: (row.visits, row.highest) for row in totals} == {u: (wanted[u], highest[u]) for u in wanted}
        written = spark.read.parquet(f"{tmp_path}/path").where(f"batch = {times - 1}").collect()
        assert {row.user: row.visits for row in written} == wanted


def _is_printed(pattern: str, printed: io.StringIO) -> bool:
    return re.search(pattern, printed.getvalue()) is not None


def test_the_example_of_taking_over(spark: SparkSession, tmp_path: Path) -> None:
    """After a batch of the same query in PySpark."""
    events = spark.range(1000).selectExpr("concat('u', id % 7) AS user", "id")
    found: dict[str, Any] = {"__name__": "__main__", "spark": spark}
    found |= {name: str(tmp_path / name) for name in ("path", "location")}
    (page,) = _blocks("pyspark-takeover.md")
    exec(_blocks("pyspark.md")[0].split("query = (")[0], found)
    for key, value in beside_pyspark.KEYS.items():
        spark.conf.set(key, value)
    events.write.parquet(str(tmp_path / "events"))
    found["events"] = spark.readStream.schema("user STRING, id LONG").parquet(str(tmp_path / "events"))
    before = (
        found["events"]
        .groupBy("user")
        .transformWithState(found["CountVisits"](), "user STRING, visits LONG", "append", "ProcessingTime")
    )
    writer = before.writeStream.option("checkpointLocation", found["location"]).format("noop")
    writer.trigger(availableNow=True).start().awaitTermination()
    for key in beside_pyspark.KEYS:
        spark.conf.unset(key)
    events.write.mode("append").parquet(str(tmp_path / "events"))
    exec(page.replace("s3://bucket/penstock", str(tmp_path / "root")), found)
    try:
        found["query"].processAllAvailable()
    finally:
        found["query"].stop()
    written = {row.user: row.visits for row in spark.read.parquet(found["path"]).collect()}
    assert written == {f"u{n}": 2 * len(range(n, 1000, 7)) for n in range(7)}


def _blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_notebook(spark: SparkSession) -> None:
    """Cell by cell, in the session that there is."""
    cells = json.loads((ROOT / "examples" / "pyspark.ipynb").read_text(encoding="utf-8"))["cells"]
    found: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), found)
    state = {row.user: (row.minutes, row.visits) for row in found["state"].collect()}
    wanted = {f"user {n}": (sum(each % 60 for each in range(n, 10_000, 100)), 100) for n in range(100)}
    assert state == wanted


def test_the_demo_on_a_few_flights(tmp_path: Path) -> None:
    """In another process: it ends its Spark."""
    script = (
        "import sys; from pathlib import Path; from examples.processors import demo; demo.HOME = Path(sys.argv.pop(1));"
        "demo.main()"
    )
    done = run_python("-c", script, str(tmp_path), "--flights", "2000", folder=ROOT, timeout_s=600)
    assert "both have the totals of a plain computation" in done.stdout
    assert re.search(r"Penstock is \d+\.\d times as fast", done.stdout)
