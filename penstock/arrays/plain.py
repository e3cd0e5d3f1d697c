"""Types whose single values need no Arrow: a row of them is read and written as a dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

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
    """True if the column has no NaN and no infinity, in nested values neither."""
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
        first, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
        return all(is_finite(part.slice(first, end - first)) for part in (column.keys, column.items))
    return is_finite(column.flatten())
