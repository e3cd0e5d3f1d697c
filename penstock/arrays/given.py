"""Columns that the application's code gives: Arrow's own, or those of any library that has Arrow's interface."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

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
