"""Spark's state schema files: the keys and values of a store.

A file is a Java data stream: UTF "v1", "v2" or "v3"; then the key's and the value's struct as JSON. Text of versions 2
and 3 is cut into chunks, each a UTF. Version 3 has the number of column families, and for each its name, a schema id
before either struct, how keys are encoded, and the struct of a map's own keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import orjson

from penstock.base.documents import Count, convert, decoding
from penstock.errors import IncompatibleError
from penstock.spark.state_import.files.java_stream import JavaStream
from penstock.spark.state_import.types import StructType, parse_type

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
