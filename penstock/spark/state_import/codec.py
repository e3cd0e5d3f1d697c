"""Decompression of Spark's files. A file does not name its codec: the first bytes show it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.errors import CorruptError, IncompatibleError
from penstock.spark.state_import.files import lz4_block

_ZSTD = b"\x28\xb5\x2f\xfd"
_OTHERS = {b"\x82SNAPPY\x00": "snappy", b"ZV": "lzf"}
_CHUNK_BYTES = 1 << 20


def plain_chunks(data: bytes, name: str) -> Iterator[bytes]:
    """The original bytes, a chunk at a time.

    Raises:
        CorruptError: the stream is damaged or breaks off, or it is of no codec at all.
        IncompatibleError: it is of a codec that is not read here.
    """
    if data.startswith(lz4_block.MAGIC):
        return lz4_block.blocks(data, name)
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
