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

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from msgspec import Struct

from penstock.base.documents import Count, decode
from penstock.errors import CorruptError, IncompatibleError
from penstock.spark.state_import.files.codec import plain_chunks
from penstock.spark.state_import.files.java_stream import JavaStream

_TYPED = {2, 4}
_WITH_LINEAGE = {3, 4}


class RecordKind(Enum):
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
    return _head(_opened(data, name))


def read_changelog(data: bytes, name: str) -> Iterator[tuple[RecordKind, bytes, bytes]]:
    """(kind, key, value) of every record; the value of a delete is empty.

    Raises:
        CorruptError: the file is damaged, or its records break off or go on after their end.
        IncompatibleError: a codec or version that is not known.
    """
    source = _opened(data, name)
    head = _head(source)
    yield from _typed(source) if head.version in _TYPED else _untyped(source)
    if not source.at_end():
        raise CorruptError(f"the records of `{name}` continue after their end")


def _opened(data: bytes, name: str) -> JavaStream:
    return JavaStream(plain_chunks(data, name), name, f"the records of `{name}` break off")


def _untyped(source: JavaStream) -> Iterator[tuple[RecordKind, bytes, bytes]]:
    while (size := source.number()) >= 0:
        key = source.take(size)
        size = source.number()
        if size < 0:
            yield RecordKind.DELETE, key, b""
        else:
            yield RecordKind.PUT, key, source.take(size)


def _typed(source: JavaStream) -> Iterator[tuple[RecordKind, bytes, bytes]]:
    while code := source.take(1)[0]:
        try:
            kind = RecordKind(code)
        except ValueError:
            raise CorruptError(f"`{source.name}` has a record of the unknown type {code}") from None
        key = source.take(source.number())
        size = source.number()
        yield kind, key, b"" if kind is RecordKind.DELETE else source.take(size)


def _head(source: JavaStream) -> ChangelogHead:
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
    text = source.utf()
    lineage = decode(list[_Ancestor], text, f"the lineage of `{source.name}` is damaged, {text[:80]!r}")
    return ChangelogHead(version, {each.version: each.checkpoint_unique_id for each in lineage})


class _Ancestor(Struct, rename="camel"):
    version: Count
    checkpoint_unique_id: str
