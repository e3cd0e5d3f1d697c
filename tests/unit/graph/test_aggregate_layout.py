"""The definitions of stores of aggregates: each text that checkpoints have is read as what it was written from."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.graph.aggregation import AggregateLayout

SCHEMA = pa.schema({"miles": pa.int64(), "fare": pa.decimal128(9, 2), "at": pa.timestamp("ms", "UTC")})
MILES, FARE, AT = map(ps.col, SCHEMA.names)
SUMS: dict[str, ps.Aggregate] = {"flights": ps.Count(), "fares": ps.Mean(FARE), "latest": ps.Max(AT)}
KINDS = (("flights", "Count"), ("fares", "Mean"), ("latest", "Max"))
TYPES = "int64,decimal128(38,2),int64,timestamp[ms,tz=UTC]"
WORDS = "flights=Count,fares=Mean,latest=Max"
DAY = "Fixed(size_ms=86400000,every_ms=86400000,offset_ms=0)"


def definition(
    window: ps.Window | None, aggregates: dict[str, ps.Aggregate] = SUMS, value: ps.Serde[Any] | None = None
) -> str:
    app = ps.StreamApplication("a")
    rows = app.input("m.in", value=value or ps.Columns(SCHEMA)).partition_by(lambda row: "", key=ps.Tuple(ps.String()))
    (rows.aggregate(aggregates) if window is None else rows.window(window)).send_to(app.output("m.out"))
    (store,) = app.graph().stores
    return store.value_serde.name


@pytest.mark.parametrize(
    ("window", "word"),
    [
        (None, f"aggregate-columns({WORDS}:{TYPES})"),
        (
            ps.Windows.tumbling("1d", aggregates=SUMS),
            f"{DAY}:event:{WORDS}:tuple(string):early=None:late=None:accumulating:lateness=0:columns={TYPES}",
        ),
    ],
)
def test_states_by_column(window: ps.Window | None, word: str) -> None:
    assert definition(window) == word
    assert AggregateLayout.parse(word) == AggregateLayout(KINDS, TYPES)


def test_states_by_row() -> None:
    word = definition(None, {"flights": ps.Count(), "two words": ps.TopN(n=2)}, ps.Json())
    assert word == "aggregate(flights=Count,two words=TopN)"
    assert AggregateLayout.parse(word) == AggregateLayout((("flights", "Count"), ("two words", "TopN")), None)


@pytest.mark.parametrize(
    ("window", "word"),
    [
        (
            ps.Windows.hopping("1h", "1min", aggregates=SUMS, early=ps.Triggers.count(2), allowed_lateness_ms=5),
            f"Fixed(size_ms=3600000,every_ms=60000,offset_ms=0):event:{WORDS}:tuple(string)",
        ),
        (
            ps.Windows.session("5min", time="processing", fold=(0, lambda n, _: n + 1), keyed=False),
            "Session(gap_ms=300000):processing:messages(",
        ),
        (ps.Windows.count(3, fold=(0, max)), "Counting(messages=3):event:fold(json):tuple(string):early=None:"),
    ],
)
def test_other_windows_have_no_states_that_are_read_alone(window: ps.Window, word: str) -> None:
    found = definition(window)
    assert found.startswith(word)
    assert ":columns=" not in found
    assert AggregateLayout.parse(found) is None
