"""Sums and means of decimals by column, beside Python's decimals."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, localcontext

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.columns.aggregates import mean_fold, sum_fold
from penstock.columns.folds import ColumnFold
from penstock.testing import TestRunner

GROUPS = 3
Batch = list[tuple[int, Decimal]]
Drawn = tuple[pa.DataType, list[Batch]]


@st.composite
def batches(draw: st.DrawFn) -> Drawn:
    digits = draw(st.sampled_from([5, 18, 19, 36]))
    scale = draw(st.integers(0, min(digits, 10)))
    limit = 10**digits - 1
    whole = st.one_of(st.integers(-limit, limit), st.integers(limit - 3, limit))
    value = st.tuples(st.integers(0, GROUPS - 1), whole.map(lambda n: Decimal(n).scaleb(-scale)))
    with localcontext(prec=60):
        found = draw(st.lists(st.lists(value, max_size=8), max_size=4))
    return pa.decimal128(digits, scale), found


def added(fold: ColumnFold, kind: pa.DataType, batch: Batch) -> None:
    groups = np.array([group for group, _ in batch], np.int64)
    fold.add(groups, pa.array([value for _, value in batch], kind), np.zeros(len(batch), np.int64))


@given(batches())
def test_sums_and_means_are_exact_over_batches(
    given: tuple[pa.DataType, list[list[tuple[int, Decimal]]]],
) -> None:
    kind, parts = given
    state: list[pa.Array] | None = None
    means: list[Decimal | None] = []
    sums: list[Decimal] = []
    for part in [*parts, []]:  # each batch begins with what the one before has stored
        mean, total = mean_fold(kind), sum_fold(kind)
        stored = state or [pa.nulls(GROUPS, field) for _, field in mean.fields]
        mean.grow(stored)
        total.grow(stored[:1])
        added(mean, kind, part)
        added(total, kind, part)
        state = list(mean.stored())
        assert total.stored()[0].equals(state[0])
        means, sums = mean.results().to_pylist(), total.results().to_pylist()
    with localcontext(prec=80):
        for group in range(GROUPS):
            values = [value for part in parts for each, value in part if each == group]
            assert sums[group] == sum(values, Decimal(0))
            digit = Decimal(1).scaleb(-kind.scale - min(4, 38 - kind.precision))
            expected = (sum(values, Decimal(0)) / len(values)).quantize(digit, ROUND_HALF_UP) if values else None
            assert means[group] == expected


def test_a_sum_of_more_than_38_digits_has_no_result_until_it_fits_again() -> None:
    kind = pa.decimal128(38, 0)
    fold = sum_fold(kind)
    fold.grow([pa.nulls(2, fold.fields[0][1])])
    added(fold, kind, [(0, Decimal(10**38 - 1)), (0, Decimal(1)), (1, Decimal(7))])
    assert fold.results().to_pylist() == [None, Decimal(7)]
    assert np.array_equal(fold.misfits(), [True, False])  # type: ignore[arg-type]
    again = sum_fold(kind)
    again.grow(fold.stored(), fold.words())
    added(again, kind, [(0, Decimal(-5))])
    assert again.results().to_pylist() == [Decimal(10**38 - 5), Decimal(7)]
    assert again.misfits() is None


def test_an_aggregate_of_money_is_json_by_its_type() -> None:
    order = ps.Columns(pa.schema({"shop": pa.string(), "price": pa.decimal128(10, 2), "at": pa.timestamp("ms", "UTC")}))
    app = ps.StreamApplication("sales")
    sales = app.input("local.orders", value=order).partition_by(ps.col("shop"))
    aggregates = {"sum": ps.Sum(ps.col("price")), "mean": ps.Mean(ps.col("price")), "last": ps.Max(ps.col("at"))}
    sales.aggregate(aggregates, id="sales").send_to(app.output("local.sales"))
    rows = [{"shop": "a", "price": Decimal("0.10"), "at": 1_000}, {"shop": "a", "price": Decimal("0.25"), "at": 2_000}]
    (found,) = TestRunner(app).input("local.orders", rows).run().output("local.sales")
    assert found.value == {"sum": "0.35", "mean": "0.175000", "last": "1970-01-01T00:00:02Z"}
