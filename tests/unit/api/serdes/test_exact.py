"""State that Penstock writes for itself comes back as it was, and aggregates go on with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from time import process_time
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import orjson
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.admin.state.aggregate_states import aggregate_states
from penstock.api.serdes.exact import exact_bytes, exact_value
from penstock.api.time.windows import Aggregates
from penstock.runtime.windows.contents import AggregateContent
from penstock.testing import TestRunner

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.sampled_from(
    ["$bytes", "$dict", "null", "NaN"]
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
EXACT = (
    PLAIN
    | st.binary(max_size=5)
    | st.decimals(allow_nan=False)
    | st.datetimes()
    | st.datetimes(timezones=st.just(timezone(timedelta(hours=5, minutes=30))))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.uuids()
)
VALUES = st.recursive(
    EXACT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(TEXT, inner, max_size=3)
        | st.dictionaries(st.integers() | st.dates() | st.tuples(TEXT, st.integers()), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Equal, of equal types, with NaN and the signs of zero."""
    if isinstance(one, float) and isinstance(other, float):
        return (one, math.copysign(1, one)) == (other, math.copysign(1, other)) or (one != one and other != other)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


@given(VALUES)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert same(exact_value(exact_bytes(value)), value)


def test_times_of_zones_and_of_nanoseconds() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    twice = [datetime(2024, 10, 27, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1)]
    times = [pd.Timestamp(1_700_000_000_123_456_789, tz="Europe/Berlin"), pd.Timestamp(1), pd.Timedelta(5), pd.NaT]
    assert repr(exact_value(exact_bytes(twice + times))) == repr(twice + times)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_what_json_has_is_json_as_before(value: Any) -> None:
    """Earlier versions wrote state with these two, and read it so."""
    assert exact_bytes(value) == orjson.dumps(value)
    for written in (orjson.dumps(value), msgspec.json.encode(value)):
        assert same(exact_value(written), value)


class Colour(Enum):
    RED = "red"


@dataclass
class Trip:
    tail: str
    at: Any


class Typed(msgspec.Struct):
    miles: float


def test_objects_are_read_as_their_fields() -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    found = exact_value(exact_bytes([Trip("N1", at), Typed(math.inf), Colour.RED, np.float64(1.5), np.int64(5)]))
    assert same(found, [{"tail": "N1", "at": at}, {"miles": math.inf}, "red", 1.5, 5])


@pytest.mark.parametrize("value", [object(), 1j, "\ud800", print, [object()], {"a": {1: object()}}])
def test_what_has_no_fields_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        exact_bytes(value)


@pytest.mark.parametrize("data", [b"", b"[", b"[NaN]", b"!", b"!{", b'!{"$UUID":"x"}'])
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        exact_value(data)


# Aggregates: all values in one batch, and each in a batch of its own, by row and in a window.

TIMES = [datetime(2026, 3, day, tzinfo=UTC) for day in (2, 1, 3)]
SERIES: list[list[Any]] = [
    [1.0, math.inf, 2.0],
    [1.0, -math.inf, 2.0],
    [1.0, math.nan, 2.0],
    [math.nan, 1.0, math.inf],
    [math.inf, -math.inf, 1.0],
    [0.0, -0.0, 5e-324],
    [1e308, 1e308, -1e308],
    [2**62, 2**62, 2**62, -(2**63)],
    [Decimal("1.10"), Decimal("2.05"), Decimal("-0.15")],
]
ORDERED: list[list[Any]] = [
    *SERIES,
    TIMES,
    [each.date() for each in TIMES],
    [time(2), time(1), time(3)],
    [timedelta(2), timedelta(1), timedelta(3)],
    [UUID(int=2), UUID(int=1), UUID(int=3)],
    [b"b", b"a", b"c"],
    [(2, "b"), (1, "a"), (2, "c")],
    ["b", "a", "c"],
]
ALL = [ps.Min, ps.Max, ps.First, ps.Last, ps.Distinct, ps.TopN, ps.Sum, ps.Mean, ps.Variance]
KINDS: dict[str, Any] = {each.__name__: each for each in ALL}
_OF_NUMBERS = ("Sum", "Mean", "Variance")


def aggregates_of(values: list[Any]) -> dict[str, Any]:
    """All aggregates that take these values. Messages are numbers, which their functions turn into the values."""
    names = [name for name in KINDS if name not in _OF_NUMBERS or values in SERIES]
    if isinstance(values[0], Decimal):
        names.remove("Variance")
    return {name: KINDS[name](of=lambda number: values[number]) for name in names}


@pytest.mark.parametrize("values", ORDERED, ids=str)
def test_a_window_does_not_depend_on_when_it_is_stored(values: list[Any]) -> None:
    content = AggregateContent(Aggregates(aggregates_of(values)))
    kept, stored = content.initial(), content.initial()
    for number in range(len(values)):
        kept = content.add(kept, number, number)
        stored = content.from_bytes(content.to_bytes(content.add(stored, number, number)))
    assert same(content.shown(stored), content.shown(kept))


@pytest.mark.parametrize("values", [SERIES[0], SERIES[2], SERIES[7], SERIES[8], ORDERED[-2]], ids=str)
def test_an_aggregate_by_row_does_not_depend_on_batches(values: list[Any]) -> None:
    def results(*, batches: bool) -> Any:
        app = ps.StreamApplication("a")
        rows = app.input("local.in", value=ps.Long()).aggregate(aggregates_of(values))
        seen: list[Any] = []
        rows.map(seen.append).filter(lambda _: False).send_to(app.output("local.out"))
        runner = TestRunner(app)
        for number in range(len(values)):
            runner.input("local.in", [("k", number)])
            if batches:
                runner.run().commit()
        runner.run()
        return seen[-1]

    assert same(results(batches=True), results(batches=False))


def test_sums_of_infinity_by_row() -> None:
    app = ps.StreamApplication("a")
    rows = app.input("local.in", value=ps.Double()).aggregate({"m": ps.Sum()})
    rows.map(lambda row: row["m"]).send_to(app.output("local.out", value=ps.Double()))
    runner = TestRunner(app)
    for number in (1.0, math.inf, 2.0):
        runner.input("local.in", [("a", number)]).run().commit()
    assert [message.value for message in runner.output("local.out")] == [1.0, math.inf, math.inf]


def test_the_command_line_shows_such_states() -> None:
    states = aggregate_states("aggregate(total=Sum,mean=Mean)")
    assert states is not None
    assert states.from_bytes(exact_bytes([math.inf, [Decimal("1.5"), 2]])) == {
        "total": math.inf,
        "mean": [Decimal("1.5"), 2],
    }


@pytest.mark.parametrize(
    "data",
    [
        b'!{"$zoned":["2020-01-01T00:00:00","../../../etc/passwd",0]}',
        b'!{"$zoned":["2020-01-01T00:00:00","%b",0]}' % (b"A" * 100_000),
        b'!{"$Timestamp":[1,"dateutil//etc/passwd"]}',
        b'!{"$Timestamp":["%b",null]}' % (b"9" * 100_000),
        b'!{"$Timedelta":"%b"}' % (b"9" * 100_000),
        b'!{"$dict":[%b]}' % b",".join(b"[%d,1]" % (number * (2**61 - 1)) for number in range(2000)),
    ],
)
def test_state_of_somebody_else_opens_no_file_and_takes_no_time(data: bytes) -> None:
    began = process_time()
    with pytest.raises((ValueError, TypeError)) as caught:
        exact_value(data)
    assert process_time() - began < 1
    assert len(str(caught.value)) < 300
