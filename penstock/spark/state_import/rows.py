"""Entries of Spark's state store as Python values, from the bytes of its UnsafeRow.

A row is a set of null bits, a word of 64 bits for each column, and what does not fit into a word; such a column's
word has the offset from the row's begin (upper half) and the size. All is little-endian, but the unscaled values of
decimals of more than 18 digits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context
from typing import Any, Literal, TypeAlias

from penstock.errors import CorruptError, IncompatibleError
from penstock.spark.state_import import files

RowDecoder: TypeAlias = Callable[[bytes], dict[str, Any]]
_Read: TypeAlias = Callable[[bytes, int, int], Any]
"""(data, begin of the row, begin of the column's word) → value."""

_LONG, _WORDS = struct.Struct("<q"), struct.Struct("<II")
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH = _EPOCH_UTC.replace(tzinfo=None)
_EPOCH_DAY = date(1970, 1, 1)
_MAX_WORD_DIGITS = 18
_DIGITS = Context(prec=38)


def unreadable(type_: files.SparkType) -> str | None:
    """The reason why values of the type cannot be decoded; None if they can."""
    match type_:
        case files.StructType(columns):
            return next((why for column in columns if (why := unreadable(column.type)) is not None), None)
        case files.ArrayType(element):
            return unreadable(element)
        case files.MapType(key, value):
            if isinstance(key, files.StructType | files.ArrayType | files.MapType):
                return f"a dict cannot have keys of {files.type_text(key)}"
            return unreadable(key) or unreadable(value)
        case str(name) if name in _SIMPLE or _is_text(name) or files.decimal_of(name) is not None:
            return None
        case _:
            return f"there is no Python value for {files.type_text(type_)}"


def row_decoder(row: files.StructType, whose: str) -> RowDecoder:
    """A function from a row's bytes to its columns. Columns that are `unreadable` are left out.

    It raises CorruptError, naming `whose`, for bytes that are no such row.
    """
    read, least = _struct_reader(row), _fixed_size(len(row.columns))

    def decode(data: bytes) -> dict[str, Any]:
        if len(data) < least or len(data) % 8:
            raise CorruptError(f"{whose}: {len(data)} bytes are not a row of {files.type_text(row)}")
        try:
            columns: dict[str, Any] = read(data, 0)
        except (struct.error, ValueError, OverflowError, ArithmeticError) as error:
            raise CorruptError(
                f"{whose}: {data[:64].hex()}... is not a row of {files.type_text(row)}: {error}"
            ) from error
        return columns

    return decode


def _fixed_size(columns: int) -> int:
    return _bits_size(columns) + 8 * columns


def _bits_size(count: int) -> int:
    return (count + 63) // 64 * 8


def _struct_reader(row: files.StructType) -> Callable[[bytes, int], dict[str, Any]]:
    bits = _bits_size(len(row.columns))
    reads = [
        (at, column.name, bits + 8 * at, _reader(column.type))
        for at, column in enumerate(row.columns)
        if unreadable(column.type) is None
    ]
    empty = dict.fromkeys(name for _, name, _, _ in reads)

    def read(data: bytes, base: int) -> dict[str, Any]:
        nulls = int.from_bytes(data[base : base + bits], "little")
        values: dict[str, Any] = empty.copy()
        for at, name, slot, read_column in reads:
            if not nulls >> at & 1:
                values[name] = read_column(data, base, base + slot)
        return values

    return read


def _reader(type_: files.SparkType) -> _Read:
    match type_:
        case files.StructType():
            read = _struct_reader(type_)
            return lambda data, base, slot: read(data, _place(data, base, slot)[0])
        case files.ArrayType(element):
            read_array = _array_reader(element)
            return lambda data, base, slot: read_array(data, _place(data, base, slot)[0])
        case files.MapType(key, value):
            return _map_reader(key, value)
        case str(name) if (decimal := files.decimal_of(name)) is not None:
            precision, scale = decimal
            return _small_decimal(scale) if precision <= _MAX_WORD_DIGITS else _large_decimal(scale)
        case str(name):
            return _text if _is_text(name) else _SIMPLE[name][1]
        case files.UserDefinedType():
            raise ValueError("a type of the application's cannot be read")  # see `unreadable`


def _place(data: bytes, base: int, slot: int) -> tuple[int, int]:
    """Begin and end of a column's value that does not fit into its word."""
    size, offset = _WORDS.unpack_from(data, slot)
    start = base + offset
    if start + size > len(data):
        raise ValueError(f"a column reaches from byte {start} to {start + size} of {len(data)}")
    return start, start + size


def _bytes(data: bytes, base: int, slot: int) -> bytes:
    start, end = _place(data, base, slot)
    return data[start:end]


def _text(data: bytes, base: int, slot: int) -> str:
    return _bytes(data, base, slot).decode()


def _number(format_: str) -> _Read:
    unpack = struct.Struct("<" + format_).unpack_from
    return lambda data, base, slot: unpack(data, slot)[0]


def _counted(value_of: Callable[[int], Any], format_: str = "q") -> _Read:
    unpack = struct.Struct("<" + format_).unpack_from
    return lambda data, base, slot: value_of(unpack(data, slot)[0])


def _small_decimal(scale: int) -> _Read:
    return lambda data, base, slot: _DIGITS.create_decimal(_LONG.unpack_from(data, slot)[0]).scaleb(-scale, _DIGITS)


def _large_decimal(scale: int) -> _Read:
    def read(data: bytes, base: int, slot: int) -> Any:
        unscaled = int.from_bytes(_bytes(data, base, slot), "big", signed=True)
        return _DIGITS.create_decimal(unscaled).scaleb(-scale, _DIGITS)

    return read


def _array_reader(element: files.SparkType) -> Callable[[bytes, int], list[Any]]:
    """An array: the number of elements, null bits, the elements, each of the size of its type or a word."""
    read, size = _reader(element), _size_in_array(element)

    def read_array(data: bytes, base: int) -> list[Any]:
        (count,) = _LONG.unpack_from(data, base)
        first = base + 8 + _bits_size(count)
        if count < 0 or first + count * size > len(data):
            raise ValueError(f"an array of {count} elements at byte {base} of {len(data)}")
        nulls = int.from_bytes(data[base + 8 : first], "little")
        return [None if nulls >> at & 1 else read(data, base, first + at * size) for at in range(count)]

    return read_array


def _size_in_array(type_: files.SparkType) -> int:
    return _SIMPLE[type_][0] if isinstance(type_, str) and type_ in _SIMPLE else 8


def _map_reader(key: files.SparkType, value: files.SparkType) -> _Read:
    """A map: the size of the array of keys, that array, the array of values."""
    read_keys, read_values = _array_reader(key), _array_reader(value)

    def read(data: bytes, base: int, slot: int) -> dict[Any, Any]:
        start, _ = _place(data, base, slot)
        (size,) = _LONG.unpack_from(data, start)
        return dict(zip(read_keys(data, start + 8), read_values(data, start + 8 + size), strict=True))

    return read


def _is_text(name: str) -> bool:
    return name == "string" or name.startswith(("string ", "varchar(", "char("))


_SIMPLE: dict[str, tuple[int, _Read]] = {
    "boolean": (1, _number("?")),
    "byte": (1, _number("b")),
    "short": (2, _number("h")),
    "integer": (4, _number("i")),
    "long": (8, _number("q")),
    "float": (4, _number("f")),
    "double": (8, _number("d")),
    "date": (4, _counted(lambda days: _EPOCH_DAY + timedelta(days=days), "i")),
    "timestamp": (8, _counted(lambda micros: _EPOCH_UTC + timedelta(microseconds=micros))),
    "timestamp_ntz": (8, _counted(lambda micros: _EPOCH + timedelta(microseconds=micros))),
    "binary": (8, _bytes),
    "void": (8, lambda data, base, slot: None),
}
"""Size in an array, and the function that reads it."""


Row: TypeAlias = dict[str, Any]
EntryDecoder: TypeAlias = Callable[[bytes, bytes], tuple[Row, Row | list[Row]]]

_LENGTH = struct.Struct("<i")
_DELIMITER = b","
_VERSION = b"\x00"
"""First byte of every row: the version of the encoding."""


def entry_decoder(schema: files.EntrySchema, holds: Literal["row", "rows"], whose: str) -> EntryDecoder:
    """A function from an entry's bytes to (key, value); a value of `rows`, a ListState's, is a list.

    It raises CorruptError, naming `whose`, for bytes that do not fit the schema.

    Raises:
        IncompatibleError: the keys are encoded in a way that is not known.
    """
    if not schema.encoding.is_known:
        raise IncompatibleError(
            f"{whose}: keys are encoded as {schema.encoding.name}, which only Spark's own indexes and timers are"
        )
    key = _key_decoder(schema.key, schema.encoding, f"a key of {whose}")
    row = _versioned(row_decoder(schema.value, f"a value of {whose}"), f"a value of {whose}")
    value = row if holds == "row" else _rows_decoder(row, f"a value of {whose}")
    return lambda key_bytes, value_bytes: (key(key_bytes), value(value_bytes))


def _key_decoder(row: files.StructType, encoding: files.KeyEncoding, whose: str) -> RowDecoder:
    count = encoding.prefix_columns
    if count == 0:
        return _versioned(row_decoder(row, whose), whose)
    prefix = _versioned(row_decoder(files.StructType(row.columns[:count]), whose), whose)
    rest = _versioned(row_decoder(files.StructType(row.columns[count:]), whose), whose)

    def decode(data: bytes) -> Row:
        """The prefix's length, the prefix, the rest."""
        size = _length(data, 0, whose)
        return {**prefix(data[4 : 4 + size]), **rest(data[4 + size :])}

    return decode


def _rows_decoder(row: RowDecoder, whose: str) -> Callable[[bytes], list[Row]]:
    def decode(data: bytes) -> list[Row]:
        """Each row behind its length. RocksDB puts a comma between what it merged, and sometimes none: a row with its
        version is one byte longer than a multiple of 8, which the number of no comma is."""
        found, position = [], 0
        while position < len(data):
            if data[position : position + 1] == _DELIMITER:
                position += 1
            size = _length(data, position, whose)
            position += 4 + size
            found.append(row(data[position - size : position]))
        return found

    return decode


def _length(data: bytes, position: int, whose: str) -> int:
    if position + 4 <= len(data):
        (size,) = _LENGTH.unpack_from(data, position)
        if 0 < size <= len(data) - position - 4:
            return int(size)
    raise CorruptError(f"{whose} is damaged at byte {position} of {len(data)}: {data[:64].hex()}...")


def _versioned(decode: RowDecoder, whose: str) -> RowDecoder:
    def decode_versioned(data: bytes) -> Row:
        if data[:1] != _VERSION:
            raise CorruptError(f"{whose} does not begin with the version 0 of Spark's row encoding: {data[:16].hex()}")
        return decode(data[1:])

    return decode_versioned
