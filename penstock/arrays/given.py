"""Columns on their way from and to the application's code.

It gives Arrow's own columns, or those of any library that has Arrow's interface. It gets Arrow arrays in the place
of lists of objects: an object is made when it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias, overload

import numpy as np
import pyarrow as pa


class ArrowStream(Protocol):
    """A DataFrame or a Series of Polars, pandas or another library with Arrow's PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


RowsLike: TypeAlias = pa.RecordBatch | pa.Table | ArrowStream
ColumnLike: TypeAlias = pa.Array | pa.ChunkedArray | ArrowStream | np.ndarray[Any, Any] | Sequence[Any]

_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def batch_of(given: object) -> pa.RecordBatch:
    """The rows as one batch. Raises TypeError if they are none."""
    if isinstance(given, pa.RecordBatch):
        return given
    if _is_of_pandas(given, "DataFrame"):
        return pa.RecordBatch.from_pandas(given, preserve_index=False)
    if not hasattr(given, "__arrow_c_stream__"):
        raise TypeError(f"expected a RecordBatch, a Table or a DataFrame, not a value of type {type(given).__name__}")
    table = pa.table(given)
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)


def column_of(given: object) -> pa.Array:
    """The values as one array. Raises TypeError if they are none."""
    if isinstance(given, pa.Array):
        column = given
    elif isinstance(given, np.ndarray | list | tuple) or _is_of_pandas(given, "Series"):
        column = pa.array(given)
    elif hasattr(given, "__arrow_c_stream__"):
        column = pa.chunked_array(given).combine_chunks()
    else:
        raise TypeError(f"expected a column, as pyarrow.Array, not a value of type {type(given).__name__}")
    return column.cast(_VIEWS[column.type]) if column.type in _VIEWS else column


def converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column with this type. Numbers become numbers, texts texts, and times times; text is never read as a number,
    nor a number written as text. A point in time keeps its date and its time of day.

    Raises:
        ValueError: the column is of another kind, or a value does not fit the type.
    """
    if column.type == kind:
        return column
    if not _is_alike(column.type, kind):
        raise ValueError(f"it is {column.type}")
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(str(error)) from error


def _is_alike(one: pa.DataType, other: pa.DataType) -> bool:
    if pa.types.is_dictionary(one):
        one = one.value_type
    if pa.types.is_date(one) and pa.types.is_timestamp(other):
        return True
    return pa.types.is_null(one) or any(is_one(one) and is_one(other) for is_one in _FAMILIES)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return bool(is_binary or pa.types.is_fixed_size_binary(kind))


def _is_of_pandas(given: object, kind: str) -> bool:
    """pandas is not loaded for this: an object of it has loaded it."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(given, getattr(pandas, kind, ()))


_FAMILIES = (
    _is_number,
    is_text,
    is_bytes,
    pa.types.is_timestamp,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_duration,
    pa.types.is_nested,
    pa.types.is_boolean,
)


class NoObjectError(ValueError):
    """No object of Python can hold a value, as a time of the year 10000.

    Args:
        row: the row of the page that it was made from, if it is the value of a message.
        text: the reason.
    """

    def __init__(self, row: int | None, text: str) -> None:
        self.row = row
        super().__init__(text)


class ArrowSequence(Sequence[Any]):
    """The values of an Arrow array, as Python objects. They are made when the first one is asked for, which raises
    NoObjectError if one cannot be made."""

    __slots__ = ("_objects", "array", "rows")

    def __init__(self, array: pa.Array) -> None:
        self.array = array
        self._objects: list[Any] | None = None
        self.rows: Sequence[int] | None = None
        """The row of the page that each was made from, if they are the values of messages."""

    @property
    def objects(self) -> list[Any]:
        if self._objects is None:
            try:
                self._objects = self.array.to_pylist()
            except Exception as error:
                raise _not_made(self.array, self.rows) from error
        return self._objects

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> ArrowSequence: ...
    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, slice):
            return self.objects[index]
        begin, end, _ = index.indices(len(self.array))
        if begin == 0 and end == len(self.array):
            return self
        return ArrowSequence(self.array.slice(begin, max(0, end - begin)))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.objects)


def _not_made(array: pa.Array, rows: Sequence[int] | None) -> NoObjectError:
    for number in range(len(array)):
        one = array.slice(number, 1)
        row = None if rows is None else int(rows[number])
        if (reason := _reason(one)) is not None:
            for field in one.type if pa.types.is_struct(one.type) else ():
                if _reason(one.field(field.name)) is not None:
                    shown = f"the value of column `{field.name}`, of the type {field.type}, cannot be an object"
                    return NoObjectError(row, f"{shown} of Python: {reason}")
            return NoObjectError(row, f"the value, of the type {one.type}, cannot be an object of Python: {reason}")
    raise RuntimeError("each value by itself can be an object of Python")


def _reason(one: pa.Array) -> Exception | None:
    try:
        one.to_pylist()
    except Exception as error:
        return error
    return None
