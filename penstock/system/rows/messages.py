"""The rows of batches as messages: as JSON, or by the columns of a schema.

Cells of CSV and values in paths are texts, and become the JSON of a declared type. A text that is no value of the
type stays text. The serde of the rows refuses it then, as it would refuse such a text in a message of any other
system, so there is one place that says which values a type has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrays.given import converted
from penstock.arrays.json_rows import JsonRows, json_value
from penstock.arrays.types import has_map, is_finite, texts_of
from penstock.errors import IncompatibleError
from penstock.system.contract.messages import UnreadableRow

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


ROWS = 4096
"""Rows that are read together into JSON."""
COLUMN_ROWS = 1 << 15
"""Rows that are read together into columns."""
_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS
_UNREADABLE = (OverflowError, ValueError, KeyError)
"""Errors for a value that Python does not have."""


def fitted_rows(batch: pa.RecordBatch, schema: pa.Schema, columns: Columns, path: str) -> pa.StructArray:
    """These rows as rows of a schema. Raises IncompatibleError if a column has a type that does not fit."""
    arrays = [_fitted(batch, field, columns, path) for field in schema]
    return pa.StructArray.from_arrays(arrays, fields=list(schema))


def _fitted(batch: pa.RecordBatch, field: pa.Field, columns: Columns, path: str) -> pa.Array:
    if field.name in columns:
        text = columns[field.name]
        try:
            return pa.repeat(path_scalar(text, field), batch.num_rows)
        except ValueError as error:
            raise IncompatibleError(
                f"`{path}` has `{text}` for the column `{field.name}`, by a folder of its path, which is no "
                f"{field.type}: {error}. Declare the column as text"
            ) from error
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(field.name)
    try:
        return converted(column, field.type)
    except ValueError as error:
        raise IncompatibleError(
            f"column `{field.name}` of `{path}` has the type {column.type}, which does not fit {field.type}: {error}. "
            f"Declare the column as the files have it{_declaration(column.type)}"
        ) from error


def _declaration(kind: pa.DataType) -> str:
    """The type of a point in time in words that can be copied; its unit and its zone are easily taken for others."""
    if not pa.types.is_timestamp(kind):
        return ""
    zone = "" if kind.tz is None else f', "{kind.tz}"'
    return f', pa.timestamp("{kind.unit}"{zone}), and round or convert the times in the application'


def failed_row(name: str, place: str, problem: str, text: str | None = None) -> bytes:
    """The message in place of a row that cannot be read. No serde of rows takes it: it fails as any other message does,
    or becomes a dead letter, and says where the row is and why.

    Args:
        name: that of the file.
        place: the line or the row.
        text: the row as it is in the file, where it is text.

    Example:
        >>> from penstock.system.contract.messages import unreadable_row
        >>> row = unreadable_row(failed_row("a.csv", "line 9", "it has 1 cell, and the header has 2", "b"))
        >>> row.reason, row.data
        ('`a.csv`, line 9: it has 1 cell, and the header has 2', b'b')
    """
    data = None if text is None else text.encode("utf-8", "surrogateescape")
    return UnreadableRow(f"`{name}`, {place}: {problem}", data).message()


def readable_rows(name: str, batch: pa.RecordBatch, first: int, columns: Columns) -> Iterator[bytes]:
    """The rows of a batch as JSON. A row with a time beyond the years 1 to 9999, a NaN, an infinity, or text that is
    not UTF-8, is a message that no serde takes (`failed_row`).

    Args:
        name: that of the file.
        first: the number of the batch's first row in the file, from 0.
        columns: added to each row.
    """
    try:
        yield from as_json(batch, columns)
    except _UNREADABLE:
        for row in range(batch.num_rows):
            yield _readable_row(name, batch.slice(row, 1), first + row, columns)


def _readable_row(name: str, row: pa.RecordBatch, number: int, columns: Columns) -> bytes:
    problem = ""
    for one in (row, _in_utc(row)):
        try:
            return next(as_json(one, columns))
        except _UNREADABLE as error:
            problem = "a map has a key twice" if isinstance(error, KeyError) else _unreadable(one) or str(error)
    return failed_row(name, f"row {number}, counted from 0", problem)


def as_json(batch: pa.RecordBatch, columns: Columns) -> Iterator[bytes]:
    """The rows of a batch as JSON. Raises OverflowError or ValueError, before the first row, if Python or JSON does not
    have a value."""
    for name, column in _columns(batch):
        if not is_finite(column):
            raise ValueError(
                f"the column `{name}` has a NaN or an infinity, which JSON does not have. Declare the input with "
                "value=ps.Columns(schema): it reads the columns of the file as they are"
            )
    texts = [(name, *found) for name, column in _columns(batch) if (found := _with_ns(name, column)) is not None]
    arrays = [_without_ns(column) for column in batch.columns]
    maps = "strict" if any(map(has_map, batch.schema)) else None
    rows = pa.RecordBatch.from_arrays(arrays, names=batch.schema.names).to_pylist(maps_as_pydicts=maps)
    for name, places, own in texts:
        for place, text in zip(places, own, strict=True):
            rows[place][name] = text
    dump: Callable[..., bytes] = orjson.dumps
    for row in rows:
        if columns:
            row.update(columns)
        yield b"%b" % dump(row, json_value, _OPTIONS)


def _columns(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    return zip(batch.schema.names, batch.columns, strict=True)


def _with_ns(name: str, column: pa.Array) -> tuple[list[int], list[str]] | None:
    """The rows whose time has digits behind the microseconds, which Python's times do not have, and their texts. Raises
    ValueError if such times are nested."""
    if pa.types.is_timestamp(column.type) or pa.types.is_time64(column.type):
        if column.type.unit != "ns":
            return None
        odd = pc.not_equal(pc.multiply(pc.divide(column.view(pa.int64()), 1000), 1000), column.view(pa.int64()))
        if not (places := pc.indices_nonzero(odd.fill_null(False)).to_pylist()):
            return None
        some = column.take(pa.array(places))
        texts = texts_of(some) if pa.types.is_timestamp(column.type) else some.cast(pa.string())
        return places, texts.to_pylist()
    if (kind := _without_type(column.type)) != column.type:
        try:
            column.take(pa.array(range(len(column)))).cast(kind)  # a part of a column has the lists of all of it
        except pa.ArrowInvalid:
            raise ValueError(
                f"the column `{name}` has nested times with nanoseconds, which are not read as rows here. Declare the "
                "input with value=ps.Columns(schema), or write microseconds"
            ) from None
    return None


def _without_ns(column: pa.Array) -> pa.Array:
    """Python's times have microseconds."""
    kind = _without_type(column.type)
    return column if kind == column.type else column.cast(kind, safe=False)


def _without_type(kind: pa.DataType) -> pa.DataType:
    """The type with microseconds for nanoseconds."""
    return _changed(kind, lambda own: pa.timestamp("us", own.tz) if own.unit == "ns" else own)


def _in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same times in UTC: some are beyond Python's years in their own zone alone."""
    columns = [_cast(each, lambda kind: pa.timestamp(kind.unit, kind.tz and "UTC")) for each in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _cast(column: pa.Array, change: Callable[[pa.TimestampType], pa.DataType]) -> pa.Array:
    kind = _changed(column.type, change)
    return column if kind == column.type else column.cast(kind, safe=False)


def _changed(kind: pa.DataType, change: Callable[[pa.TimestampType], pa.DataType]) -> pa.DataType:
    """The type with other timestamps, however deep they are."""
    if pa.types.is_timestamp(kind):
        return change(kind)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_changed(field.type, change)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_changed(kind.value_type, change)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_changed(kind.value_type, change)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_changed(kind.item_type, change)))
    return kind


def _unreadable(row: pa.RecordBatch) -> str | None:
    """The column that Python cannot hold, in words."""
    for name, column in _columns(row):
        try:
            column.to_pylist()
        except UnicodeDecodeError:
            return f"the column `{name}` has text that is not UTF-8"
        except _UNREADABLE:
            return f"the column `{name}` has a time beyond the years 1 to 9999"
    return None
