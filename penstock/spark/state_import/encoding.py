"""The encodings of Spark's files: their compression, and the output of java.io.DataOutputStream.

A file does not name its codec: the first bytes show it. lz4 is the stream of lz4-java's LZ4BlockOutputStream, not
the LZ4 frame format:

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

from penstock.base.budgets import RECORD_BYTES, check_budget
from penstock.errors import CorruptError, IncompatibleError

_LZ4 = b"LZ4Block"
_HEADER = struct.Struct("<8sBIII")
_STORED, _COMPRESSED = 0x10, 0x20
_MOST = 1 << 26
"""The largest block lz4-java writes is 32 MB."""
_SEED = 0x9747B28C
_CHECKSUM_BITS = 0x0FFFFFFF

_ZSTD = b"\x28\xb5\x2f\xfd"
_OTHERS = {b"\x82SNAPPY\x00": "snappy", b"ZV": "lzf"}
_CHUNK_BYTES = 1 << 20


def plain_chunks(data: bytes, name: str) -> Iterator[bytes]:
    """The original bytes, a chunk at a time.

    Raises:
        CorruptError: the stream is damaged or breaks off, or it is of no codec at all.
        IncompatibleError: it is of a codec that is not read here.
    """
    if data.startswith(_LZ4):
        return _lz4_blocks(data, name)
    if data.startswith(_ZSTD):
        return _zstd_chunks(data, name)
    for magic, codec in _OTHERS.items():
        if data.startswith(magic):
            raise IncompatibleError(
                f"`{name}` is compressed with {codec}; lz4 and zstd can be read. Run the query once more with "
                "spark.sql.streaming.stateStore.compression.codec=lz4 until a snapshot is uploaded"
            )
    raise CorruptError(f"`{name}` is not a compressed file: {len(data)} bytes that begin with {data[:8]!r}")


def _zstd_chunks(data: bytes, name: str) -> Iterator[bytes]:
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk
    except (OSError, pa.ArrowException) as error:
        raise CorruptError(f"`{name}` is damaged: {error}") from error


def _lz4_blocks(data: bytes, name: str) -> Iterator[bytes]:
    codec, position, ended = pa.Codec("lz4_raw"), 0, False
    while position < len(data):
        if len(data) - position < _HEADER.size:
            raise CorruptError(f"`{name}` breaks off at byte {len(data)}, in the header of a block")
        magic, token, size, original, checksum = _HEADER.unpack_from(data, position)
        if magic != _LZ4 or original > _MOST or token & 0xF0 not in {_STORED, _COMPRESSED}:
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


_INT = struct.Struct(">i")


class JavaStream:
    """Values out of chunks of bytes, taken one after the other."""

    def __init__(self, chunks: Iterator[bytes], name: str, broken: str) -> None:
        """
        Args:
            broken: the error if the chunks end too early.
        """
        self.name = name
        self._chunks = chunks
        self._broken = broken
        self._buffer = b""
        self._position = 0

    def take(self, count: int) -> bytes:
        """The next bytes. Raises CorruptError if there are fewer, or the count is negative."""
        if count < 0:
            raise CorruptError(f"`{self.name}` has a length of {count}")
        check_budget(count, RECORD_BYTES, f"a key or a value in `{self.name}`")
        taken = self._buffer[self._position : self._position + count]
        if len(taken) < count:
            taken = self._fill(count)
        self._position += count
        return taken

    def peek(self, count: int) -> bytes:
        """The next bytes, without taking them."""
        taken = self.take(count)
        self._position -= count
        return taken

    def number(self) -> int:
        """The next four bytes."""
        value: int = _INT.unpack(self.take(4))[0]
        return value

    def utf(self) -> bytes:
        """The next text, behind its length of two bytes."""
        return self.take(int.from_bytes(self.take(2), "big"))

    def at_end(self) -> bool:
        return self._position == len(self._buffer) and not any(self._chunks)

    def _fill(self, count: int) -> bytes:
        parts = [self._buffer[self._position :]]
        missing = count - len(parts[0])
        while missing > 0:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise CorruptError(self._broken)
            parts.append(chunk)
            missing -= len(chunk)
        self._buffer, self._position = b"".join(parts), 0
        return self._buffer[:count]
