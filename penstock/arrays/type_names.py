"""Types of columns as text, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

_BETWEEN = re.compile(r",(?![^(\[<]*[)\]>])")
"""A comma that is not inside of brackets."""
_DECIMAL = re.compile(r"decimal(128|256)\((\d+),(-?\d+)\)")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns),tz=(.+)\]")


def text_of_types(types: Iterable[pa.DataType]) -> str:
    """The types as one word.

    Example:
        >>> text_of_types([pa.int64(), pa.decimal128(38, 2)])
        'int64,decimal128(38,2)'
    """
    return ",".join(map(str, types)).replace(" ", "")


def types_of_text(text: str) -> list[pa.DataType]:
    """The types of `text_of_types`. Raises ValueError if one of them is nested.

    Example:
        >>> types_of_text("int64,timestamp[us,tz=UTC]")
        [DataType(int64), TimestampType(timestamp[us, tz=UTC])]
    """
    return [_type_named(each) for each in _BETWEEN.split(text)]


def _type_named(name: str) -> pa.DataType:
    if decimal := _DECIMAL.fullmatch(name):
        make = pa.decimal128 if decimal[1] == "128" else pa.decimal256
        return make(int(decimal[2]), int(decimal[3]))
    if zoned := _ZONED.fullmatch(name):
        return pa.timestamp(zoned[1], zoned[2])
    return pa.type_for_alias(name)
