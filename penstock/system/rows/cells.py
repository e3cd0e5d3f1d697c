"""Cells of CSV and values in paths, which are text, as the JSON of a declared type.

A text that is no value of the type stays text. The serde of the rows refuses it then, as it would refuse such a text in
a message of any other system, so there is one place that says which values a type has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, TypeAlias

import orjson
import pyarrow as pa

from penstock.arrays.json_rows import JsonRows

CellReader: TypeAlias = Callable[[str], Any]
Columns: TypeAlias = Mapping[str, str | None]
"""The columns that the path of a file gives, as text."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,5})?")
_BOOLEANS = {"true": True, "false": False}


def cell_reader(kind: pa.DataType) -> CellReader:
    """Gives the JSON value of a cell. Numbers are decimal, booleans `true` or `false` in any case; times are as in
    JSON; cells of lists, structs and maps are JSON.

    Example:
        >>> cell_reader(pa.int64())("007"), cell_reader(pa.float64())("7.5"), cell_reader(pa.float64())("7,5")
        (7, 7.5, '7,5')
    """
    if pa.types.is_nested(kind):
        return _json
    if pa.types.is_boolean(kind):
        return lambda text: _BOOLEANS.get(text.lower(), text)
    if pa.types.is_floating(kind):
        return _float
    wholes = (pa.types.is_integer, pa.types.is_timestamp, pa.types.is_duration, pa.types.is_time)
    return _integer if any(is_one(kind) for is_one in wholes) else str


def typed_values(added: Columns, schema: pa.Schema | None) -> dict[str, Any]:
    """The values in a file's path as JSON values: with a schema, those of its columns, by their types."""
    if schema is None:
        return dict(added)
    kinds = {field.name: field.type for field in schema}
    return {
        name: None if text is None else cell_reader(kinds[name])(text) for name, text in added.items() if name in kinds
    }


def path_scalar(text: str | None, field: pa.Field) -> pa.Scalar:
    """The value in a file's path as one of this type. Raises ValueError if it is none."""
    value = None if text is None else cell_reader(field.type)(text)
    rows, problems = JsonRows([field]).read([orjson.dumps({field.name: value})])
    if problems:
        raise ValueError(problems[0])
    return rows.field(0)[0]


def _integer(text: str) -> int | str:
    if not _INTEGER.fullmatch(text):
        return text
    found = int(text)
    return found if -(1 << 63) <= found < 1 << 64 else text  # others are no JSON here


def _float(text: str) -> float | str:
    if not _FLOAT.fullmatch(text):
        return text
    found = float(text)
    return found if isfinite(found) else text


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
