"""The states of declared aggregates, as `penstock.admin` and `penstock state scan` show them."""

from __future__ import annotations

import json
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock as ps
from penstock import admin
from penstock.admin.state.serdes import serde_of
from penstock.cli.main import app as command
from penstock.config import load_config
from penstock.objects.open import open_job_root
from penstock.system.registry import open_systems
from penstock.testing.in_process import InProcessDriver
from tests.support.world.timed_job import steps_and_commit

SCHEMA = pa.schema(
    {"tail": pa.string(), "miles": pa.int64(), "fare": pa.decimal128(9, 2), "at": pa.timestamp("ms", "UTC")}
)
ROWS = [{"tail": "N1", "miles": 500, "fare": "1.50", "at": "2024-01-01T00:00:00Z"}, {"tail": "N1", "miles": 700}]
TIME_MS = 1_704_067_200_000
TAIL, MILES, FARE, AT = map(ps.col, SCHEMA.names)
BY_COLUMN: dict[str, ps.Aggregate] = {
    "flights": ps.Count(), "miles": ps.Sum(MILES), "mean": ps.Mean(MILES), "spread": ps.Variance(MILES),
    "first": ps.First(TAIL), "last": ps.Last(MILES), "least": ps.Min(MILES), "latest": ps.Max(AT),
    "fares": ps.Sum(FARE),
}  # fmt: skip
STATES = {
    "flights": {"n": 2}, "miles": {"sum": 1200}, "mean": {"sum": 1200, "n": 2},
    "spread": {"n": 2, "mean": 600.0, "m2": 20_000.0}, "first": {"time": TIME_MS, "value": "N1"},
    "last": {"time": TIME_MS, "value": 700}, "least": {"value": 500}, "latest": {"value": "2024-01-01T00:00:00+00:00"},
    "fares": {"sum": "1.50"},
}  # fmt: skip


def application() -> ps.StreamApplication:
    app = ps.StreamApplication("flights")
    by_tail = app.input("local.flights", value=ps.Columns(SCHEMA)).partition_by(TAIL, id="by-tail")
    totals = by_tail.aggregate(BY_COLUMN, id="columns").map(lambda _: 1, id="1")
    top = {"flights": ps.Count(), "top": ps.TopN(MILES, n=1)}
    rows = by_tail.aggregate(top, id="rows").map(lambda _: 1, id="2")
    days = by_tail.window(ps.Windows.tumbling("1d", aggregates=BY_COLUMN), id="days").map(lambda _: 1, id="3")
    totals.merge(rows, days).send_to(app.output("local.out"))
    return app


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a job that has read the rows and committed."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_HOME", str(home))
        stream = admin.open_stream("flights")
        admin.create_stream(stream, 1)
        with closing(stream.system.writer(None)) as writer:
            values = [(TIME_MS, None, json.dumps(row).encode()) for row in ROWS]
            writer.append(ps.SystemStreamPartition("local", "flights", 0), values)
        config = load_config(default_job_name="flights")
        parts = (application().graph(), config, open_job_root(config.job), open_systems(config))
        with closing(InProcessDriver(*parts, containers=1)) as driver:
            driver.loop.start()
            steps_and_commit(driver)
    return home


@pytest.fixture(autouse=True)
def _home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(home))


def scanned(store: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(command, ("state", "scan", "flights", store, "--json"))
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("store", ["columns.aggregate", "days.window"])
def test_states_in_columns(store: str) -> None:
    (entry,) = scanned(store)
    assert entry["value"] == STATES
    assert bytes.fromhex(entry["keyHex"]).endswith(b"N1")


def test_states_of_rows() -> None:
    (entry,) = scanned("rows.aggregate")
    assert entry["value"] == {"flights": 2, "top": [[700, 700]]}


@pytest.mark.parametrize("app", [None, application()])
def test_the_api(app: ps.StreamApplication | None) -> None:
    with admin.open_job("flights", app=app) as job, admin.open_state(job, "columns.aggregate") as store:
        (entry,) = store.scan()
    assert entry.key == b"N1"
    assert entry.value["fares"] == {"sum": Decimal("1.50")}


@pytest.mark.parametrize(
    "definition",
    [
        "aggregate-columns(a=Count:int64):layout=2",
        "aggregate-columns(a=Count,b=Sum:int64)",
        "aggregate-columns(a=Product:int64)",
        "aggregate-columns(a=Min:list<item:int64>)",
        "aggregate-columns(a:b=Count:int64)",
        "aggregate(a=Count):layout=2",
    ],
)
def test_other_definitions_are_left_alone(definition: str) -> None:
    assert serde_of(definition) is None
