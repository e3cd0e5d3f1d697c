"""The columns that an exchange carries: those that something after it reads."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.graph.topology import plan_topology
from penstock.testing import TestRunner

FLIGHT = ps.Columns(
    pa.schema(
        {"tail": pa.string(), "carrier": pa.string(), "miles": pa.int64(), "delay": pa.float64(), "ok": pa.bool_()}
    )
)


class Everything(ps.BatchProcessor):
    """Gets whole rows."""

    def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None:
        collector.emit(batch.keys, batch.values)


def carried(app: ps.StreamApplication) -> list[list[str] | None]:
    """By channel, the columns that it carries; None for one that carries bytes."""
    channels = plan_topology(app.graph()).channels
    return [None if channel.columns is None else channel.columns.schema.names for channel in channels]


def by_carrier() -> tuple[ps.StreamApplication, ps.MessageStream[Any]]:
    app = ps.StreamApplication("a")
    return app, app.input("m.in", value=FLIGHT).partition_by(ps.col("carrier"))


def test_an_aggregate_gets_the_columns_of_its_expressions() -> None:
    app, stream = by_carrier()
    stream.aggregate({"n": ps.Count(), "late": ps.Sum(ps.col("miles") * 2), "worst": ps.Max(ps.col("delay"))})
    assert carried(app) == [["miles", "delay"]]


def test_a_count_of_messages_gets_the_smallest_column() -> None:
    app, stream = by_carrier()
    stream.aggregate({"n": ps.Count()})
    assert carried(app) == [["ok"]]


def test_filters_and_keys_on_the_way_add_their_columns_and_select_ends_it() -> None:
    app, stream = by_carrier()
    kept = stream.filter(ps.col("ok")).partition_by(ps.col("tail"))
    kept.aggregate({"miles": ps.Sum(ps.col("miles"))})
    assert carried(app) == [["tail", "miles", "ok"], ["miles"]]
    app, stream = by_carrier()
    stream.select("tail", km=ps.col("miles") * 1.6).send_to(app.output("m.out"))
    assert carried(app)[0] == ["tail", "miles"]


def test_windows_get_the_columns_of_their_aggregates_unless_late_messages_are_sent_on() -> None:
    for late_to in (False, True):
        app, stream = by_carrier()
        late: dict[str, Any] = {"late_to": app.output("m.late", value=FLIGHT)} if late_to else {}
        stream.window(ps.Windows.tumbling(60_000, aggregates={"n": ps.Mean(ps.col("delay"))}, **late))
        assert carried(app)[0] == (FLIGHT.schema.names if late_to else ["delay"])


@pytest.mark.parametrize("reader", ["map", "process_batch", "send_to", "aggregate of a function", "through"])
def test_whoever_gets_whole_rows_gets_all_columns_beside_an_aggregate(reader: str) -> None:
    app, stream = by_carrier()
    stream.aggregate({"n": ps.Count()}, id="counts")
    if reader == "map":
        stream.map(len)
    elif reader == "process_batch":
        stream.process_batch(Everything, schema=FLIGHT.schema)
    elif reader == "send_to":
        stream.send_to(app.output("m.out", value=FLIGHT))
    elif reader == "through":
        stream.partition_by(ps.col("tail"), through="m.between")
    else:
        stream.aggregate({"n": ps.Sum(lambda row: row["miles"])}, id="sums")
    assert carried(app)[0] == FLIGHT.schema.names


def test_messages_without_a_value_stay_without_one() -> None:
    app = ps.StreamApplication("a")
    stream = app.input("m.in", value=FLIGHT).partition_by(lambda row: "none" if row is None else row["carrier"])
    totals = stream.aggregate({"n": ps.Count(), "miles": ps.Sum(ps.col("miles"))}, id="totals")
    totals.send_to(app.output("m.out"))
    assert carried(app)[0] == ["miles"]
    rows = [("a", {"carrier": "UA", "miles": 3}), ("a", None), ("a", {"carrier": "none"})]
    found = TestRunner(app).input("m.in", rows).run().output("m.out")
    assert {message.key: message.value for message in found} == {
        "UA": {"n": 1, "miles": 3},
        "none": {"n": 1, "miles": 0},
    }
