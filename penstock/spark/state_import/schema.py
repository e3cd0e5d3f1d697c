"""Spark's state schema files: the keys and values of a store.

A file is a Java data stream: UTF "v1", "v2" or "v3"; then the key's and the value's struct as JSON. Text of versions 2
and 3 is cut into chunks, each a UTF. Version 3 has the number of column families, and for each its name, a schema id
before either struct, how keys are encoded, and the struct of a map's own keys.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec
import orjson

from penstock.documents import Count, convert, decoding
from penstock.errors import IncompatibleError
from penstock.spark.state_import.types import Struct, parse_type

_NO_PREFIX, _PREFIX = "NoPrefixKeyStateEncoderSpec", "PrefixKeyScanStateEncoderSpec"


@dataclass(frozen=True, slots=True)
class KeyEncoding:
    """The encoding of a key's row: whole, or (`prefix_columns` > 0) as its first columns and the rest.

    `name` is Spark's word for it.
    """

    name: str = _NO_PREFIX
    prefix_columns: int = 0

    @property
    def is_known(self) -> bool:
        """True if its keys can be decoded. Those of timers and other indexes of Spark's own cannot."""
        return self.name in {_NO_PREFIX, _PREFIX}


@dataclass(frozen=True, slots=True)
class EntrySchema:
    """The keys and values of a store, or of one column family of it."""

    key: Struct
    value: Struct
    encoding: KeyEncoding = KeyEncoding()


DEFAULT_FAMILY = "default"


def read_schema(data: bytes, name: str, prefix_columns: int = 0) -> dict[str, EntrySchema]:
    """Column family -> schema; the one of a store without any is called `default`.

    `prefix_columns` is what the operator's metadata says, where the file does not (versions 1 and 2).

    Raises:
        CorruptError: the file is damaged.
        IncompatibleError: a version that is not known.
    """
    source = _JavaStream(data)
    with decoding(f"state schema `{name}` is damaged"):
        version = source.utf()
        if version not in {"v1", "v2", "v3"}:
            raise IncompatibleError(
                f"state schema `{name}` has version `{version}`; versions v1, v2 and v3 can be read"
            )
        if version == "v3":
            return {source.utf(): _family(source) for _ in range(source.number())}
        text = source.utf if version == "v1" else source.chunked
        encoding = KeyEncoding(_PREFIX, prefix_columns) if prefix_columns else KeyEncoding()
        return {DEFAULT_FAMILY: EntrySchema(_row(text()), _row(text()), encoding)}


class _Encoder(msgspec.Struct, rename="camel"):
    key_state_encoder_type: str
    num_cols_prefix_key: Count = 0


def _family(source: _JavaStream) -> EntrySchema:
    source.short()
    key = _row(source.chunked())
    source.short()
    value = _row(source.chunked())
    encoder = convert(_Encoder, orjson.loads(source.chunked()))
    source.chunked()  # the struct of a map's own keys, which is part of the key's as well
    return EntrySchema(key, value, KeyEncoding(encoder.key_state_encoder_type, encoder.num_cols_prefix_key))


def _row(text: str) -> Struct:
    parsed = parse_type(orjson.loads(text))
    if not isinstance(parsed, Struct):
        raise TypeError(f"{text[:80]} is not a struct")
    return parsed


class _JavaStream:
    """Reads the output of java.io.DataOutputStream."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def short(self) -> int:
        return self._unpack(">h")

    def number(self) -> int:
        return self._unpack(">i")

    def utf(self) -> str:
        size = self._unpack(">H")
        text = self._data[self._position : self._position + size]
        if len(text) < size:
            raise ValueError(f"it breaks off at byte {len(self._data)}")
        self._position += size
        return text.decode()

    def chunked(self) -> str:
        return "".join([self.utf() for _ in range(self.number())])

    def _unpack(self, format_: str) -> int:
        value: int = struct.unpack_from(format_, self._data, self._position)[0]
        self._position += struct.calcsize(format_)
        return value
