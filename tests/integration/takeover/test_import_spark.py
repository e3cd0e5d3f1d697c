"""From a running Spark Structured Streaming query to a running Penstock job, on a real Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.config.load import load_config
from penstock.objects.open import open_store
from penstock.spark.state_import.checkpoint import SparkCheckpoint
from penstock.spark.state_import.reader import open_state
from penstock.state.reading.reader import read_store
from tests.support.processes.python import run_python
from tests.support.stores.spark_state import GOLDEN, read_plain
from tests.support.tools.places import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]

APPLICATION = """
import penstock as ps


class Windows(ps.StreamTask):
    def init(self, context):
        self.sums = context.store("sums")

    def process(self, envelope, collector, coordinator):
        self.sums.put(envelope.key, (self.sums.get(envelope.key) or 0) + envelope.value["i"])


def build():
    app = ps.StreamApplication("moved")
    app.store("sums", key=ps.String(), value=ps.Long())
    rides = app.input("local.rides")
    rides.partition_by(lambda ride: ride["k"], key=ps.String()).process(Windows, stores=["sums"])
    return app


def summed(key, value):
    return None if key["k"] is None else (key["k"], value["count"])
"""


def call(project: Path, *command: str) -> str:
    environ = {"PENSTOCK_HOME": str(project / "home"), "PYTHONPATH": str(ROOT)}
    return run_python("-m", *command, folder=project, environ=environ).stdout


def test_what_this_spark_writes_is_read_as_it_reads_it(tmp_path: Path) -> None:
    call(tmp_path, "tests.compat.make_spark_state", str(tmp_path / "made"), "agg-lz4", "join-lz4-ids")
    for case in ("agg-lz4", "join-lz4-ids"):
        url = str(tmp_path / "made" / case / "checkpoint")
        expected: dict[str, dict[str, Any]] = json.loads((tmp_path / "made" / case / "expected.json").read_text())
        for store, batches in expected.items():
            for batch, entries in batches.items():
                state = open_state(SparkCheckpoint(open_store(url), url), 0, store, None, int(batch))
                assert read_plain(state, tmp_path / "scratch") == entries


def test_a_job_goes_on_from_imported_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that never ran: it begins with the first message of its input, and with the state of the query."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    (tmp_path / "moved.py").write_text(APPLICATION)
    rides = [{"k": f"key-{n % 9}", "i": 1} for n in range(90)]
    (tmp_path / "rides.jsonl").write_text("".join(json.dumps(ride) + "\n" for ride in rides))
    call(tmp_path, "penstock.cli", "stream", "create", "rides", "--partitions", "2")
    call(tmp_path, "penstock.cli", "stream", "publish", "rides", "--file", "rides.jsonl", "--key", "k")

    source = GOLDEN / "agg-lz4" / "checkpoint"
    options = ("--store", "sums", "--map", "moved.py:summed", "--yes", "--json")
    facts = json.loads(call(tmp_path, "penstock.cli", "state", "import-spark", "moved.py:build", str(source), *options))
    counts = imported_counts()
    assert sums() == counts
    assert sum(facts["entries"]) == len(counts)

    run = ("run", "moved.py:build", "--until", "latest", "-c", "spark.master=local[2]")
    call(tmp_path, "penstock.cli", *run)
    assert sums() == {f"key-{n}": counts.get(f"key-{n}", 0) + 10 for n in range(9)}
    listed = json.loads(call(tmp_path, "penstock.cli", "checkpoint", "list", "moved", "--json"))
    assert [each["kind"] for each in listed][:2] == ["commit", "start"]
    assert listed[0]["id"] == facts["checkpoint"]
    assert not json.loads(call(tmp_path, "penstock.cli", "state", "gc", "moved", "--dry-run", "--json"))["backends"][
        "changelog-files"
    ]["names"]


def sums() -> dict[str, int]:
    entries = read_store(load_config(overrides={"job.name": "moved"}), "sums")
    return {key.decode(): int.from_bytes(value, "big") for _, key, value in entries}


def imported_counts() -> dict[str, int]:
    entries = json.loads((GOLDEN / "agg-lz4" / "expected.json").read_text())["default"]["4"]
    found = [json.loads(entry) for entry in entries]
    return {key[0]: value[0] for _, key, value in found if key[0] is not None}
