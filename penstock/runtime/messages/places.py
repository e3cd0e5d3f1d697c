"""Timestamps, origins and offsets of many messages in a few bytes: each column as its least value and the differences.

Most messages of a packet come from one partition, and from offsets that are close together. As integers of 64 bits,
these columns would be longer than the rows of many streams.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import CorruptError

_HEAD = struct.Struct("<qq")
"""The least value, and the number of bytes of each difference: none if all values are equal."""
_WIDTHS = (0, 1, 2, 4, 8)
_ALIGNED = 8


def pack_places(columns: Sequence[Any]) -> bytes:
    """The bytes of the columns.

    Args:
        columns: arrays of int64 of one length, which is not 0.
    """
    parts: list[bytes] = []
    for column in columns:
        least, greatest = int(column.min()), int(column.max())
        width = next(each for each in _WIDTHS if greatest - least < 1 << 8 * each)
        parts.append(_HEAD.pack(least, width))
        if width:
            data = (column - least).astype(f"<u{width}").tobytes()  # the difference wraps around in int64, and back
            parts.append(data + bytes(-len(data) % _ALIGNED))
    return b"".join(parts)


def unpack_places(data: bytes | pa.Buffer, columns: int, count: int) -> list[Any]:
    """As many columns of `count` values, as arrays of their own. Raises CorruptError if the bytes are others."""
    view, found, begin = memoryview(data), [], 0
    try:
        for _ in range(columns):
            least, width = _HEAD.unpack_from(view, begin)
            begin += _HEAD.size
            if width not in _WIDTHS:
                raise ValueError(f"a difference of {width} bytes")
            values = np.full(count, least, np.int64)
            if width:
                values += np.frombuffer(view, f"<u{width}", count, begin).astype(np.int64)
                begin += count * width + -(count * width) % _ALIGNED
            found.append(values)
        if begin != len(view):
            raise ValueError(f"{len(view)} bytes, and {begin} expected")
    except (struct.error, ValueError) as error:
        raise CorruptError(f"the places of {count} messages are damaged: {error}") from error
    return found
