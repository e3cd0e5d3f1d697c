"""The values of columns are those of `as_py`, however they are made."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.processor.rows import values_of

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
