"""Entries of Spark's state store as Python values."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from penstock.errors import CorruptError, IncompatibleError
from penstock.spark.state_import.files.unsafe_row import RowDecoder, row_decoder
from penstock.spark.state_import.schema import EntrySchema, KeyEncoding
from penstock.spark.state_import.types import StructType

Row: TypeAlias = dict[str, Any]
EntryDecoder: TypeAlias = Callable[[bytes, bytes], tuple[Row, Row | list[Row]]]

_LENGTH = struct.Struct("<i")
_DELIMITER = b","
_VERSION = b"\x00"
"""First byte of every row: the version of the encoding."""


def entry_decoder(schema: EntrySchema, holds: Literal["row", "rows"], whose: str) -> EntryDecoder:
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


def _key_decoder(row: StructType, encoding: KeyEncoding, whose: str) -> RowDecoder:
    count = encoding.prefix_columns
    if count == 0:
        return _versioned(row_decoder(row, whose), whose)
    prefix = _versioned(row_decoder(StructType(row.columns[:count]), whose), whose)
    rest = _versioned(row_decoder(StructType(row.columns[count:]), whose), whose)

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
