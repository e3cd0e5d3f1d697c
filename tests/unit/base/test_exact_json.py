"""State that Penstock writes for itself comes back as it was, and aggregates go on with it."""

from __future__ import annotations

import math
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from time import process_time
from types import MappingProxyType
from typing import Any, NamedTuple
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
from penstock.admin.state.serdes import aggregate_states
from penstock.api.time.windows import Aggregates
from penstock.base.exact_json import exact_bytes, exact_value
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
    | st.datetimes().map(lambda at: at.replace(fold=1))
    | st.datetimes(timezones=st.just(timezone(timedelta(hours=5, minutes=30))))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.uuids()
    | st.fractions()
    | st.sampled_from([np.float32(1.1), np.float64(-0.0), np.int8(-1), np.uint64(2**64 - 1), np.bool_(True)])
    | st.sampled_from([datetime(2024, 10, 27, 2, fold=1, tzinfo=ZoneInfo("Europe/Berlin")), time(2, tzinfo=UTC)])
)
HASHED = TEXT | st.integers() | st.dates() | st.tuples(TEXT, st.integers()) | st.booleans() | st.none()
VALUES = st.recursive(
    EXACT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(TEXT, inner, max_size=3)
        | st.dictionaries(HASHED, inner, max_size=3)
        | st.sets(HASHED, max_size=3)
        | st.frozensets(HASHED | st.frozensets(HASHED, max_size=2), max_size=3)
        | st.dictionaries(HASHED, st.integers(), max_size=3).map(Counter)
        | st.dictionaries(HASHED, inner, max_size=3).map(OrderedDict)
        | st.lists(inner, max_size=3).map(lambda items: deque(items, 5))
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Equal, of equal types, with NaN and the signs of zero."""
    if isinstance(one, float) and isinstance(other, float):
        return (one, math.copysign(1, one)) == (other, math.copysign(1, other)) or (one != one and other != other)
    if isinstance(one, list | tuple | deque):
        if isinstance(one, deque) and isinstance(other, deque) and one.maxlen != other.maxlen:
            return False
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return type(one) is type(other) and same(list(one.items()), list(other.items()))
    if isinstance(one, datetime) and isinstance(other, datetime) and not isinstance(one.tzinfo, timezone):
        return (one, one.fold, one.tzinfo) == (other, other.fold, other.tzinfo)
    if isinstance(one, set | frozenset) and isinstance(other, set | frozenset) and one:
        return type(one) is type(other) and one == other and {*map(type, one)} == {*map(type, other)}
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


class Word(str, Enum):  # noqa: UP042 - both are equal to their values
    A = "a"


class Number(IntEnum):
    ONE = 1


class Pair(NamedTuple):
    a: int
    b: int


class Text(str):
    __slots__ = ()


class Money(Decimal):
    pass


class Tags(list[Any]):
    pass


ROUND: list[Any] = []
ROUND.append(ROUND)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]
OTHERS: list[Any] = [
    *[object(), 1j, print, Trip("N1", 1), Typed(1.0), Colour.RED, Word.A, Number.ONE, Pair(1, 2), Text("a"), Money(1)],
    *[
        Tags(),
        defaultdict(int, {"a": 1}),
        ChainMap({"a": 1}),
        MappingProxyType({"a": 1}),
        range(2),
        b"".join,
        ROUND,
        DEEP,
    ],
    *[time(2, tzinfo=ZoneInfo("Europe/Berlin")), np.datetime64(1, "s"), np.longdouble("1.1"), np.array([1])],
    *[pd.Timestamp("0001-01-01").as_unit("s"), pd.Interval(1, 2)],
    *["\ud800", memoryview(b"a"), orjson.Fragment(b"1"), {1, 2}.__iter__(), Ellipsis],
]


@pytest.mark.parametrize("value", OTHERS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("place", [lambda v: v, lambda v: [1, v], lambda v: {"a": v}, lambda v: {"a": {1: (v,)}}])
def test_what_would_come_back_as_something_else_is_refused(value: Any, place: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"stored|U\+D800"):
        exact_bytes(place(value))


@pytest.mark.parametrize("key", [Word.A, Number.ONE, Text("a"), Pair(1, 2), "\ud800", Colour.RED], ids=repr)
def test_keys_that_would_become_others_are_refused(key: Any) -> None:
    for value in ({key: 1}, {key}, Counter({key: 1})):
        with pytest.raises((TypeError, ValueError), match=r"stored|U\+D800"):
            exact_bytes(value)


@given(st.sets(HASHED, max_size=4))
def test_equal_sets_have_equal_bytes(value: set[Any]) -> None:
    assert exact_bytes(value) == exact_bytes({*sorted(value, key=repr)})


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


ONE_HASH = b",".join(b"%d" % (number * (2**61 - 1)) for number in range(2000))
ONE_HASH_PAIRS = b",".join(b"[%d,1]" % (number * (2**61 - 1)) for number in range(2000))


@pytest.mark.attack
@pytest.mark.parametrize(
    "data",
    [
        b'!{"$zoned":["2020-01-01T00:00:00","../../../etc/passwd",0]}',
        b'!{"$zoned":["2020-01-01T00:00:00","%b",0]}' % (b"A" * 100_000),
        b'!{"$Timestamp":[1,"dateutil//etc/passwd"]}',
        b'!{"$Timestamp":["%b",null]}' % (b"9" * 100_000),
        b'!{"$Timedelta":"%b"}' % (b"9" * 100_000),
        *(b'!{"$%b":[%b]}' % (kind, ONE_HASH_PAIRS) for kind in (b"dict", b"Counter", b"OrderedDict")),
        *(b'!{"$%b":[%b]}' % (kind, ONE_HASH) for kind in (b"set", b"frozenset")),
        b'!{"$numpy":["V1000000000",1]}',
        b'!{"$numpy":["O",1]}',
        b'!{"$Fraction":[1,0]}',
        b'!{"$UUID":7}',
        b'!{"$set":[[1]]}',
        b"!" + b"[" * 100_000,
        b'!{"$numpy":["%b",1]}' % (b"i8," * 100_000),
    ],
)
def test_state_of_somebody_else_opens_no_file_and_takes_no_time(data: bytes) -> None:
    began = process_time()
    with pytest.raises(ValueError) as caught:
        exact_value(data)
    assert process_time() - began < 1
    assert len(str(caught.value)) <= 300


class Ports(ps.Aggregate):
    """Different values, in a set."""

    def one(self, x: Any, time_ms: int) -> Any:
        return {x}

    def merge(self, first: Any, second: Any) -> Any:
        return first | second

    def result(self, state: Any) -> Any:
        return sorted(state)


class Trips(Ports):
    def one(self, x: Any, time_ms: int) -> Any:
        return Trip(x, 1)

    def merge(self, first: Any, second: Any) -> Any:
        return first


def counting(aggregate: ps.Aggregate, window: ps.Window | None = None) -> TestRunner:
    app = ps.StreamApplication("a")
    stream, out = app.input("local.in"), app.output("local.out")
    if window is None:
        stream.aggregate({"ports": aggregate}, id="o").map(lambda row: row["ports"]).send_to(out)
    else:
        stream.window(window, id="o").map(lambda pane: pane.message["ports"]).send_to(out)
    return TestRunner(app, partitions=1)


def test_an_aggregate_of_ones_own_keeps_its_set() -> None:
    runner = counting(Ports())
    for port in ("EWR", "JFK", "EWR"):
        runner.input("local.in", [("k", port)]).run().commit().crash().restore()
    assert [message.value for message in runner.output("local.out")] == [["EWR"], ["EWR", "JFK"], ["EWR", "JFK"]]


@pytest.mark.parametrize("windowed", [False, True])
def test_an_aggregate_whose_state_would_change_says_so(windowed: bool) -> None:
    window = ps.Windows.tumbling("1h", aggregates={"ports": Trips()}) if windowed else None
    runner = counting(Trips(), window).input("local.in", [("k", "EWR")], timestamp=1)
    whose = f"{'window' if windowed else 'aggregate'} operator `o`: the state of aggregate `ports` of key 'k'"
    with pytest.raises(Exception, match=f"{whose} cannot be stored.*a value of type Trip.*`to_json`"):
        runner.run().commit()


# Earlier versions wrote null for NaN and the infinities.

NULLS = b"[2,[null,2],[2,null,null],[[null,null],[2.0,2.0]],[5,2.0]]"
MEANS: dict[str, Any] = {
    "n": ps.Count(), "mean": ps.Mean(), "variance": ps.Variance(), "top": ps.TopN(n=2), "last": ps.Last(),
}  # fmt: skip


def test_nulls_of_earlier_versions_are_no_numbers() -> None:
    content = AggregateContent(Aggregates(MEANS))
    state = content.add(content.from_bytes(NULLS), 3.0, 6)
    again = content.from_bytes(content.to_bytes(state))
    for found in (state, again):
        expected = {"n": 3, "mean": math.nan, "variance": math.nan, "top": [3.0, 2.0], "last": 3.0}
        assert same(content.shown(found), expected)
    for stored, kind in ((b"[null]", ps.Mean), (b"[null]", ps.TopN), (b"[null]", ps.Variance)):
        one = AggregateContent(Aggregates({"a": kind()}))
        assert one.from_bytes(stored) == [None]
