"""Spark's files: their encodings, and the state schema, which has the keys and values of a store.

A file does not name its codec: the first bytes show it. lz4 is the stream of lz4-java's LZ4BlockOutputStream, not
the LZ4 frame format:

    magic               8 bytes   "LZ4Block"
    token               1 byte    method (0x10 stored, 0x20 compressed) and the level
    compressed length   4 bytes   little-endian, as all that follow
    original length     4 bytes
    checksum            4 bytes   of the original: the low 28 bits of xxHash32

Blocks follow each other; one of original length 0 is the end. Several streams may follow each other.

A schema file is the output of java.io.DataOutputStream: UTF "v1", "v2" or "v3"; then the key's and the value's struct
as JSON. Text of versions 2 and 3 is cut into chunks, each a UTF. Version 3 has the number of column families, and for
each its name, a schema id before either struct, how keys are encoded, and the struct of a map's own keys.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import orjson
import pyarrow as pa
from xxhash import xxh32_intdigest

from penstock.base.budgets import RECORD_BYTES, check_budget
from penstock.base.documents import Count, convert, decoding
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
    chunk = bytearray(_CHUNK_BYTES)  # Arrow keeps the memory of a `read` that fails
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            while count := stream.readinto(chunk):
                yield bytes(chunk[:count])
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


_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_SHOWN = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


class StructField(msgspec.Struct, frozen=True):
    """A column of a row, or a field of a struct."""

    name: str
    type: SparkType


class StructType(msgspec.Struct, frozen=True, tag_field="type", tag="struct", rename={"columns": "fields"}):
    """A row within a row, or the whole row.

    No two columns have one name. Those that do in JSON, as in the state of an aggregation with two `sum`s, become
    `sum` and `sum_2`.
    """

    columns: tuple[StructField, ...]

    def __post_init__(self) -> None:
        names = _unique([column.name for column in self.columns])
        columns = tuple(StructField(name, column.type) for name, column in zip(names, self.columns, strict=True))
        msgspec.structs.force_setattr(self, "columns", columns)


class ArrayType(msgspec.Struct, frozen=True, tag_field="type", tag="array", rename={"element": "elementType"}):
    """A list of one type."""

    element: SparkType


class MapType(
    msgspec.Struct, frozen=True, tag_field="type", tag="map", rename={"key": "keyType", "value": "valueType"}
):
    """A map."""

    key: SparkType
    value: SparkType


class UserDefinedType(msgspec.Struct, frozen=True, tag_field="type", tag="udt"):
    """A type of the application's. Its other fields describe the storage, which is not read."""


SparkType: TypeAlias = str | ArrayType | MapType | StructType | UserDefinedType
"""A type without parts is its name in JSON: `long`, `string`, `decimal(10,2)`."""


class _Document(msgspec.Struct):
    type: SparkType


def parse_type(document: object) -> SparkType:
    """The type that a parsed JSON document says. Raises msgspec.ValidationError if it is no type."""
    return convert(_Document, {"type": document}).type


def decimal_of(name: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal; None for another type."""
    found = _DECIMAL.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def type_text(type_: SparkType) -> str:
    """The type in SQL's words."""
    match type_:
        case str(name):
            decimal = decimal_of(name)
            return _SHOWN.get(name, name) if decimal is None else f"decimal({decimal[0]},{decimal[1]})"
        case StructType(columns):
            return f"struct<{','.join(f'{column.name}:{type_text(column.type)}' for column in columns)}>"
        case ArrayType(element):
            return f"array<{type_text(element)}>"
        case MapType(key, value):
            return f"map<{type_text(key)},{type_text(value)}>"
        case UserDefinedType():
            return "udt"


def _unique(names: list[str]) -> list[str]:
    taken: set[str] = set(names)
    given: set[str] = set()
    for at, name in enumerate(names):
        number = 2
        while names[at] in given:
            if f"{name}_{number}" not in taken:
                names[at] = f"{name}_{number}"
                taken.add(names[at])
            number += 1
        given.add(names[at])
    return names


_NO_PREFIX, _PREFIX = "NoPrefixKeyStateEncoderSpec", "PrefixKeyScanStateEncoderSpec"


class KeyEncoding(
    msgspec.Struct, frozen=True, rename={"name": "keyStateEncoderType", "prefix_columns": "numColsPrefixKey"}
):
    """The encoding of a key's row: whole, or (`prefix_columns` > 0) as its first columns and the rest.

    `name` is Spark's word for it.
    """

    name: str
    prefix_columns: Count = 0

    @property
    def is_known(self) -> bool:
        """True if its keys can be decoded. Those of timers and other indexes of Spark's own cannot."""
        return self.name in {_NO_PREFIX, _PREFIX}


@dataclass(frozen=True, slots=True)
class EntrySchema:
    """The keys and values of a store, or of one column family of it."""

    key: StructType
    value: StructType
    encoding: KeyEncoding


DEFAULT_FAMILY = "default"


def read_schema(data: bytes, name: str, prefix_columns: int = 0) -> dict[str, EntrySchema]:
    """Column family -> schema; the one of a store without any is called `default`.

    `prefix_columns` is what the operator's metadata says, where the file does not (versions 1 and 2).

    Raises:
        CorruptError: the file is damaged.
        IncompatibleError: a version that is not known.
    """
    source = JavaStream(iter([data]), name, f"state schema `{name}` is damaged: it breaks off")
    with decoding(f"state schema `{name}` is damaged"):
        version = source.utf().decode()
        if version not in {"v1", "v2", "v3"}:
            raise IncompatibleError(
                f"state schema `{name}` has version `{version}`; versions v1, v2 and v3 can be read"
            )
        if version == "v3":
            return {source.utf().decode(): _family(source) for _ in range(source.number())}
        text = JavaStream.utf if version == "v1" else _chunked
        encoding = KeyEncoding(_PREFIX, prefix_columns) if prefix_columns else KeyEncoding(_NO_PREFIX)
        return {DEFAULT_FAMILY: EntrySchema(_row(text(source)), _row(text(source)), encoding)}


def _family(source: JavaStream) -> EntrySchema:
    source.take(2)
    key = _row(_chunked(source))
    source.take(2)
    value = _row(_chunked(source))
    encoding = convert(KeyEncoding, orjson.loads(_chunked(source)))
    _chunked(source)  # the struct of a map's own keys, which is part of the key's as well
    return EntrySchema(key, value, encoding)


def _chunked(source: JavaStream) -> bytes:
    return b"".join([source.utf() for _ in range(source.number())])


def _row(text: bytes) -> StructType:
    parsed = parse_type(orjson.loads(text))
    if not isinstance(parsed, StructType):
        raise TypeError(f"{text[:80]!r} is not a struct")
    return parsed
