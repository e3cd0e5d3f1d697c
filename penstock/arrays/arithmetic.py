"""Numbers and times of columns, calculated and compared as single objects of Python are.

Arrow brings both sides to one type, which fails for integers that no double equals, and loses digits of decimals and of
floats of 32 bits. Here a comparison is exact whatever the types are. Whole numbers are calculated in 64 bits, floats as
doubles, decimals exactly; of a whole number or a decimal with a float, the nearest double counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays.types import decimal_fit

_INT64, _UINT64, _DOUBLE = pa.int64(), pa.uint64(), pa.float64()
_DIGITS_OF_64 = 20
_MOST_DIGITS = {"narrow": 38, "wide": 76}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_KERNELS: Mapping[str, Callable[..., Any]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def _is_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind))


def _is_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind))


def _is_number(kind: pa.DataType) -> bool:
    return _is_integer(kind) or _is_float(kind) or _is_decimal(kind)


def doubles_of(column: Any) -> Any:
    """The nearest doubles of a column of numbers, or of a single one."""
    if _is_decimal(column.type):
        column = column.cast(pa.string())  # Arrow rounds decimals twice, and texts once
    return column.cast(_DOUBLE, safe=False)


def constant(value: Any) -> pa.Scalar:
    """A constant of the application."""
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        if 0 <= value < 1 << 64:
            return pa.scalar(value, _UINT64)
        return pa.scalar(Decimal(value), pa.decimal256(len(str(abs(value))), 0))
    return pa.scalar(value)


# Calculation.


def calculated(name: str, one: Any, other: Any) -> Any:
    """The sum, the difference or the product. Raises pyarrow.ArrowException if a value does not fit its type."""
    kernel, kinds = _KERNELS[name], (one.type, other.type)
    if not all(map(_is_number, kinds)):
        return kernel(one, other)
    if any(map(_is_float, kinds)):
        return kernel(doubles_of(one), doubles_of(other))
    if any(map(_is_decimal, kinds)):
        one, other = _decimal(one), _decimal(other)
        try:
            return kernel(one, other)
        except pa.ArrowInvalid:  # more than 38 digits
            return kernel(_widened(one), _widened(other))
    target = _UINT64 if name != "-" and _are_unsigned(one, other) else _INT64
    if target == _UINT64 or _UINT64 not in kinds:
        return kernel(one.cast(target), other.cast(target))
    whole = pa.decimal256(_DIGITS_OF_64, 0)
    return kernel(one.cast(whole), other.cast(whole)).cast(target)


def divided(one: Any, other: Any) -> Any:
    return pc.divide(doubles_of(one), doubles_of(other))


def _are_unsigned(one: Any, other: Any) -> bool:
    """True if one of them needs all of 64 bits, and neither has a sign."""
    return _UINT64 in (one.type, other.type) and all(map(_is_unsigned, (one, other)))


def _is_unsigned(given: Any) -> bool:
    if isinstance(given, pa.Scalar):
        return not given.is_valid or bool(given.as_py() >= 0)
    return bool(pa.types.is_unsigned_integer(given.type))


def _decimal(given: Any) -> Any:
    """The numbers as decimals that Arrow calculates with."""
    kind = given.type
    if _is_integer(kind):
        return given.cast(pa.decimal128(_DIGITS_OF_64 if kind == _UINT64 else 19, 0))
    if kind.scale < 0:
        return given.cast(_decimal_type(kind.precision - kind.scale, 0))
    return given if kind.bit_width > 64 else given.cast(pa.decimal128(kind.precision, kind.scale))


def _decimal_type(precision: int, scale: int) -> pa.DataType:
    make = pa.decimal128 if precision <= _MOST_DIGITS["narrow"] else pa.decimal256
    return make(precision, scale)


def _widened(given: Any) -> Any:
    return given.cast(pa.decimal256(given.type.precision, given.type.scale))


# Comparison.


def compared(name: str, one: Any, other: Any) -> Any:
    """The truth of a comparison, by the exact values."""
    kernel, kinds = _KERNELS[name], (one.type, other.type)
    if not all(map(_is_number, kinds)):
        return _compared_times(name, one, other) if _differ_in_unit(*kinds) else kernel(one, other)
    if all(map(_is_float, kinds)):
        return kernel(one.cast(_DOUBLE), other.cast(_DOUBLE))
    if any(map(_is_float, kinds)):
        return _compared_with_float(name, one, other)
    if any(map(_is_decimal, kinds)):
        return _compared_decimals(kernel, _decimal(one), _decimal(other))
    if _UINT64 in kinds and not _are_unsigned(one, other):
        return kernel(_decimal(one), _decimal(other))
    return kernel(one.cast(_UINT64), other.cast(_UINT64)) if _UINT64 in kinds else kernel(one, other)


def _compared_decimals(kernel: Callable[..., Any], one: Any, other: Any) -> Any:
    scale = max(one.type.scale, other.type.scale)
    digits = max(each.type.precision - each.type.scale for each in (one, other)) + scale
    if digits <= _MOST_DIGITS["wide"]:
        kind = _decimal_type(digits, scale)
        return kernel(one.cast(kind), other.cast(kind))
    return kernel(one, other)


def _compared_with_float(name: str, one: Any, other: Any) -> Any:
    """A comparison of whole numbers or decimals with floats. The nearest double of a number is on the same side of a
    float as the number itself, or equals the float: only then the exact values are looked at."""
    kernel, turned = _KERNELS[name], _is_float(one.type)
    exact, floats = (other, one) if turned else (one, other)
    try:
        if _is_integer(exact.type):
            near = exact.cast(_DOUBLE)  # raises unless all of them are doubles
            return kernel(floats, near) if turned else kernel(near, floats)
    except pa.ArrowInvalid:
        pass
    exact, floats = _columns(exact, floats)
    near, there = _numpy(doubles_of(exact)), _numpy(floats.cast(_DOUBLE))
    less, greater = near < there, near > there
    same = np.flatnonzero(near == there)
    if _is_integer(exact.type):
        _tell_integers(exact, there, same, less, greater)
    else:
        known = pc.fill_null(exact, 0) if exact.null_count else exact
        for row, value in zip(same.tolist(), known.take(pa.array(same)).to_pylist(), strict=True):
            number = Decimal(float(there[row]))
            less[row], greater[row] = value < number, value > number
    if turned:
        less, greater = greater, less
    valid = pc.and_(exact.is_valid(), floats.is_valid())
    return _ordered(name, less, greater, np.isnan(there), valid, one, other)


def _tell_integers(exact: pa.Array, floats: Any, same: Any, less: Any, greater: Any) -> None:
    numbers = exact.fill_null(0).to_numpy(zero_copy_only=False)[same]
    limit = 2.0**64 if exact.type == _UINT64 else 2.0**63
    beyond = floats[same] >= limit
    whole = np.where(beyond, 0.0, floats[same]).astype(np.uint64 if exact.type == _UINT64 else np.int64)
    less[same] = beyond | (numbers < whole)
    greater[same] = ~beyond & (numbers > whole)


def _differ_in_unit(one: pa.DataType, other: pa.DataType) -> bool:
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        return bool(one.unit != other.unit and (one.tz is None) == (other.tz is None))
    return bool(pa.types.is_duration(one) and pa.types.is_duration(other) and one.unit != other.unit)


def _compared_times(name: str, one: Any, other: Any) -> Any:
    """Arrow would count both in the smaller unit, of which 64 bits may not hold them."""
    turned = _PER_SECOND[one.type.unit] < _PER_SECOND[other.type.unit]
    fine, coarse = _columns(*((other, one) if turned else (one, other)))
    ratio = _PER_SECOND[fine.type.unit] // _PER_SECOND[coarse.type.unit]
    whole, rest = np.divmod(_numpy(fine.view(_INT64)), ratio)
    there = _numpy(coarse.view(_INT64))
    less, greater = whole < there, (whole > there) | ((whole == there) & (rest > 0))
    if turned:
        less, greater = greater, less
    valid = pc.and_(fine.is_valid(), coarse.is_valid())
    return _ordered(name, less, greater, np.zeros(len(less), np.bool_), valid, one, other)


def _ordered(
    name: str, less: Any, greater: Any, unordered: Any, valid: pa.Array, *given: Any
) -> pa.Array | pa.BooleanScalar:
    """The result of a comparison, null where a side is."""
    equal = ~(less | greater | unordered)
    truths = {"==": equal, "!=": ~equal, "<": less, "<=": less | equal, ">": greater, ">=": greater | equal}
    found = pa.array(truths[name], mask=~valid.to_numpy(zero_copy_only=False))
    return found[0] if all(isinstance(each, pa.Scalar) for each in given) else found


def _columns(one: Any, other: Any) -> Sequence[pa.Array]:
    """Both as columns of one length."""
    count = next((len(each) for each in (one, other) if not isinstance(each, pa.Scalar)), 1)
    return [pa.repeat(each, count) if isinstance(each, pa.Scalar) else each for each in (one, other)]


def _numpy(column: pa.Array) -> Any:
    return column.fill_null(0).to_numpy(zero_copy_only=False)


# Choice.


def filled(one: Any, other: Any) -> Any:
    """The first, or the second where it is null."""
    kinds = (one.type, other.type)
    if pa.types.is_null(one.type) or pa.types.is_null(other.type):
        kind = next((each for each in kinds if not pa.types.is_null(each)), pa.null())
        return pc.coalesce(one.cast(kind), other.cast(kind))
    if one.type == other.type or not all(map(_is_number, kinds)):
        return pc.coalesce(one, other)
    if any(map(_is_float, kinds)):
        return pc.coalesce(doubles_of(one), doubles_of(other))
    if any(map(_is_decimal, kinds)):
        one, other = _decimal(one), _decimal(other)
        scale = max(one.type.scale, other.type.scale)
        digits = max(each.type.precision - each.type.scale for each in (one, other)) + scale
        kind = _decimal_type(digits, scale)
    else:
        kind = _UINT64 if _are_unsigned(one, other) else _INT64
    return pc.coalesce(one.cast(kind), other.cast(kind))


def is_one_of(column: pa.Array, values: Sequence[Any]) -> pa.Array:
    """True where the value equals one of these. Raises TypeError or pyarrow.ArrowException for a value of another
    kind."""
    kind = column.type
    if not _is_number(kind):
        return pc.is_in(column, pa.array(values, kind))
    if _is_float(kind):
        column, kind = column.cast(_DOUBLE), _DOUBLE
    equal = [each for value in values for each in _equal_to(value, kind)]
    return pc.is_in(column, pa.array(equal, kind))


def _equal_to(value: Any, kind: pa.DataType) -> Sequence[Any]:
    """The values of a type of numbers that equal this one."""
    if value is None:
        return (None,)
    if not isinstance(value, int | float | Decimal):
        raise TypeError(f"{value!r} is no number")
    if value != value or abs(value) == float("inf"):
        return (float(value),) if _is_float(kind) and value == value else ()
    if _is_decimal(kind):
        try:
            return (decimal_fit(kind)(Decimal(value)),)
        except ValueError:
            return ()
    if _is_integer(kind):
        least, most = (0, (1 << kind.bit_width) - 1) if pa.types.is_unsigned_integer(kind) else _signed(kind)
        return (int(value),) if least <= value <= most and int(value) == value else ()
    try:
        found = float(value)
    except OverflowError:
        return ()
    return () if found != value else (0.0, -0.0) if found == 0 else (found,)


def _signed(kind: pa.DataType) -> tuple[int, int]:
    return -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1
