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


def _is_of_pandas(given: object, kind: str) -> bool:
    """pandas is not loaded for this: an object of it has loaded it."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(given, getattr(pandas, kind, ()))
