"""The stored form of a value of each Spark type: a number of fixed size, or bytes. Grouping keys, keys of maps, and the
rows of a batch as bytes.

Equal keys have equal bytes, and none is the beginning of another one. A field of fixed size is 01 and its bytes, or
as many zeros for null. Any other is its length plus 1 in four bytes, and its bytes; for null the four bytes are
zero.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as sql_types

from penstock.errors import ConfigError
from penstock.runtime.messages.packet import read_batch
from penstock.spark.versions import TIME_TYPES, plain

Convert: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class FixedField:
    """A value stored as a number: its letter for `struct`, and the conversions to the number and back."""

    code: str
    to: Convert | None = None
    back: Convert | None = None


@dataclass(frozen=True, slots=True)
class VaryingField:
    """A value stored as bytes."""

    to: Callable[[Any], bytes]
    back: Callable[[bytes], Any]


Field: TypeAlias = FixedField | VaryingField

_COUNT = struct.Struct("<I")
_NO_VALUE = 0
_DECIMALS = Context(prec=60, rounding=ROUND_HALF_UP)
_EPOCH = datetime.date(1970, 1, 1).toordinal()


def field_of(kind: sql_types.DataType, where: str, *, canonical: bool = False) -> Field:
    """The stored form of a type's values.

    Args:
        kind: the type.
        where: the field, for errors.
        canonical: True if equal values need equal bytes, as in keys: -0.0 is 0.0, and every NaN the same.

    Raises:
        ConfigError: state cannot hold such values.
    """
    if isinstance(kind, sql_types.UserDefinedType):
        return _of_user_type(kind, where, canonical)
    if isinstance(kind, sql_types.FloatType | sql_types.DoubleType):
        return FixedField("f" if isinstance(kind, sql_types.FloatType) else "d", _one_float if canonical else None)
    if isinstance(kind, sql_types.DecimalType):
        return _decimal(kind)
    if isinstance(kind, sql_types.ArrayType):
        return _array(field_of(kind.elementType, where, canonical=canonical))
    if isinstance(kind, sql_types.MapType):
        keys = _array(field_of(kind.keyType, where, canonical=canonical))
        values = _array(field_of(kind.valueType, where, canonical=canonical))
        return _map(keys, values)
    if isinstance(kind, sql_types.StructType):
        return _struct(kind, [field_of(f.dataType, f"{where}.{f.name}", canonical=canonical) for f in kind.fields])
    for types, field in _CANONICAL if canonical else _SIMPLE:
        if isinstance(kind, types):
            return field
    if isinstance(kind, TIME_TYPES):
        return FixedField("q", kind.toInternal, kind.fromInternal)
    raise ConfigError(f"`{where}`: state cannot hold values of type {kind.simpleString()}")


def _one_bool(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise TypeError("not a bool")


def _one_float(value: Any) -> float:
    return float("nan") if value != value else value + 0.0


def _date_to(value: datetime.date) -> int:
    return value.toordinal() - _EPOCH


def _date_back(days: int) -> datetime.date:
    return datetime.date.fromordinal(days + _EPOCH)


def _text(value: Any) -> bytes:
    if type(value) is not str and not isinstance(value, str):
        raise TypeError("not a string")
    return value.encode()


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError("not bytes")


def _null(value: Any) -> bytes:
    raise TypeError("the type has no values but null")


def _no_value(data: bytes) -> None:
    return None


def _variant(value: Any) -> bytes:
    if not isinstance(value, sql_types.VariantVal):
        raise TypeError("not a VariantVal")
    return joined((value.value, value.metadata), (bytes, bytes))


def _variant_back(data: bytes) -> sql_types.VariantVal:
    return sql_types.VariantVal(*parted(data, 0, (bytearray, bytearray)))


_CANONICAL: Sequence[tuple[tuple[type[sql_types.DataType], ...], Field]] = (
    ((sql_types.BooleanType,), FixedField("?", _one_bool)),
    ((sql_types.ByteType,), FixedField("b")),
    ((sql_types.ShortType,), FixedField("h")),
    ((sql_types.IntegerType, sql_types.YearMonthIntervalType), FixedField("i")),
    ((sql_types.LongType,), FixedField("q")),
    ((sql_types.DateType,), FixedField("i", _date_to, _date_back)),
    ((sql_types.StringType, sql_types.CharType, sql_types.VarcharType), VaryingField(_text, bytes.decode)),
    ((sql_types.BinaryType,), VaryingField(_binary, bytes)),
    ((sql_types.NullType,), VaryingField(_null, _no_value)),
)
_SIMPLE: Sequence[tuple[tuple[type[sql_types.DataType], ...], Field]] = (
    *_CANONICAL,
    ((sql_types.VariantType,), VaryingField(_variant, _variant_back)),
)


def _decimal(kind: sql_types.DecimalType) -> VaryingField:
    step, limit = Decimal(1).scaleb(-kind.scale), Decimal(10) ** (kind.precision - kind.scale)

    def to(value: Any) -> bytes:
        if isinstance(value, bool) or not isinstance(value, Decimal | int):
            raise TypeError("not a Decimal")
        exact = Decimal(value).quantize(step, context=_DECIMALS)
        if not abs(exact) < limit:
            raise ValueError("too large for its type")
        return str(exact or step * 0).encode()

    def read(data: bytes) -> Decimal:
        found = Decimal(data.decode())
        if found.as_tuple().exponent != -kind.scale or abs(found) >= limit:
            raise ValueError(f"{found} is no decimal({kind.precision}, {kind.scale})")
        return found

    return VaryingField(to, read)


def _of_user_type(kind: Any, where: str, canonical: bool) -> Field:
    inner = field_of(kind.sqlType(), where, canonical=canonical)
    if isinstance(inner, FixedField):
        fixed = inner
        return FixedField(
            inner.code,
            lambda v: kind.serialize(v) if fixed.to is None else fixed.to(kind.serialize(v)),
            lambda v: kind.deserialize(v if fixed.back is None else fixed.back(v)),
        )
    varying = inner
    return VaryingField(lambda v: varying.to(kind.serialize(v)), lambda data: kind.deserialize(varying.back(data)))


def as_bytes(field: Field) -> VaryingField:
    if isinstance(field, VaryingField):
        return field
    number, to, back = struct.Struct(f"<{field.code}"), field.to, field.back
    return VaryingField(
        number.pack if to is None else lambda value: number.pack(to(value)),
        (lambda data: number.unpack(data)[0]) if back is None else lambda data: back(number.unpack(data)[0]),
    )


def joined(values: Sequence[Any], to: Sequence[Callable[[Any], bytes]]) -> bytes:
    """Several values as bytes, each behind its length; None has a special length."""
    parts = []
    for value, encode in zip(values, to, strict=True):
        if value is None:
            parts.append(_COUNT.pack(_NO_VALUE))
        else:
            data = encode(value)
            parts += (_COUNT.pack(len(data) + 1), data)
    return b"".join(parts)


def parted(data: bytes, at: int, back: Iterable[Callable[[bytes], Any]]) -> list[Any]:
    """The inverse of `joined`, from a position on."""
    values: list[Any] = []
    for decode in back:
        (length,) = _COUNT.unpack_from(data, at)
        at += 4
        if length == _NO_VALUE:
            values.append(None)
        else:
            values.append(decode(data[at : at + length - 1]))
            at += length - 1
    return values


def _array(element: Field) -> VaryingField:
    item = as_bytes(element)

    def to(values: Any) -> bytes:
        if isinstance(values, str | bytes | dict):
            raise TypeError("not a list")
        values = list(values)
        return _COUNT.pack(len(values)) + joined(values, [item.to] * len(values))

    def back(data: bytes) -> list[Any]:
        (count,) = _COUNT.unpack_from(data)
        return parted(data, 4, repeat(item.back, count))  # a damaged count takes no memory

    return VaryingField(to, back)


def _map(keys: VaryingField, values: VaryingField) -> VaryingField:
    def to(value: Any) -> bytes:
        entries = value if isinstance(value, dict) else dict(value)
        first = keys.to(list(entries))
        return _COUNT.pack(len(first)) + first + values.to(list(entries.values()))

    def back(data: bytes) -> dict[Any, Any]:
        end = 4 + _COUNT.unpack_from(data)[0]
        return dict(zip(keys.back(data[4:end]), values.back(data[end:]), strict=True))

    return VaryingField(to, back)


def _struct(kind: sql_types.StructType, fields: Sequence[Field]) -> VaryingField:
    names, parts = list(kind.names), [as_bytes(field) for field in fields]
    encoders, decoders = [part.to for part in parts], [part.back for part in parts]

    def to(value: Any) -> bytes:
        if isinstance(value, dict):
            value = [value.get(name) for name in names]
        elif not isinstance(value, tuple | list):
            raise TypeError("not a struct")
        if len(value) != len(names):
            raise ValueError(f"{len(value)} values for the {len(names)} fields of a struct")
        return joined(value, encoders)

    def back(data: bytes) -> sql_types.Row:
        return row_of(names, parted(data, 0, decoders))

    return VaryingField(to, back)


def row_of(names: Sequence[str], values: Sequence[Any]) -> sql_types.Row:
    row: sql_types.Row = tuple.__new__(sql_types.Row, values)
    row.__fields__ = names
    return row


_LENGTH = struct.Struct("<I")


class KeyCodec:
    """Encodes and decodes the keys of a schema.

    Example:
        >>> from pyspark.sql.types import StringType, StructType
        >>> codec = KeyCodec(StructType().add("user", StringType()))
        >>> codec.decode(codec.encode(("ann",)))
        Row(user='ann')
    """

    def __init__(self, schema: sql_types.StructType, where: str = "key") -> None:
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

    def decode(self, data: bytes) -> sql_types.Row:
        return self.decode_from(data, 0)[0]

    def decode_from(self, data: bytes, at: int) -> tuple[sql_types.Row, int]:
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
        elif isinstance(kind, sql_types.StringType):
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


def _numbers(kind: sql_types.DataType, column: pa.Array) -> Any:
    """The stored numbers, as an array of numpy; None if they must be made one by one."""
    if isinstance(kind, sql_types.LongType | sql_types.IntegerType):
        return _filled(column, "<i8" if isinstance(kind, sql_types.LongType) else "<i4")
    if isinstance(kind, sql_types.DateType):
        return _filled(column.cast(pa.int32()), "<i4")
    if isinstance(kind, sql_types.TimestampType | sql_types.TimestampNTZType):
        zone = column.type.tz if pa.types.is_timestamp(column.type) else None
        return _filled(column.cast(pa.timestamp("us", zone)).cast(pa.int64()), "<i8")
    if isinstance(kind, sql_types.DayTimeIntervalType):
        return _filled(column.cast(pa.duration("us")).cast(pa.int64()), "<i8")
    if isinstance(kind, sql_types.DoubleType | sql_types.FloatType):
        found = column.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
        found = np.where(np.isnan(found), np.nan, found)
        return found.astype("<f8" if isinstance(kind, sql_types.DoubleType) else "<f4")
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
