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
