"""Grouping keys and keys of maps as bytes, and the rows of a batch, brought together by key.

Equal keys have equal bytes, and none is the beginning of another one. A field of fixed size is 01 and its bytes, or
as many zeros for null. Any other is its length plus 1 in four bytes, and its bytes; for null the four bytes are
zero.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from penstock.runtime.messages.packet import read_batch
from penstock.spark.processor.fields import Field, FixedField, field_of, row_of
from penstock.spark.versions import plain

_LENGTH = struct.Struct("<I")


class KeyCodec:
    """Encodes and decodes the keys of a schema.

    Example:
        >>> from pyspark.sql.types import StringType, StructType
        >>> codec = KeyCodec(StructType().add("user", StringType()))
        >>> codec.decode(codec.encode(("ann",)))
        Row(user='ann')
    """

    def __init__(self, schema: types.StructType, where: str = "key") -> None:
        """Raises ConfigError if a key cannot have values of one of the types. `where` names the key in errors."""
        self.schema = schema
        self.names = list(schema.names)
        self._where = where
        self._fields = [field_of(f.dataType, f"{where}.{f.name}", canonical=True) for f in schema.fields]
        self._fixed = [struct.Struct(f"<?{f.code}") if isinstance(f, FixedField) else None for f in self._fields]

    def encode(self, key: Sequence[Any]) -> bytes:
        """Raises TypeError or ValueError if the key does not fit the schema."""
        if len(key) != len(self._fields):
            raise ValueError(
                f"`{self._where}` has {len(self._fields)} fields ({', '.join(self.names)}), and {len(key)} values were "
                f"given: {tuple(key)!r}"
            )
        if len(key) == 1:
            return self._part(0, key[0])
        return b"".join(self._part(number, value) for number, value in enumerate(key))

    def _part(self, number: int, value: Any) -> bytes:
        field, fixed = self._fields[number], self._fixed[number]
        if value is None:
            return bytes(4 if fixed is None else fixed.size)
        try:
            return _bytes(field, fixed, value)
        except Exception:
            value = plain(value)
            try:
                return _bytes(field, fixed, value)
            except Exception as error:
                kind = self.schema.fields[number]
                raise TypeError(
                    f"`{self._where}`: field `{kind.name}` of type {kind.dataType.simpleString()} cannot hold "
                    f"{value!r} of type {type(value).__name__}: {error}"
                ) from error

    def decode(self, data: bytes) -> types.Row:
        return self.decode_from(data, 0)[0]

    def decode_from(self, data: bytes, at: int) -> tuple[types.Row, int]:
        values: list[Any] = []
        for field, fixed in zip(self._fields, self._fixed, strict=True):
            if isinstance(field, FixedField) and fixed is not None:
                there, value = fixed.unpack_from(data, at)
                at += fixed.size
                values.append(None if not there else value if field.back is None else field.back(value))
                continue
            (length,) = _LENGTH.unpack_from(data, at)
            at += 4
            if length == 0:
                values.append(None)
            else:
                values.append(field.back(data[at : at + length - 1]))  # type: ignore[misc]
                at += length - 1
        return row_of(self.names, values), at

    def encode_columns(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        columns = [batch.column(batch.schema.get_field_index(name)) for name in self.names]
        return self.encode_arrays(columns)

    def encode_arrays(self, columns: Sequence[pa.Array]) -> pa.BinaryArray:
        parts: list[pa.BinaryArray] = []
        for number, column in enumerate(columns):
            parts += self._column(number, column)
        if len(parts) == 1:
            return parts[0]
        return pc.binary_join_element_wise(*parts, b"")

    def _column(self, number: int, column: pa.Array) -> list[pa.BinaryArray]:
        kind, fixed = self.schema.fields[number].dataType, self._fixed[number]
        if fixed is not None:
            numbers = _numbers(kind, column)
            if numbers is not None:
                return [_with_flags(numbers, column)]
        elif isinstance(kind, types.StringType):
            text = column.cast(pa.string()).cast(pa.binary())
            lengths = pc.add(pc.binary_length(text), 1).fill_null(0).cast(pa.int32())
            heads = lengths.to_numpy(zero_copy_only=False).astype("<u4").view(np.uint8).reshape(-1, 4)
            return [_rows_of(heads), text.fill_null(b"")]
        return [pa.array((self._part(number, value) for value in column.to_pylist()), pa.binary())]


def _bytes(field: Field, fixed: struct.Struct | None, value: Any) -> bytes:
    to: Callable[[Any], Any] | None = field.to
    if fixed is not None:
        return fixed.pack(True, value if to is None else to(value))
    data: bytes = to(value)  # type: ignore[misc]
    return _LENGTH.pack(len(data) + 1) + data


def _numbers(kind: types.DataType, column: pa.Array) -> Any:
    """The stored numbers, as an array of numpy; None if they must be made one by one."""
    if isinstance(kind, types.LongType | types.IntegerType):
        return _filled(column, "<i8" if isinstance(kind, types.LongType) else "<i4")
    if isinstance(kind, types.DateType):
        return _filled(column.cast(pa.int32()), "<i4")
    if isinstance(kind, types.TimestampType | types.TimestampNTZType):
        zone = column.type.tz if pa.types.is_timestamp(column.type) else None
        return _filled(column.cast(pa.timestamp("us", zone)).cast(pa.int64()), "<i8")
    if isinstance(kind, types.DayTimeIntervalType):
        return _filled(column.cast(pa.duration("us")).cast(pa.int64()), "<i8")
    if isinstance(kind, types.DoubleType | types.FloatType):
        found = column.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
        found = np.where(np.isnan(found), np.nan, found)
        return found.astype("<f8" if isinstance(kind, types.DoubleType) else "<f4")
    return None


def _filled(column: pa.Array, kind: str) -> Any:
    return column.fill_null(0).to_numpy(zero_copy_only=False).astype(kind)


def _with_flags(numbers: Any, column: pa.Array) -> pa.BinaryArray:
    size = numbers.dtype.itemsize
    rows = np.empty((len(numbers), size + 1), np.uint8)
    rows[:, 0] = 1 if column.null_count == 0 else column.is_valid().to_numpy(zero_copy_only=False)
    rows[:, 1:] = np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, size)
    return _rows_of(rows)


def _rows_of(rows: Any) -> pa.BinaryArray:
    count, size = rows.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


INITIAL = b"\x01"
"""First byte of a chunk of initial state. A chunk of rows is a message of Arrow, which begins with FF."""


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Rows in the order of their keys; rows of one key are in the order in which they came."""

    rows: pa.RecordBatch
    keys: Sequence[bytes]
    """Each key once, in the order in which they came first."""
    ends: Sequence[int]
    """For each key, the index behind its last row."""


def chunk(rows: pa.RecordBatch, *, initial: bool = False) -> bytes:
    """Rows as the value of a message.

    Args:
        rows: some rows, with the schema that both sides know.
        initial: True if they are initial state.
    """
    data: bytes = rows.serialize().to_pybytes()
    return INITIAL + data if initial else data


def rows_of(chunks: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """The rows of several chunks. Raises CorruptError if one is damaged."""
    batches = [read_batch(data, schema) for data in chunks]
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def grouped(rows: pa.RecordBatch, codec: KeyCodec) -> RowGroups:
    if rows.num_rows == 0:
        return RowGroups(rows, [], [])
    found = codec.encode_columns(rows).dictionary_encode()
    numbers = found.indices.to_numpy(zero_copy_only=False)
    if (numbers[1:] < numbers[:-1]).any():
        rows = rows.take(pa.array(np.argsort(numbers, kind="stable")))
    ends = np.cumsum(np.bincount(numbers, minlength=len(found.dictionary)))
    return RowGroups(rows, found.dictionary.to_pylist(), ends.tolist())


def not_late(rows: pa.RecordBatch, column: str, watermark_ms: int) -> pa.RecordBatch:
    """The rows whose event time is above the watermark. A row without event time is never late, as in Spark."""
    times: Any = rows.column(rows.schema.get_field_index(column))
    if pa.types.is_struct(times.type):
        times = pc.struct_field(times, "end")
    zone = times.type.tz
    micros = times.cast(pa.timestamp("us", zone)).cast(pa.int64())
    return rows.filter(pc.greater(micros, watermark_ms * 1000).fill_null(True))
