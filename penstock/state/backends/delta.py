"""The `.delta` file: one commit's net changes of one store.

    magic       8 bytes   "PSTDELTA"
    header size 4 bytes   big-endian
    header      JSON      format, version, epoch, lineage, size of the records
    records     zstd      | key length | key | value length | value |, lengths of 4 bytes, big-endian; a deleted key
                          has the value length -1; -1 in place of a key length ends them (Spark's changelog v1)
    checksum    32 bytes  SHA-256 of everything before

A value of None deletes; records are in no particular order, each key occurs once.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa

from penstock.errors import CorruptError, IncompatibleError
from penstock.state.engine import Changes

MAGIC = b"PSTDELTA"
FORMAT = 1
_LENGTH = struct.Struct(">i")
_END = _LENGTH.pack(-1)
_SMALL = [_LENGTH.pack(n) for n in range(4096)]
"""Packed lengths of short keys and values."""
_CHECKSUM_BYTES = 32
_ENCODE_AT_ONCE = 8192


@dataclass(frozen=True, slots=True)
class DeltaHeader:
    """What a delta says of itself. `lineage` is that of the version it makes: runs of (epoch, first, last)."""

    version: int
    epoch: int
    lineage: tuple[tuple[int, int, int], ...]


def encode_delta(header: DeltaHeader, changes: Changes) -> bytes:
    """The file's bytes. The same changes in the same order give the same bytes."""
    records = encode_records(changes)
    fields = {"format": FORMAT, **asdict(header), "size": len(records)}
    head = orjson.dumps(fields)
    body = b"".join((MAGIC, _LENGTH.pack(len(head)), head, _codec().compress(records, asbytes=True)))
    return body + hashlib.sha256(body).digest()


def decode_delta(data: bytes, name: str) -> tuple[DeltaHeader, dict[bytes, bytes | None]]:
    """Header and changes. Raises CorruptError naming the file, IncompatibleError for a newer format."""
    if len(data) < len(MAGIC) + 4 + _CHECKSUM_BYTES or not data.startswith(MAGIC):
        raise CorruptError(f"`{name}` is not a delta file: {len(data)} bytes that begin with {data[:8]!r}")
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if hashlib.sha256(body).digest() != checksum:
        raise CorruptError(f"delta file `{name}` is damaged: its checksum does not match")
    start = len(MAGIC) + 4
    (size,) = _LENGTH.unpack_from(body, len(MAGIC))
    fields: dict[str, Any] = orjson.loads(body[start : start + size])
    if fields["format"] > FORMAT:
        raise IncompatibleError(
            f"delta file `{name}` has format {fields['format']}; this version of Penstock reads up to {FORMAT}"
        )
    records = _codec().decompress(body[start + size :], decompressed_size=fields["size"], asbytes=True)
    lineage = tuple((run[0], run[1], run[2]) for run in fields["lineage"])
    return DeltaHeader(fields["version"], fields["epoch"], lineage), decode_records(records, name)


def encode_records(changes: Changes) -> bytes:
    """The records, ended by -1."""
    parts: list[bytes] = []
    chunks: list[bytes] = []
    items = iter(changes.items())
    while some := list(islice(items, _ENCODE_AT_ONCE)):
        for key, value in some:
            if value is None:
                parts += (_pack(len(key)), key, _END)
            else:
                parts += (_pack(len(key)), key, _pack(len(value)), value)
        chunks.append(b"".join(parts))
        parts.clear()
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


def _codec() -> Any:
    return pa.Codec("zstd", compression_level=1)
