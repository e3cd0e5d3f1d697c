"""Rows and keys as bytes for all types, and the values of columns as `as_py` has them."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    Row,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import ConfigError
from penstock.spark.processor.codec import RowCodec
from penstock.spark.processor.fields import KeyCodec
from penstock.spark.processor.rows import values_of
from penstock.spark.versions import arrow_schema
from tests.support.tools.profiles import examples

TIMES = st.datetimes(datetime.datetime(1970, 1, 3), datetime.datetime(2100, 1, 1))  # noqa: DTZ001
WHOLE = {ByteType: 7, ShortType: 15, IntegerType: 31, LongType: 63}
SCALARS: list[tuple[DataType, st.SearchStrategy[Any]]] = [
    (BooleanType(), st.booleans()),
    *((kind(), st.integers(-(2**bits), 2**bits - 1)) for kind, bits in WHOLE.items()),
    (FloatType(), st.floats(width=32, allow_nan=False)),
    (DoubleType(), st.floats(allow_nan=False)),
    (StringType(), st.text(st.characters(codec="utf-8"), max_size=5)),
    (BinaryType(), st.binary(max_size=5)),
    (DateType(), st.dates()),
    (TimestampNTZType(), TIMES),
    (DayTimeIntervalType(), st.timedeltas(datetime.timedelta(-1000), datetime.timedelta(1000))),
    (DecimalType(12, 3), st.decimals(-(10**8), 10**8, places=3)),
]


def _structs(fields: list[tuple[DataType, st.SearchStrategy[Any]]]) -> tuple[DataType, st.SearchStrategy[Any]]:
    made = Row(*(f"f{n}" for n in range(len(fields))))
    kind = StructType([StructField(f"f{n}", t[0]) for n, t in enumerate(fields)])
    return kind, st.tuples(*(st.none() | t[1] for t in fields)).map(lambda values: made(*values))


TYPES = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: (
        inner.map(lambda t: (ArrayType(t[0]), st.lists(st.none() | t[1], max_size=3)))
        | inner.map(lambda t: (MapType(StringType(), t[0]), st.dictionaries(st.text(max_size=2), t[1], max_size=3)))
        | st.lists(inner, min_size=1, max_size=3).map(_structs)
    ),
    max_leaves=4,
)


@st.composite
def rows(draw: st.DrawFn, kinds: st.SearchStrategy[Any] = TYPES) -> tuple[StructType, list[tuple[Any, ...]]]:
    fields = draw(st.lists(kinds, min_size=1, max_size=9))
    schema = StructType([StructField(f"f{n}", t[0]) for n, t in enumerate(fields)])
    return schema, draw(st.lists(st.tuples(*(st.none() | t[1] for t in fields)), min_size=1, max_size=5))


@examples(0.5)
@given(rows())
def test_a_row_is_what_it_was(given: tuple[StructType, list[tuple[Any, ...]]]) -> None:
    schema, values = given
    codec = RowCodec(schema)
    for row in values:
        found = codec.decode(codec.encode(row))
        assert found == row
        assert [type(each) for each in found] == [type(each) for each in row]


@examples(0.5)
@given(rows(), st.data())
def test_added_fields_are_none(given: tuple[StructType, list[tuple[Any, ...]]], data: st.DataObject) -> None:
    schema, values = given
    first = data.draw(st.integers(1, len(schema)))
    before, now = RowCodec(StructType(schema.fields[:first])), RowCodec(schema)
    for row in values:
        assert now.decode(before.encode(row[:first])) == row[:first] + (None,) * (len(schema) - first)


@examples(0.5)
@given(rows())
def test_a_key_is_what_it_was_and_begins_no_other(given: tuple[StructType, list[tuple[Any, ...]]]) -> None:
    schema, values = given
    codec = KeyCodec(schema)
    encoded = [codec.encode(row) for row in values]
    assert [tuple(codec.decode(data)) for data in encoded] == values
    for row, data in zip(values, encoded, strict=True):
        for other, other_data in zip(values, encoded, strict=True):
            assert (row == other) or not other_data.startswith(data)
        assert codec.decode_from(b"before" + data + b"after", 6) == (row, 6 + len(data))


@examples(0.5)
@given(rows(st.sampled_from([t for t in SCALARS if not isinstance(t[0], ByteType)])))
def test_keys_in_columns_are_the_same_bytes(given: tuple[StructType, list[tuple[Any, ...]]]) -> None:
    schema, values = given
    codec, arrow = KeyCodec(schema), arrow_schema(schema)
    named = [dict(zip(schema.names, row, strict=True)) for row in values]
    batch = pa.RecordBatch.from_pylist(named, arrow)
    assert codec.encode_columns(batch).to_pylist() == [codec.encode(row) for row in values]
    assert codec.encode_columns(batch.slice(1)).to_pylist() == [codec.encode(row) for row in values[1:]]


@pytest.mark.parametrize("kind", [DoubleType(), FloatType()])
def test_floats_that_are_equal_keys_have_equal_bytes(kind: DataType) -> None:
    codec = KeyCodec(StructType([StructField("f", kind)]))
    odd_nan = np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0]
    assert codec.encode((0.0,)) == codec.encode((-0.0,))
    assert codec.encode((math.nan,)) == codec.encode((float(odd_nan),))
    column = pa.array([-0.0, 0.0, math.nan, float(odd_nan), None], pa.float64()).cast(
        pa.float64() if isinstance(kind, DoubleType) else pa.float32()
    )
    keys = codec.encode_arrays([column]).to_pylist()
    assert keys == [codec.encode((each,)) for each in (0.0, 0.0, math.nan, math.nan, None)]


def test_times_are_local_as_in_pyspark() -> None:
    schema = StructType([StructField("at", TimestampType())])
    codec, at = RowCodec(schema), datetime.datetime(2024, 5, 6, 7, 8, 9, 123456)  # noqa: DTZ001
    assert codec.decode(codec.encode((at,))) == (at,)
    aware = at.astimezone(datetime.UTC)
    assert codec.decode(codec.encode((aware,))) == (at,)
    assert KeyCodec(schema).encode((at,)) == KeyCodec(schema).encode((aware,))
    column = pa.array([aware], pa.timestamp("us", "UTC"))
    assert KeyCodec(schema).encode_arrays([column])[0].as_py() == KeyCodec(schema).encode((at,))


def test_scalars_of_numpy_are_python_s() -> None:
    schema = StructType().add("n", LongType()).add("d", DoubleType()).add("b", BooleanType()).add("s", StringType())
    codec = RowCodec(schema)
    found = codec.decode(codec.encode((np.int64(5), np.float64(1.5), np.bool_(True), np.str_("s"))))
    assert found == (5, 1.5, True, "s")
    assert [type(each) for each in found] == [int, float, bool, str]
    assert KeyCodec(schema).encode((np.int64(5), np.float64(1.5), np.bool_(True), "s")) == KeyCodec(schema).encode(
        found
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ((1,), r"`state` has 2 fields \(n, s\), and 1 values were given: \(1,\)"),
        ((1, "a", 2), "and 3 values were given"),
        (("x", "a"), "field `n` of type bigint cannot hold 'x' of type str"),
        ((1.5, "a"), r"field `n` of type bigint cannot hold 1\.5 of type float"),
        ((2**63, "a"), "field `n` of type bigint cannot hold 9223372036854775808 of type int"),
        ((1, 5), "field `s` of type string cannot hold 5 of type int"),
        ((1, "\ud800"), "field `s` of type string cannot hold"),
        (None, "'NoneType' object is not iterable"),
        (5, "'int' object is not iterable"),
    ],
)
def test_what_does_not_fit_is_refused(row: Any, said: str) -> None:
    codec = RowCodec(StructType().add("n", LongType()).add("s", StringType()))
    with pytest.raises((TypeError, ValueError), match=said):
        codec.encode(row)


def test_decimals_keep_all_their_digits() -> None:
    """Includes decimals beyond the precision of Python's default context."""
    codec = RowCodec(StructType([StructField("d", DecimalType(38, 18))]))
    for text in ("12345678901234567890.123456789012345678", "-0.000000000000000001", "99999999999999999999.9"):
        assert codec.decode(codec.encode((Decimal(text),))) == (Decimal(text),)


def test_decimals_are_rounded_to_their_type() -> None:
    codec = RowCodec(StructType([StructField("d", DecimalType(5, 2))]))
    assert codec.decode(codec.encode((Decimal("1.005"),))) == (Decimal("1.01"),)
    assert str(codec.decode(codec.encode((3,)))[0]) == "3.00"
    with pytest.raises(TypeError, match="too large"):
        codec.encode((Decimal(1000),))


def test_a_type_that_state_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`state\.v`: state cannot hold values of type interval"):
        RowCodec(StructType([StructField("v", CalendarIntervalType())]))


def test_a_row_of_more_fields_than_the_schema_is_refused() -> None:
    old = RowCodec(StructType().add("a", LongType()).add("b", LongType()))
    with pytest.raises(ValueError, match="has 1 fields, and 2 are stored"):
        RowCodec(StructType().add("a", LongType())).decode(old.encode((1, 2)))


_DAYS = st.integers(-800_000, 3_000_000)
_MICROS = st.integers(-(2**62), 2**62) | st.integers(-10_000_000_000_000, 4_000_000_000_000_000)


def as_py(column: pa.Array) -> object:
    """A column as PySpark's worker reads it; the name of the error if it cannot."""
    try:
        return [(each.as_py(), getattr(each.as_py(), "tzinfo", None)) for each in column]
    except (ValueError, OverflowError) as error:
        return type(error).__name__


def ours(column: pa.Array) -> object:
    try:
        return [(each, getattr(each, "tzinfo", None)) for each in values_of(column)]
    except (ValueError, OverflowError) as error:
        return type(error).__name__


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.timestamp("us", "Asia/Tokyo")])
@given(numbers=st.lists(st.none() | _MICROS, max_size=5))
def test_times(kind: pa.DataType, numbers: list[int | None]) -> None:
    column = pa.array(numbers, pa.int64()).cast(kind)
    assert ours(column) == as_py(column)


@given(numbers=st.lists(st.none() | _DAYS, max_size=5))
def test_dates(numbers: list[int | None]) -> None:
    column = pa.array(numbers, pa.int32()).cast(pa.date32())
    assert ours(column) == as_py(column)


@pytest.mark.parametrize("values", [[1, None], [1.5, 2.5], ["a", None], [b"x"], [True, False], [[1], None]])
def test_others(values: list[object]) -> None:
    column = pa.array(values)
    assert ours(column) == as_py(column)


@pytest.mark.parametrize(
    "zone", ["UTC", "Etc/UTC", "GMT", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "+05:30"]
)
def test_times_in_a_zone_are_those_of_as_py(zone: str) -> None:
    """Includes the hour of autumn that comes twice."""
    autumn = range(1_698_530_400_000_000, 1_698_562_800_000_000, 599_999_999)
    column = pa.array([-62_000_000_000_000_000, 0, *autumn, 250_000_000_000_000_000]).cast(pa.timestamp("us", zone))
    found, wanted = values_of(column), [each.as_py() for each in column]
    assert [(repr(each), each.fold) for each in found] == [(repr(each), each.fold) for each in wanted]
