"""Net changes of a store as bytes, exactly as in Spark's changelog v1.

    | key length | key | value length | value |    lengths of 4 bytes, big-endian

A deleted key has the value length -1; -1 in place of a key length ends them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import islice
from typing import TypeAlias

from penstock.errors import CorruptError

Changes: TypeAlias = Mapping[bytes, bytes | None]
"""Net changes of a store: key to new value, None for a deleted key."""

_LENGTH = struct.Struct(">i")
_END = _LENGTH.pack(-1)
_SMALL = [_LENGTH.pack(n) for n in range(4096)]
"""Packed lengths of short keys and values."""
_ENCODE_AT_ONCE = 8192


def changes_bytes(changes: Changes) -> int:
    """Bytes of all keys and values."""
    return sum(map(len, changes)) + sum(map(len, filter(None, changes.values())))


def encode_records(changes: Changes) -> bytes:
    """The records, ended by -1."""
    chunks: list[bytes] = []
    items = iter(changes.items())
    while some := list(islice(items, _ENCODE_AT_ONCE)):
        parts = [b""] * (4 * len(some))
        parts[0::4] = [_pack(len(key)) for key, _ in some]
        parts[1::4] = [key for key, _ in some]
        parts[2::4] = [_END if value is None else _pack(len(value)) for _, value in some]
        parts[3::4] = [value or b"" for _, value in some]
        chunks.append(b"".join(parts))
    chunks.append(_END)
    return b"".join(chunks)


def decode_records(data: bytes, name: str) -> dict[bytes, bytes | None]:
    """Read records up to the end mark. Raises CorruptError if they break off or go on after it."""
    changes: dict[bytes, bytes | None] = {}
    unpack, position, end = _LENGTH.unpack_from, 0, len(data)
    try:
        while (key_length := unpack(data, position)[0]) >= 0:
            position += 4 + key_length
            key = data[position - key_length : position]
            value_length = unpack(data, position)[0]
            position += 4
            if value_length < 0:
                changes[key] = None
                continue
            position += value_length
            changes[key] = data[position - value_length : position]
    except struct.error as error:
        raise CorruptError(f"the records of `{name}` break off at byte {position} of {end}") from error
    if position + 4 != end:
        raise CorruptError(f"the records of `{name}` end at byte {position + 4}, the file at {end}")
    return changes


def _pack(length: int) -> bytes:
    return _SMALL[length] if length < 4096 else _LENGTH.pack(length)
