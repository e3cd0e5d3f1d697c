"""Types of columns: as text, by what their single values need, and by the numbers and times that they can hold.

Numbers are checked before Arrow gets them. Arrow trusts what it is given: a decimal with an exponent of some hundred
millions ends the process, and a float of 64 bits becomes an infinity of 32. A row whose types are plain needs no
Arrow: it is read and written as a dict.

Arrow's times are numbers. A `datetime` holds those of the years 1 to 9999 in its zone, and RFC 3339, their form in
JSON, has no offset with seconds, as the zones of before 1972 have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DecimalException, Inexact, InvalidOperation
from functools import cache
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.budgets import EMPTY_PER_BYTE, MessageBudget

_TOO_LARGE = {16: 65520.0, 32: 3.4028235677973366e38}
"""By the bits of a float, the least number that is rounded to an infinity."""

Fit = Callable[[Any], Any]
"""Gives a value as Arrow takes it. Raises ValueError if the type cannot hold it."""


@cache
def decimal_fit(kind: pa.DataType) -> Fit:
    """Gives decimals the scale of the type. None stays None, and what is no Decimal is left to Arrow."""
    exact = Context(kind.precision, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, InvalidOperation])
    unit, quantize = Decimal((0, (1,), -kind.scale)), exact.quantize
    before = kind.precision - kind.scale

    def fit(value: Any) -> Any:
        if not isinstance(value, Decimal):
            return value
        try:
            found = quantize(value, unit)
        except Inexact:
            raise ValueError(f"it has more than {kind.scale} digits behind the point") from None
        except DecimalException:
            found = None
        if found is None or not found.is_finite():
            what = (
                f"it has more than {before} digits before the point" if value.is_finite() else f"{value} is no number"
            )
            raise ValueError(what) from None
        return found

    return fit


@cache
def float_fit(kind: pa.DataType) -> Fit:
    """Refuses numbers that would become an infinity."""
    limit = _TOO_LARGE[kind.bit_width]

    def fit(value: Any) -> Any:
        if isinstance(value, float | int) and limit <= abs(value) < float("inf"):
            raise ValueError(f"{value!r} is too large")
        return value

    return fit


def fit_of(kind: pa.DataType) -> Fit | None:
    """The check of single values of a type; None if Arrow needs none, or it is a nested type."""
    if pa.types.is_decimal(kind):
        return decimal_fit(kind)
    if pa.types.is_floating(kind) and kind.bit_width in _TOO_LARGE:
        return float_fit(kind)
    return None


def deep_fit(kind: pa.DataType) -> Fit | None:
    """The check of objects of a type, nested or not; None if Arrow needs none."""
    if pa.types.is_struct(kind):
        fits = {field.name: fit for field in kind if (fit := deep_fit(field.type)) is not None}
        return _of_fields(fits) if fits else None
    if pa.types.is_map(kind):
        key, item = deep_fit(kind.key_type), deep_fit(kind.item_type)
        return None if key is None and item is None else _of_pairs(key or _itself, item or _itself)
    if pa.types.is_nested(kind):
        element = deep_fit(kind.value_type)
        return element and (lambda value: [*map(element, value)] if isinstance(value, list | tuple) else value)
    return fit_of(kind)


Spend = Callable[[Any, MessageBudget], None]
"""Takes from a budget what a value makes besides its bytes. Raises ValueError if it is too much."""


def spend_of(kind: pa.DataType, parts: Callable[[Any, int, str], Any]) -> Spend | None:
    """Counts what nulls in lists and maps take, where their type has a fixed size: 4 bytes of JSON are a list of a
    million. None: they take little.

    Args:
        kind: the type.
        parts: the part of a struct, by its number and its name.
    """
    if pa.types.is_struct(kind):
        fields = [(n, field.name, each) for n, field in enumerate(kind) if (each := spend_of(field.type, parts))]
        return _of_parts(fields, parts) if fields else None
    if pa.types.is_fixed_size_list(kind):
        return _of_elements(0, spend_of(kind.value_type, parts))
    if pa.types.is_map(kind):
        each = _of_elements(_empty_values(kind.item_type), spend_of(kind.item_type, parts))
        return each and (lambda value, budget: each(_items(value), budget))
    if pa.types.is_nested(kind):
        return _of_elements(_empty_values(kind.value_type), spend_of(kind.value_type, parts))
    return None


def _empty_values(kind: pa.DataType) -> int:
    """The values that a null takes."""
    if pa.types.is_struct(kind):
        return 1 + sum(_empty_values(field.type) for field in kind)
    if pa.types.is_fixed_size_list(kind):
        return 1 + int(kind.list_size) * _empty_values(kind.value_type)
    return 1 + int(kind.byte_width) // 8 if pa.types.is_fixed_size_binary(kind) else 1


def _of_parts(fields: list[tuple[int, str, Spend]], parts: Callable[[Any, int, str], Any]) -> Spend:
    def spend(value: Any, budget: MessageBudget) -> None:
        if value is not None:
            for number, name, each in fields:
                each(parts(value, number, name), budget)

    return spend


def _of_elements(empty: int, inner: Spend | None) -> Spend | None:
    count = empty if empty > EMPTY_PER_BYTE else 0
    if not count and inner is None:
        return None

    def spend(value: Any, budget: MessageBudget) -> None:
        if value is None:
            return
        budget.take(count * len(value))
        if inner is not None:
            for each in value:
                inner(each, budget)

    return spend


def _items(value: Any) -> Any:
    """The items of a map, which is a dict or a list of pairs."""
    if value is None:
        return None
    return list(value.values()) if isinstance(value, dict) else [item for _, item in value]


def _of_fields(fits: Mapping[str, Fit]) -> Fit:
    def fit(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {**value, **{name: each(value[name]) for name, each in fits.items() if name in value}}

    return fit


def _of_pairs(key: Fit, item: Fit) -> Fit:
    def fit(value: Any) -> Any:
        if value is None:
            return None
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(key(each), item(of)) for each, of in pairs]

    return fit


def _itself(value: Any) -> Any:
    return value


CODES: Mapping[Any, str] = {
    pa.int8(): "b",
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.uint8(): "B",
    pa.uint16(): "H",
    pa.uint32(): "I",
    pa.uint64(): "Q",
    pa.float32(): "f",
    pa.float64(): "d",
    pa.bool_(): "?",
}
"""The codes of `struct` for types of a fixed size."""


def fits(kind: pa.DataType) -> Callable[[Any], bool] | None:
    """A function that says if a value is one of this type as it is, None excluded; None if Arrow has to say."""
    if pa.types.is_integer(kind):
        signed = pa.types.is_signed_integer(kind)
        least = -(1 << kind.bit_width - 1) if signed else 0
        most = (1 << kind.bit_width - signed) - 1
        return lambda value: type(value) is int and least <= value <= most
    if kind == pa.float64():
        return lambda value: type(value) is float
    if pa.types.is_boolean(kind):
        return lambda value: type(value) is bool
    if pa.types.is_string(kind):
        return lambda value: type(value) is str
    return None


def row_fits(fields: Sequence[pa.Field], *, finite: bool) -> Callable[[Mapping[str, Any]], bool] | None:
    """A function that says if a dict is a row of these fields as it is; None if Arrow has to say. `finite`: floats are
    no NaN and no infinity."""
    checks = {field.name: fits(field.type) for field in fields}
    if None in checks.values():
        return None
    floats = [field.name for field in fields if finite and field.type == pa.float64()]

    def check(row: Mapping[str, Any]) -> bool:
        for name, value in row.items():
            known = checks.get(name)
            if known is None or not (value is None or known(value)):
                return False
        return not floats or all(isfinite(row.get(name) or 0.0) for name in floats)

    return check


def has_map(field: pa.Field) -> bool:
    """True if there is a map in values of the field. `to_pylist` takes ten times as long if it may meet one."""
    kind = field.type
    return bool(pa.types.is_map(kind)) or (
        pa.types.is_nested(kind) and any(has_map(kind.field(number)) for number in range(kind.num_fields))
    )


def floats_in(kind: pa.DataType) -> frozenset[pa.DataType]:
    """The types of floats that values of a type are, or have in them."""
    if pa.types.is_floating(kind):
        return frozenset((kind,))
    if pa.types.is_dictionary(kind):
        return floats_in(kind.value_type)
    inner = range(kind.num_fields) if pa.types.is_nested(kind) else ()
    return frozenset[pa.DataType]().union(*(floats_in(kind.field(number).type) for number in inner))


def is_finite(column: pa.Array) -> bool:
    """True if the column has no NaN and no infinity, in nested values neither. Values below a null do not count."""
    kind = column.type
    if not floats_in(kind):
        return True
    if pa.types.is_floating(kind):
        numbers = column.cast(pa.float32()) if pa.types.is_float16(kind) else column
        return bool(pc.all(pc.is_finite(numbers), min_count=0).as_py())
    if pa.types.is_dictionary(kind):
        return is_finite(column.dictionary_decode())
    if pa.types.is_struct(kind):
        return all(map(is_finite, column.flatten()))
    if pa.types.is_map(kind):
        shown = column.drop_null()
        first, end = shown.offsets[0].as_py(), shown.offsets[-1].as_py()
        return all(is_finite(part.slice(first, end - first)) for part in (shown.keys, shown.items))
    return is_finite(column.flatten())


_BETWEEN = re.compile(r",(?![^(\[<]*[)\]>])")
"""A comma that is not inside of brackets."""
_DECIMAL = re.compile(r"decimal(128|256)\((\d+),(-?\d+)\)")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns),tz=(.+)\]")


def text_of_types(types: Iterable[pa.DataType]) -> str:
    """The types as one word.

    Example:
        >>> text_of_types([pa.int64(), pa.decimal128(38, 2)])
        'int64,decimal128(38,2)'
    """
    return ",".join(map(str, types)).replace(" ", "")


def types_of_text(text: str) -> list[pa.DataType]:
    """The types of `text_of_types`. Raises ValueError if one of them is nested.

    Example:
        >>> types_of_text("int64,timestamp[us,tz=UTC]")
        [DataType(int64), TimestampType(timestamp[us, tz=UTC])]
    """
    return [_type_named(each) for each in _BETWEEN.split(text)]


def _type_named(name: str) -> pa.DataType:
    if decimal := _DECIMAL.fullmatch(name):
        make = pa.decimal128 if decimal[1] == "128" else pa.decimal256
        return make(int(decimal[2]), int(decimal[3]))
    if zoned := _ZONED.fullmatch(name):
        return pa.timestamp(zoned[1], zoned[2])
    return pa.type_for_alias(name)


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
