"""The output of a processor, checked against the output schema and gathered into chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, Row, StructType

from penstock.graph.batch_task import Emit, KeyFailed
from penstock.spark.processor.groups import chunk
from penstock.spark.versions import arrow_type

CHUNK = 32_768
"""Rows of a chunk, approximately."""
AT_ONCE = 2_048
"""Rows that become columns at once, approximately: Python's garbage collector then has little to look through."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of output rows: PySpark's own for the row form."""
    return pa.schema(list(arrow_type(schema)))


class Chunks:
    """Joins columns until they are worth a message."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        if self._rows >= CHUNK:
            self.flush()

    def flush(self) -> None:
        batches, self._batches, self._rows = self._batches, [], 0
        if batches:
            self._emit(None, chunk(pa.concat_batches(batches)))


class RowOutput:
    """Rows that a processor returned, sent on as columns."""

    def __init__(self, schema: StructType, emit: Emit) -> None:
        self._schema = arrow_schema(schema)
        self._names = tuple(schema.names)
        self._is_nested = any(_is_nested(field.dataType) for field in schema.fields)
        self._rows: list[Any] = []
        self._chunks = Chunks(emit)
        self._calls: list[tuple[int, Any, str]] = []
        """For each call that returned rows: number of rows before it, key, name of the method."""

    def add(self, key: Any, called: str, rows: Iterable[Row]) -> None:
        """Take the result of a call for a key. It is read now."""
        found = self._rows
        before = len(found)
        try:
            found.extend(rows)
        finally:
            if len(found) > before:
                self._calls.append((before, key, called))
        if len(found) >= AT_ONCE:
            self._convert()

    def flush(self) -> None:
        """Send the remaining rows. Raises KeyFailed for a row that does not fit the schema."""
        self._convert()
        self._chunks.flush()

    def _convert(self) -> None:
        rows, self._rows = self._rows, []
        calls, self._calls = self._calls, []
        if not rows:
            return
        try:
            batch = self._batch(rows)
        except Exception as error:
            failed = self._blamed(rows, calls, error)
            raise failed from failed.__cause__
        self._chunks.add(batch)

    def _batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        if not self._is_nested and _have_fields(rows, self._names):
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
            return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return pa.RecordBatch.from_pylist([row.asDict(True) for row in rows], schema=self._schema)

    def _blamed(self, rows: Sequence[Row], calls: Sequence[tuple[int, Any, str]], error: Exception) -> Exception:
        ends = [*(before for before, _, _ in calls[1:]), len(rows)]
        for (before, key, called), end in zip(calls, ends, strict=True):
            try:
                self._batch(rows[before:end])
            except Exception as found:
                failed = KeyFailed(key, f"the rows that {called} returned")
                failed.__cause__ = _misfit(found)
                return failed
        return error


def _misfit(error: Exception) -> Exception:
    if isinstance(error, AttributeError) and "asDict" in str(error):
        return TypeError(f"a processor returns pyspark.sql.Row objects ({error})")
    return error


def _have_fields(rows: Sequence[Any], names: tuple[str, ...]) -> bool:
    """True if all rows have exactly these fields, in this order."""
    if not all(issubclass(kind, Row) for kind in set(map(type, rows))):
        return False
    fields = [*map(getattr, rows, repeat("__fields__"), repeat(None))]  # lists, or Rows, which are tuples
    known = fields.count(list(names)) or fields.count(names)
    return known == [*map(len, rows)].count(len(names)) == len(rows)


def _is_nested(kind: DataType) -> bool:
    return isinstance(kind, StructType | ArrayType | MapType)
