"""Numbers that a column's type can hold, checked before Arrow gets them.

Arrow trusts what it is given: a decimal with an exponent of some hundred millions ends the process, and a float of 64
bits becomes an infinity of 32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DecimalException, Inexact, InvalidOperation
from functools import cache
from typing import Any

import pyarrow as pa

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
