"""Spark's changelog files, `<version>[_<uuid>].changelog`: what one batch changed in one partition of a store.

Records of all versions have lengths of 4 bytes, big-endian, and come in the order they were made in.

| version | when                      | head                      | records                                          |
|---------|---------------------------|---------------------------|--------------------------------------------------|
| 1       |                           | none                      | as in `penstock.state.records`                   |
| 2       | column families           | UTF "v2"                  | type byte, then key and value (a delete: key, -1)|
| 3       | checkpoint ids            | UTF "v3", UTF lineage     | as 1                                             |
| 4       | both                      | UTF "v4", UTF lineage     | as 2                                             |
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from msgspec import Struct

from penstock.budgets import RECORD_BYTES, check_budget
from penstock.documents import Count, decode
from penstock.errors import CorruptError, IncompatibleError
from penstock.spark.state_import.codec import plain_chunks

_INT = struct.Struct(">i")
_SHORT = struct.Struct(">H")
_TYPED = {2, 4}
_WITH_LINEAGE = {3, 4}


class Kind(Enum):
    """The operation of a record. The values are the type bytes of versions 2 and 4."""

    PUT = 1
    DELETE = 16
    MERGE = 17
    """Appends to the value, as a ListState does."""
    DELETE_RANGE = 32
    """Deletes from the key up to the value, exclusive."""


@dataclass(frozen=True, slots=True)
class ChangelogHead:
    """The version of a file, and its lineage: version → checkpoint id, newest first or last."""

    version: int
    lineage: dict[int, str]


def read_head(data: bytes, name: str) -> ChangelogHead:
    """The version and lineage before the records. Raises as `read_changelog`."""
    return _head(_Source(plain_chunks(data, name), name))


def read_changelog(data: bytes, name: str) -> Iterator[tuple[Kind, bytes, bytes]]:
    """(kind, key, value) of every record; the value of a delete is empty.

    Raises:
        CorruptError: the file is damaged, or its records break off or go on after their end.
        IncompatibleError: a codec or version that is not known.
    """
    source = _Source(plain_chunks(data, name), name)
    head = _head(source)
    yield from _typed(source) if head.version in _TYPED else _untyped(source)
    if not source.at_end():
        raise CorruptError(f"the records of `{name}` continue after their end")


def _untyped(source: _Source) -> Iterator[tuple[Kind, bytes, bytes]]:
    while (size := source.length()) >= 0:
        key = source.take(size)
        size = source.length()
        if size < 0:
            yield Kind.DELETE, key, b""
        else:
            yield Kind.PUT, key, source.take(size)


def _typed(source: _Source) -> Iterator[tuple[Kind, bytes, bytes]]:
    while code := source.take(1)[0]:
        try:
            kind = Kind(code)
        except ValueError:
            raise CorruptError(f"`{source.name}` has a record of the unknown type {code}") from None
        key = source.take(source.length())
        size = source.length()
        yield kind, key, b"" if kind is Kind.DELETE else source.take(size)


def _head(source: _Source) -> ChangelogHead:
    """Version 1 begins with a record or the end: a length of 4 bytes, which no UTF of two letters looks like, because
    that would be a key of 160 KB that begins with `2`."""
    start = source.peek(4)
    if start[:3] != b"\x00\x02v":
        return ChangelogHead(1, {})
    source.take(4)
    version = start[3] - ord("0")
    if version not in {2, 3, 4}:
        raise IncompatibleError(f"changelog `{source.name}` has version {version}; versions 1 to 4 can be read")
    if version not in _WITH_LINEAGE:
        return ChangelogHead(version, {})
    text = source.take(_SHORT.unpack(source.take(2))[0])
    lineage = decode(list[_Ancestor], text, f"the lineage of `{source.name}` is damaged, {text[:80]!r}")
    return ChangelogHead(version, {each.version: each.checkpoint_unique_id for each in lineage})


class _Ancestor(Struct, rename="camel"):
    version: Count
    checkpoint_unique_id: str


class _Source:
    """Bytes out of chunks, taken one after the other."""

    def __init__(self, chunks: Iterator[bytes], name: str) -> None:
        self.name = name
        self._chunks = chunks
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

    def length(self) -> int:
        """The next four bytes as a number."""
        value: int = _INT.unpack(self.take(4))[0]
        return value

    def at_end(self) -> bool:
        return self._position == len(self._buffer) and not any(self._chunks)

    def _fill(self, count: int) -> bytes:
        parts = [self._buffer[self._position :]]
        missing = count - len(parts[0])
        while missing > 0:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise CorruptError(f"the records of `{self.name}` break off")
            parts.append(chunk)
            missing -= len(chunk)
        self._buffer, self._position = b"".join(parts), 0
        return self._buffer[:count]
