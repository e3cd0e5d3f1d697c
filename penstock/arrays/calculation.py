"""The work of expressions on the values of one row. By column, `penstock.arrays.arithmetic` does the same."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, InvalidOperation
from typing import Any

_EXACT = Context(prec=1000)
_DECIMALS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": _EXACT.add,
    "-": _EXACT.subtract,
    "*": _EXACT.multiply,
}
_HALF, _WHOLE = 1 << 63, 1 << 64


def _of_values(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda one, other: None if one is None or other is None else function(one, other)


def _calculating(name: str, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The function, with decimals calculated exactly, and whole numbers in 64 bits."""
    of_decimals = _DECIMALS[name]

    def calculate(one: Any, other: Any) -> Any:
        if one is None or other is None:
            return None
        try:
            found = function(one, other)
        except TypeError:
            if {type(one), type(other)} != {float, Decimal}:
                raise
            return function(float(one), float(other))
        kind = type(found)
        if kind is int and not -_HALF <= found < _HALF:
            _check(name, one, other, found)
        return of_decimals(one, other) if kind is Decimal else found

    return calculate


def _check(name: str, one: int, other: int, found: int) -> None:
    """Raise OverflowError for a result that no 64 bits hold. It may be one without a sign if an operand is."""
    if name == "-" or max(one, other) < _HALF or not 0 <= found < _WHOLE:
        raise OverflowError(f"{one} {name} {other} does not fit into 64 bits")


def _comparing(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def compare(one: Any, other: Any) -> Any:
        if one is None or other is None:
            return None
        try:
            return function(one, other)
        except InvalidOperation:  # a decimal and NaN
            return False

    return compare


def _divide(one: float, other: float) -> float:
    if other:
        return float(one) / float(other)
    return math.nan if one == 0 or one != one else math.copysign(math.inf, one) * math.copysign(1, other)


def _and(one: Any, other: Any) -> Any:
    if one is False or other is False:
        return False
    return None if one is None or other is None else one and other


def _or(one: Any, other: Any) -> Any:
    if one is True or other is True:
        return True
    return None if one is None or other is None else one or other


def _fill(one: Any, other: Any) -> Any:
    """A column has one type: with a float, whole numbers and decimals become floats."""
    if one is None:
        return other
    return float(one) if type(other) is float and type(one) in (int, Decimal) else one


ROWS: Mapping[str, Callable[..., Any]] = {
    "+": _calculating("+", operator.add),
    "-": _calculating("-", operator.sub),
    "*": _calculating("*", operator.mul),
    "/": _of_values(_divide),
    "==": _comparing(operator.eq),
    "!=": _comparing(operator.ne),
    "<": _comparing(operator.lt),
    "<=": _comparing(operator.le),
    ">": _comparing(operator.gt),
    ">=": _comparing(operator.ge),
    "&": _and,
    "|": _or,
    "~": lambda one: None if one is None else not one,
    "is_null": lambda one: one is None,
    "fill_null": _fill,
}
"""The operators and methods of expressions."""
