"""An aggregate has one result: by row, by column and by a plain computation, for every type and its extreme values, in
whatever batches the messages come and through crashes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import closing
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.arrays.packed_rows import PackedRows
from penstock.columns.aggregates import StateRows
from penstock.testing import TestRunner
from tests.property.test_expression_forms import INF, VALUES
from tests.support.tools.partial_aggregates import added_up

X = ps.col("x")
NANOSECONDS = 1_700_000_000_000_000_000
AGGREGATES = {
    "count": ps.Count(X),
    "sum": ps.Sum(X),
    "mean": ps.Mean(X),
    "variance": ps.Variance(X),
    "min": ps.Min(X),
    "max": ps.Max(X),
    "first": ps.First(X),
    "last": ps.Last(X),
}
BY_ROW = {**AGGREGATES, "keys": ps.Distinct(lambda row: 1)}
"""One that is not computed by column makes all go row by row."""


def cases_of(kind: pa.DataType) -> list[list[Any]]:
    """The values of each key."""
    values = pa.array(VALUES[kind], kind).to_pylist()
    cases = [values, values[::-1], *([each] * 6 for each in values), *map(list, itertools.permutations(values, 2))]
    if kind == pa.int64():
        cases.append([NANOSECONDS] * 6)
    return [[*case, None] for case in cases]


def results(kind: pa.DataType, cases: Sequence[list[Any]], form: str) -> dict[str, dict[str, str]]:
    """The last results of each key, as texts: JSON has no infinity. A key without one has a dead letter."""
    rows = ps.Columns(pa.schema({"k": pa.string(), "x": kind}))
    aggregates = AGGREGATES if form.endswith("columns") else BY_ROW
    app = ps.StreamApplication("forms")
    made = app.input("local.rows").map(lambda at: {"k": str(at[0]), "x": cases[at[0]][at[1]]})
    by_key = made.partition_by(ps.col("k"), value=ps.Json() if form == "json" else rows)
    if form.startswith("window"):
        panes = by_key.window(ps.Windows.tumbling("1h", aggregates=aggregates))
        shown = panes.map(lambda pane: {name: str(each) for name, each in pane.message.items()})
    else:
        shown = by_key.aggregate(aggregates).map(lambda row: {name: str(each) for name, each in row.items()})
    shown.send_to(app.output("local.out"))
    runner = TestRunner(app, partitions=1, dead_letter="local.dead")
    try:
        places = [(number, n) for n in range(max(map(len, cases))) for number in range(len(cases))]
        messages = [[number, n] for number, n in places if n < len(cases[number])]
        half = len(messages) // 2
        runner.input("local.rows", messages[:half], timestamp=1_000).run(batch_messages=100)
        runner.commit().crash().restore()
        runner.input("local.rows", messages[half:], timestamp=1_000).run()
        if form.startswith("window"):
            runner.drain()
        found = {message.key: message.value for message in runner.output("local.out")}
        for each in found.values():
            each.pop("keys", None)
        return found
    finally:
        runner.close()


def plain(kind: pa.DataType, case: list[Any]) -> dict[str, Any]:
    """The exact results; sums of floats are those of doubles, in order."""
    values = [each for each in case if each is not None]
    finite = [each + 0.0 if each == 0 and pa.types.is_floating(kind) else each for each in values if each == each]
    total: Any = sum(map(float, values)) if pa.types.is_floating(kind) else sum(map(Fraction, values))
    count = len(values)
    found = {
        "count": count,
        "sum": total,
        "mean": total / count,
        "min": min(finite, default=math.nan),
        "max": max(finite, default=math.nan),
        "first": values[0],
        "last": values[-1],
    }
    if count < 2:
        return {**found, "variance": None}
    if any(math.isinf(each) or math.isnan(each) for each in map(float, values)):
        return {**found, "variance": math.nan}
    exact = [Fraction(float(each)) for each in values]
    mean = sum(exact) / count
    try:
        return {**found, "variance": float(sum((each - mean) ** 2 for each in exact) / (count - 1))}
    except OverflowError:
        return {**found, "variance": INF}


def is_right(kind: pa.DataType, name: str, shown: str, right: Any) -> bool:
    if right is None:
        return shown == "None"
    if name == "variance":
        found = float(shown)
        return math.isclose(found, right, rel_tol=1e-6) or (math.isnan(found) and math.isnan(right)) or right >= 1e300
    if pa.types.is_decimal(kind) and name == "mean":
        with localcontext(prec=200):
            digits = Decimal(shown).as_tuple().exponent
            exact = Decimal(right.numerator) / Decimal(right.denominator)
            return Decimal(shown) == exact.quantize(Decimal((0, (1,), int(digits))), ROUND_HALF_UP)
    if isinstance(right, Fraction):
        return Fraction(Decimal(shown)) == right if name == "sum" else float(shown) == float(right)
    return bool(shown == str(right) or (pa.types.is_decimal(kind) and Decimal(shown) == right))


def in_any_order(kind: pa.DataType, name: str) -> bool:
    """True for what depends on the order in which floats are added."""
    return pa.types.is_floating(kind) and name in {"sum", "mean", "variance"}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_aggregates(kind: pa.DataType) -> None:
    cases = cases_of(kind)
    with added_up():
        forms = {f"partial-{form}": results(kind, cases, form) for form in ("columns", "window-columns")}
    forms |= {form: results(kind, cases, form) for form in ("columns", "rows", "window-columns", "window-rows")}
    if pa.types.is_integer(kind):
        forms["json"] = results(kind, cases, "json")
    for number, case in enumerate(cases):
        key, right = str(number), plain(kind, case)
        unfit = not pa.types.is_floating(kind) and not fits(kind, right["sum"])
        for form, found in forms.items():
            if unfit:
                by_column = form.endswith("columns")
                allowed = not by_column or form in {"columns", "partial-columns"}
                assert key not in found or allowed, (form, case, found.get(key))
                continue
            for name, value in right.items():
                if form.startswith("partial") and in_any_order(kind, name):
                    continue
                assert is_right(kind, name, found[key][name], value), (form, case, name, found[key][name], value)


def fits(kind: pa.DataType, total: Fraction) -> bool:
    if pa.types.is_decimal(kind):
        return bool(abs(total * 10**kind.scale) < 10**38)
    least, most = (0, 1 << 64) if kind == pa.uint64() else (-(1 << 63), 1 << 63)
    return least <= total < most


WORDS = st.lists(st.integers(-(2**66), 2**66), min_size=1, max_size=6)


@given(WORDS, st.booleans())
def test_states_with_long_sums_come_back(words: list[int], named: bool) -> None:
    fields = [pa.field("sum", pa.int64()), *([pa.field("s", pa.string())] if named else ())]
    rows = StateRows(fields, 1)
    columns = [pa.array(range(len(words)), pa.int64()), *([pa.array(["x" * (n % 3) for n in words])] if named else ())]
    given_words = np.array([0 if abs(each) < 2**64 else each >> 64 for each in words], np.int64)
    packed = rows.pack(pa.StructArray.from_arrays(columns, fields=fields), [given_words])
    found, (back,) = rows.unpack(packed)
    assert found.field("sum").to_pylist() == list(range(len(words)))
    assert back.tolist() == given_words.tolist()
    plain = PackedRows(fields).pack(pa.StructArray.from_arrays(columns, fields=fields))
    assert [packed[n] for n in range(len(words)) if not given_words[n]] == [
        plain[n] for n in range(len(words)) if not given_words[n]
    ]


def test_a_mean_of_nanoseconds_by_column() -> None:
    app = ps.StreamApplication("mean")
    rows = ps.Columns(pa.schema({"k": pa.string(), "x": pa.int64()}))
    by_key = app.input("local.rows", value=rows).partition_by(ps.col("k"))
    by_key.aggregate({"mean": ps.Mean(X), "variance": ps.Variance(X)}).send_to(app.output("local.out"))
    with closing(TestRunner(app)) as runner:
        runner.input("local.rows", [{"k": "a", "x": NANOSECONDS}] * 3).run().commit().crash().restore()
        runner.input("local.rows", [{"k": "a", "x": NANOSECONDS}] * 3).run()
        assert runner.output("local.out")[-1].value == {"mean": 1.7e18, "variance": 0.0}


@pytest.mark.parametrize(
    "form", ["columns", "partial columns", "rows", "window-columns", "window-rows", "window-partial-columns"]
)
def test_a_result_that_fails_is_one_dead_letter(form: str) -> None:
    """The others leave, the state is kept, and a later result leaves as soon as it does not fail."""
    with added_up(always="partial" in form):
        check_a_result_that_fails(form)


def check_a_result_that_fails(form: str) -> None:
    rows = ps.Columns(pa.schema({"k": pa.string(), "x": pa.int64()}))
    aggregates = {"sum": ps.Sum(X), **({"keys": ps.Distinct(lambda row: 1)} if form.endswith("rows") else {})}
    app = ps.StreamApplication("letters")
    by_key = app.input("local.rows", value=rows).partition_by(ps.col("k"))
    if form.startswith("window"):
        found = by_key.window(ps.Windows.tumbling("1h", aggregates=aggregates)).map(lambda pane: pane.message)
    else:
        found = by_key.aggregate(aggregates)
    found.map(lambda row: 100 // row["sum"]).send_to(app.output("local.out"))
    with closing(TestRunner(app, partitions=1, dead_letter="local.dead")) as runner:
        messages = [{"k": key, "x": value} for key, value in (("a", 5), ("b", 0), ("c", 20), ("d", 2**63 - 1))]
        runner.input("local.rows", [*messages, {"k": "e", "x": 2**63 - 1}, {"k": "e", "x": 2**63 - 1}])
        runner.input("local.rows", [{"k": "e", "x": 2**63 - 1}]).run()
        if form.startswith("window"):
            runner.drain()
        assert {each.key: each.value for each in runner.output("local.out")} == {"a": 20, "c": 5, "d": 0}
        letters = [str(each.value) for each in runner.output("local.dead")]
        assert ["division" in letters[0], "64 bits" in letters[1]] == [True, True]
        assert runner.dead_letters == 2
        if not form.startswith("window"):
            runner.commit().crash().restore()
            runner.input("local.rows", [{"k": "b", "x": 1}, *([{"k": "e", "x": -(2**63)}] * 2)]).run()
            assert {each.key: each.value for each in runner.output("local.out")[3:]} == {"b": 100, "e": 0}


@pytest.mark.parametrize("always", [False, True])
def test_an_expression_that_fails_is_one_dead_letter(always: bool) -> None:
    with added_up(always=always):
        check_an_expression_that_fails()


def check_an_expression_that_fails() -> None:
    rows = ps.Columns(pa.schema({"k": pa.string(), "x": pa.int64()}))
    for window in (False, True):
        app = ps.StreamApplication("letters")
        by_key = app.input("local.rows", value=rows).partition_by(ps.col("k"))
        aggregates = {"sum": ps.Sum(X * 2), "n": ps.Count()}
        if window:
            found = by_key.window(ps.Windows.tumbling("1h", aggregates=aggregates)).map(lambda pane: pane.message)
        else:
            found = by_key.aggregate(aggregates).map(dict)
        found.send_to(app.output("local.out"))
        with closing(TestRunner(app, partitions=1, dead_letter="local.dead")) as runner:
            runner.input("local.rows", [{"k": "a", "x": each} for each in (1, 2**62, 3)]).run().drain()
            assert runner.output("local.out")[-1].value == {"sum": 8, "n": 2}
            assert runner.dead_letters == 1
