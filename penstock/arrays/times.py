"""Times in columns: their limits, and their form in JSON.

Arrow's times are numbers. A `datetime` holds those of the years 1 to 9999 in its zone, and RFC 3339 has no offset with
seconds, as the zones of before 1972 have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_DAYS = (-719_160, 2_932_894)
"""Every zone has a date for the times between these days: all but the first and last two that a `datetime` has."""
_WHOLE_MINUTES = 731
"""From this day on, in 1972, every zone's offset is in whole minutes."""
_TEXT = "%Y-%m-%dT%H:%M:%S"


def from_milliseconds(value: Any) -> Any:
    """A time with a zone as Arrow takes it. It may be epoch milliseconds."""
    return _EPOCH + timedelta(milliseconds=value) if type(value) is int else value


def text_from_milliseconds(value: Any) -> Any:
    """As `from_milliseconds`, for times that Arrow reads from texts."""
    return from_milliseconds(value).isoformat() if type(value) is int else value


def texts_of(column: pa.Array) -> pa.Array:
    """Times of nanoseconds, as RFC 3339 has them; without a zone if the type has none."""
    if column.type.tz is None:
        return pc.strftime(column, format=_TEXT)
    here = pc.replace_substring_regex(pc.strftime(column, format=f"{_TEXT}%Ez"), r"\+00:00$", "Z")
    odd = _with_seconds(column)
    if not odd.any():
        return here
    return pc.if_else(pa.array(odd), pc.strftime(column.cast(pa.timestamp("ns", "UTC")), format=f"{_TEXT}Z"), here)


def with_odd_offset(column: pa.Array) -> Sequence[int]:
    """The rows whose time has an offset that RFC 3339 does not have."""
    least = pc.min(column.view(pa.int64())).as_py()
    if least is None or least >= _WHOLE_MINUTES * _PER_DAY[column.type.unit]:
        return ()
    found: list[int] = np.flatnonzero(_with_seconds(column)).tolist()
    return found


def _with_seconds(column: pa.Array) -> Any:
    """True where the offset has seconds, or is not known at the ends of 64 bits."""
    day = _PER_DAY[column.type.unit]
    here = pc.local_timestamp(column).view(pa.int64())
    offset = pc.subtract(here, column.view(pa.int64())).fill_null(0).to_numpy(zero_copy_only=False)
    return (offset % (day // 1440) != 0) | (np.abs(offset) > day)


def times_in_a_day(kind: pa.DataType) -> int:
    """The number of values that a type of times of day has."""
    return _PER_DAY[kind.unit]


def has_zone(kind: pa.DataType) -> bool:
    """True if there are times with a zone in values of the type."""
    if pa.types.is_nested(kind):
        return any(has_zone(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None


def without_object(column: pa.Array) -> Mapping[int, Exception]:
    """The rows whose value no object of Python can hold, with the reason. Such a time is of a year before 1 or after
    9999 in its zone."""
    kind = column.type
    suspects: Any = range(len(column))
    if pa.types.is_timestamp(kind):
        numbers = column.view(pa.int64())
        first, last = _bounds(kind)
        ends = pc.min_max(numbers).as_py()
        if ends["min"] is None or (ends["min"] >= first and ends["max"] <= last):
            return {}
        plain = numbers.fill_null(0).to_numpy(zero_copy_only=False)
        suspects = np.flatnonzero((plain < first) | (plain > last)).tolist()
    found: dict[int, Exception] = {}
    for row in suspects:
        try:
            value = column[row].as_py()
            if value != value and not pa.types.is_nested(kind):
                raise ValueError("it is no time")  # pandas' NaT, for the least of 64 bits
        except Exception as error:
            found[row] = error
    return found


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    day = _PER_DAY[kind.unit]
    if kind.unit == "ns":  # 64 bits hold fewer of them than a `datetime` does
        return 2 * day - (1 << 63), (1 << 63) - 2 * day
    return _DAYS[0] * day, _DAYS[1] * day
