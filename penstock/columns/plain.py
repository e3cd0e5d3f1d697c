"""Types whose single values need no Arrow: a row of them is read and written as a dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import pyarrow as pa

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
