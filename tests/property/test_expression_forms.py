"""An expression has one value: by row, by column and by a plain computation, for every type and its extreme values."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ConfigError

INF = math.inf
DIGITS = Decimal("9" * 36 + ".99")
LONG = Decimal(10) ** 39
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [0, 1, -1, 127, -128],
    pa.int32(): [0, 3, -1, 2**31 - 1, -(2**31)],
    pa.int64(): [0, 1, -7, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63 - 2, -(2**63), 1700000000123456789],
    pa.uint8(): [0, 1, 255],
    pa.uint32(): [0, 2, 2**32 - 1],
    pa.uint64(): [0, 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1],
    pa.float32(): [0.0, -0.0, 1.5, -1.0, 16777216.0, 3.4028234663852886e38, 0.10000000149011612, INF, -INF, math.nan],
    pa.float64(): [0.0, -0.0, 0.1, -2.5, 2.0**53, 2.0**63, -(2.0**63), 2.0**64, 1e300, 5e-324, INF, -INF, math.nan],
    pa.decimal128(10, 4): [Decimal("0.0000"), Decimal("0.1000"), Decimal("-1.0000"), Decimal("999999.9999")],
    pa.decimal128(38, 2): [
        Decimal("0.00"),
        Decimal("3.00"),
        Decimal("0.10"),
        DIGITS,
        DIGITS.copy_negate(),
        Decimal(2**53 + 1),
    ],
    pa.decimal256(50, 10): [
        Decimal("0E-10"),
        Decimal("1E-10"),
        Decimal(2**64),
        Decimal(10) ** 39,
        -(Decimal(10) ** 39),
    ],
}
KINDS = list(VALUES)
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
CALCULATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
A, B = ps.col("a"), ps.col("b")


def batch_of(kinds: Sequence[pa.DataType], rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array(each, kind) for each, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=["a", "b"][: len(kinds)])


def by_row(expression: ps.Expression, row: dict[str, Any]) -> Any:
    try:
        return expression(row)
    except (ArithmeticError, ValueError, TypeError) as error:
        return error


def by_column(expression: ps.Expression, batch: pa.RecordBatch) -> Any:
    """The value of a batch of one row."""
    try:
        return expression.of_batch(batch)[0].as_py()
    except (pa.ArrowException, ArithmeticError, ValueError) as error:
        return error


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Exception) or isinstance(other, Exception):
        return isinstance(one, Exception) and isinstance(other, Exception)
    if isinstance(one, float) and isinstance(other, float):
        return (one != one and other != other) or (one == other and math.copysign(1, one) == math.copysign(1, other))
    return bool(one == other) and (one is None) == (other is None)


def both(expression: ps.Expression, batch: pa.RecordBatch) -> list[tuple[dict[str, Any], Any, Any]]:
    """Each row, with its value by row and by column; by column alone and among the others it is the same."""
    rows = batch.to_pylist()
    found = [(row, by_row(expression, row), by_column(expression, batch.slice(n, 1))) for n, row in enumerate(rows)]
    fitting = [n for n, (_, _, column) in enumerate(found) if not isinstance(column, Exception)]
    together = expression.of_batch(batch.take(pa.array(fitting, pa.int64()))).to_pylist()
    assert all(same(found[n][2], value) for n, value in zip(fitting, together, strict=True))
    return found


def nulls(rows: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return [*rows, (None, rows[0][1]), (rows[0][0], None), (None, None)]


def order_of(one: Any, other: Any) -> int | None:
    """-1, 0 or 1 by the exact values; None with NaN."""
    if one != one or other != other:
        return None
    if INF in (abs(one), abs(other)):
        one, other = (each if abs(each) == INF else 0 for each in (one, other))
        return int(one > other) - int(one < other)
    first, second = Fraction(one), Fraction(other)
    return int(first > second) - int(first < second)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_comparisons_are_of_the_exact_values(kind: pa.DataType) -> None:
    for other, name in itertools.product(KINDS, COMPARISONS):
        batch = batch_of((kind, other), nulls(list(itertools.product(VALUES[kind], VALUES[other]))))
        for row, in_row, in_column in both(COMPARISONS[name](A, B), batch):
            a, b = row["a"], row["b"]
            order = None if a is None or b is None else order_of(a, b)
            right = None if a is None or b is None else name == "!=" if order is None else COMPARISONS[name](order, 0)
            assert (in_row, in_column) == (right, right), (name, row)


def fits(expression: ps.Expression, schema: pa.Schema) -> bool:
    """False if the declaration is refused: no type has as many digits as the result may have."""
    try:
        expression.type_in(schema, "")
    except ConfigError:
        return False
    return True


def rightly_refused(kinds: tuple[pa.DataType, ...], in_row: Any, in_column: Any) -> bool:
    """True for the one case in which a column, which has a type, has less room than a row, which has none: a result
    with and without a sign, of columns of 64 bits without one."""
    return pa.uint64() in kinds and isinstance(in_row, int | ArithmeticError) and type(in_column) is not float


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_calculations(kind: pa.DataType) -> None:
    for other, name in itertools.product(KINDS, CALCULATIONS):
        kinds = (kind, other)
        batch = batch_of(kinds, nulls(list(itertools.product(VALUES[kind], VALUES[other]))))
        if not fits(CALCULATIONS[name](A, B), batch.schema):
            assert sum(each.precision for each in kinds if pa.types.is_decimal(each)) >= 50
            continue
        for row, in_row, in_column in both(CALCULATIONS[name](A, B), batch):
            assert same(in_row, in_column) or rightly_refused(kinds, in_row, in_column), (name, row, in_row)
            a, b = row["a"], row["b"]
            if isinstance(in_column, int | Decimal):
                assert Fraction(in_column) == CALCULATIONS[name](Fraction(a), Fraction(b)), (name, row)
            elif isinstance(in_column, Exception) and pa.uint64() not in kinds:
                assert not -(2**63) <= CALCULATIONS[name](a, b) < 2**63, (name, row)
            elif isinstance(in_column, float) and name != "/":
                assert same(in_column, CALCULATIONS[name](float(a), float(b))), (name, row)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("constant", [0, 1, -1, 2**63, 2**70, 0.1, 1e9, 2.0**53, -0.0, math.nan, INF, Decimal("0.1")])
def test_constants_are_as_columns(kind: pa.DataType, constant: Any) -> None:
    batch = batch_of((kind,), [(each,) for each in [*VALUES[kind], None]])
    for name, call in COMPARISONS.items():
        for left, right in ((A, constant), (constant, A)):
            for row, in_row, in_column in both(call(left, right), batch):
                order = None if row["a"] is None else order_of(row["a"], constant)
                sign = order if left is A or order is None else -order
                right_value = None if row["a"] is None else name == "!=" if sign is None else call(sign, 0)
                assert (in_row, in_column) == (right_value, right_value), (name, row)
    if isinstance(constant, int) and abs(constant) >= 2**63:
        return
    for call in CALCULATIONS.values():
        for row, in_row, in_column in both(call(A, constant), batch):
            assert same(in_row, in_column) or rightly_refused((kind,), in_row, in_column), (call, row)
    if isinstance(constant, Decimal):
        return
    for row, in_row, in_column in both(A.fill_null(constant), batch):
        signed = pa.uint64() == kind and constant == -1
        assert same(in_row, in_column) or in_row == in_column or signed, (row, in_row, in_column)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_one_of_several_is_one_that_is_equal(kind: pa.DataType) -> None:
    wanted = [0, 1, -1, 2**63, 2**70, 0.1, -0.0, 2.0**53, math.nan, INF, Decimal("0.1"), Decimal(3), None]
    batch = batch_of((kind,), [(each,) for each in [*VALUES[kind], None]])
    for values in ([each] for each in wanted):
        for row, in_row, in_column in both(A.is_in(values), batch):
            value = row["a"]
            right = value is values[0] is None or (None not in (value, values[0]) and order_of(value, values[0]) == 0)
            assert (in_row, in_column) == (right, right), (row, values)
    for row, in_row, in_column in both(A.is_null(), batch):
        assert in_row is in_column is (row["a"] is None)


@given(st.integers(-(2**63), 2**63 - 1), st.floats(width=64), st.integers(-3, 3))
def test_a_whole_number_beside_a_float(number: int, near: float, step: int) -> None:
    floats = [near, float(number), math.nextafter(float(number), INF), math.nextafter(float(number), -INF)]
    other = min(max(number + step, -(2**63)), 2**63 - 1)
    batch = batch_of((pa.int64(), pa.float64()), [(each, beside) for each in (number, other) for beside in floats])
    for name, call in COMPARISONS.items():
        for row, in_row, in_column in both(call(A, B), batch):
            order = order_of(row["a"], row["b"])
            right = name == "!=" if order is None else call(order, 0)
            assert (in_row, in_column) == (right, right), (name, row)


TIMES = [datetime(1, 1, 3, tzinfo=UTC), datetime(2024, 2, 29, 12, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)]


@pytest.mark.parametrize("units", [*itertools.permutations(["s", "ms", "us"], 2)])
def test_times_of_several_units(units: tuple[Any, Any]) -> None:
    moments = [each + timedelta(microseconds=n) for each in TIMES for n in (0, 1, -1)]
    kinds = tuple(pa.timestamp(unit, "UTC") for unit in units)
    columns = [pa.array(moments, pa.timestamp("us", "UTC")).cast(kind, safe=False) for kind in kinds]
    pairs = list(itertools.product(*(column.to_pylist() for column in columns)))
    for call in COMPARISONS.values():
        for row, in_row, in_column in both(call(A, B), batch_of(kinds, nulls(pairs))):
            right = None if None in row.values() else call(row["a"], row["b"])
            assert (in_row, in_column) == (right, right), row


def test_nanoseconds_beside_a_time_that_they_cannot_hold() -> None:
    far = datetime(3024, 1, 1, tzinfo=UTC)
    batch = batch_of((pa.timestamp("ns", "UTC"),), [(datetime(2024, 1, 1, tzinfo=UTC),), (None,)])
    assert (far > A).of_batch(batch).to_pylist() == [True, None]
    equal: Any = far == A
    assert equal.of_batch(batch).to_pylist() == [False, None]


def test_whole_numbers_have_64_bits_in_both_forms() -> None:
    assert (A + 1)({"a": 2**63 - 2}) == 2**63 - 1
    for row in ({"a": 2**63 - 1}, {"a": 2**64 - 1}):
        with pytest.raises(OverflowError, match="does not fit into 64 bits"):
            (A + 1)(row)
    assert (A - 1)({"a": 5}) == 4


def test_a_filter_of_nanoseconds_by_column() -> None:
    rows = ps.Columns(pa.schema({"ts": pa.int64(), "id": pa.int64()}))
    batch = rows.rows_of([{"ts": 1700000000123456789, "id": 7}])
    condition = ps.col("ts") > 1e9
    assert condition.of_batch(pa.RecordBatch.from_struct_array(batch)).to_pylist() == [True]
