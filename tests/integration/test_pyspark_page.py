"""The page about PySpark's StatefulProcessor, and the notebook: both run as they are."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "pyspark.md"


def test_the_examples_of_the_page(spark: SparkSession, tmp_path: Path) -> None:
    """A query of two starts: the second one reads what is new, and continues with the state. Then its checkpoint
    location is set back behind the first one."""
    events = spark.range(1000).selectExpr("concat('u', id % 7) AS user", "id")
    found: dict[str, Any] = {"__name__": "__main__", "spark": spark}
    found |= {name: str(tmp_path / name) for name in ("root", "path", "location", "copy")}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for times in (1, 2):
        events.write.mode("append").parquet(str(tmp_path / "events"))
        found["events"] = spark.readStream.schema("user STRING, id LONG").parquet(str(tmp_path / "events"))
        for block in blocks:
            if "from_checkpoint" in block and times == 1:
                shutil.copytree(tmp_path / "location", tmp_path / "copy")
            exec(compile(block, "docs/pyspark.md", "exec"), found)
        wanted = {f"u{n}": times * len(range(n, 1000, 7)) for n in range(7)}
        assert {row.user: row.n for row in found["visits"]} == wanted
        batches = [each["batchId"] for each in found["query"].recentProgress if each["numInputRows"]]
        assert batches == list(range(1, times)), "the last query is the one that goes back"
        written = spark.read.parquet(f"{tmp_path}/path").where(f"batch = {times - 1}").collect()
        assert {row.user: row.visits for row in written} == wanted


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
