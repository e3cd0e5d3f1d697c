"""The stream of lz4-java's LZ4BlockOutputStream, which is how Spark writes lz4. It is not the LZ4 frame format.

    magic               8 bytes   "LZ4Block"
    token               1 byte    method (0x10 stored, 0x20 compressed) and the level
    compressed length   4 bytes   little-endian, as all that follow
    original length     4 bytes
    checksum            4 bytes   of the original: the low 28 bits of xxHash32

Blocks follow each other; one of original length 0 is the end. Several streams may follow each other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa
from xxhash import xxh32_intdigest

from penstock.errors import CorruptError

MAGIC = b"LZ4Block"
_HEADER = struct.Struct("<8sBIII")
_STORED, _COMPRESSED = 0x10, 0x20
_MOST = 1 << 26
"""The largest block lz4-java writes is 32 MB."""
_SEED = 0x9747B28C
_CHECKSUM_BITS = 0x0FFFFFFF


def blocks(data: bytes, name: str) -> Iterator[bytes]:
    """The original blocks, one after the other; `name` is the file, for errors.

    Raises:
        CorruptError: the stream breaks off, or a block is damaged.
    """
    codec, position, ended = pa.Codec("lz4_raw"), 0, False
    while position < len(data):
        if len(data) - position < _HEADER.size:
            raise CorruptError(f"`{name}` breaks off at byte {len(data)}, in the header of a block")
        magic, token, size, original, checksum = _HEADER.unpack_from(data, position)
        if magic != MAGIC or original > _MOST or token & 0xF0 not in {_STORED, _COMPRESSED}:
            raise CorruptError(f"`{name}` is damaged at byte {position}: there is no lz4 block")
        start = position + _HEADER.size
        position = start + size
        if position > len(data):
            raise CorruptError(f"`{name}` breaks off at byte {len(data)}, in the block that begins at {start}")
        ended = original == 0
        if ended:
            continue
        block = data[start:position]
        if token & 0xF0 == _COMPRESSED:
            try:
                block = codec.decompress(block, decompressed_size=original, asbytes=True)
            except (OSError, pa.ArrowException) as error:
                raise CorruptError(f"`{name}` is damaged: the block at byte {start}: {error}") from error
        if len(block) != original or xxh32_intdigest(block, _SEED) & _CHECKSUM_BITS != checksum:
            raise CorruptError(f"`{name}` is damaged: the checksum of the block at byte {start} does not match")
        yield block
    if not ended:
        raise CorruptError(f"`{name}` breaks off at byte {len(data)}: its last block is missing")
