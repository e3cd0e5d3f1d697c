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

from penstock.errors import CorruptError

MAGIC = b"LZ4Block"
_HEADER = struct.Struct("<8sBIII")
_STORED, _COMPRESSED = 0x10, 0x20
_MOST = 1 << 26
"""The largest block lz4-java writes is 32 MB."""
_SEED = 0x9747B28C
_CHECKSUM_BITS = 0x0FFFFFFF
_STRIPE = struct.Struct("<4I")
_WORD = 0xFFFFFFFF
_P1, _P2, _P3, _P4, _P5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393


def blocks(data: bytes, name: str) -> Iterator[bytes]:
    """The original blocks, one after the other; `name` says in errors what was read.

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
        if len(block) != original or xxhash32(block, _SEED) & _CHECKSUM_BITS != checksum:
            raise CorruptError(f"`{name}` is damaged: the checksum of the block at byte {start} does not match")
        yield block
    if not ended:
        raise CorruptError(f"`{name}` breaks off at byte {len(data)}: its last block is missing")


def xxhash32(data: bytes, seed: int) -> int:
    """XXH32 of the data, unsigned."""
    whole = len(data) & ~15
    if whole:
        a, b, c, d = (seed + _P1 + _P2) & _WORD, (seed + _P2) & _WORD, seed, (seed - _P1) & _WORD
        for w, x, y, z in _STRIPE.iter_unpack(memoryview(data)[:whole]):
            a = (a + w * _P2) & _WORD
            a = ((a << 13 | a >> 19) & _WORD) * _P1 & _WORD
            b = (b + x * _P2) & _WORD
            b = ((b << 13 | b >> 19) & _WORD) * _P1 & _WORD
            c = (c + y * _P2) & _WORD
            c = ((c << 13 | c >> 19) & _WORD) * _P1 & _WORD
            d = (d + z * _P2) & _WORD
            d = ((d << 13 | d >> 19) & _WORD) * _P1 & _WORD
        h = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
    else:
        h = seed + _P5
    h = (h + len(data)) & _WORD
    words = whole + (len(data) - whole & ~3)
    for position in range(whole, words, 4):
        h = _rotate((h + int.from_bytes(data[position : position + 4], "little") * _P3) & _WORD, 17) * _P4 & _WORD
    for byte in data[words:]:
        h = _rotate((h + byte * _P5) & _WORD, 11) * _P1 & _WORD
    h = (h ^ h >> 15) * _P2 & _WORD
    h = (h ^ h >> 13) * _P3 & _WORD
    return h ^ h >> 16


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _WORD
