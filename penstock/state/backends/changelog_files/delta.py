"""The `.delta` file: one commit's net changes of one store.

    magic       8 bytes   "PSTDELTA"
    header size 4 bytes   big-endian
    header      JSON      format, version, epoch, lineage, size of the records
    records     zstd      as in `penstock.state.records`
    checksum    32 bytes  SHA-256 of everything before

A value of None deletes; records are in no particular order, each key occurs once.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import asdict, dataclass

import orjson
from msgspec import Struct

from penstock.base.documents import Count, decode_format, decoding
from penstock.errors import CorruptError
from penstock.state.backends.changelog_files.marker import Lineage
from penstock.state.records import Changes, compress, decode_records, decompress, encode_records

MAGIC = b"PSTDELTA"
FORMAT = 1
_LENGTH = struct.Struct(">i")
_CHECKSUM_BYTES = 32


@dataclass(frozen=True, slots=True)
class DeltaHeader:
    """The header of a delta. `lineage` is that of the version it makes: runs of (epoch, first, last)."""

    version: Count
    epoch: Count
    lineage: Lineage


class _Head(Struct):
    """The header as it is written."""

    version: Count
    epoch: Count
    lineage: Lineage
    size: Count


def encode_delta(header: DeltaHeader, changes: Changes) -> bytes:
    """The same changes in the same order give the same bytes."""
    records = encode_records(changes)
    head = orjson.dumps({"format": FORMAT, **asdict(header), "size": len(records)})
    start, body = b"".join((MAGIC, _LENGTH.pack(len(head)), head)), compress(records)
    del records  # as large as the changes: not held while the file is put together
    checksum = hashlib.sha256(start)
    checksum.update(body)
    return b"".join((start, body, checksum.digest()))


def decode_delta(data: bytes, name: str) -> tuple[DeltaHeader, dict[bytes, bytes | None]]:
    """Raises CorruptError naming the file, IncompatibleError for a newer format."""
    if len(data) < len(MAGIC) + 4 + _CHECKSUM_BYTES or not data.startswith(MAGIC):
        raise CorruptError(f"`{name}` is not a delta file: {len(data)} bytes that begin with {data[:8]!r}")
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if hashlib.sha256(body).digest() != checksum:
        raise CorruptError(f"delta file `{name}` is damaged: its checksum does not match")
    what = f"delta file `{name}` has a checksum that fits but a header that does not"
    with decoding(what):
        start = len(MAGIC) + 4
        end = start + _LENGTH.unpack_from(body, len(MAGIC))[0]
        head = decode_format(_Head, body[start:end], what, f"delta file `{name}`", FORMAT)
    header = DeltaHeader(head.version, head.epoch, head.lineage)
    return header, decode_records(decompress(body[end:], head.size, f"delta file `{name}`"), name)
