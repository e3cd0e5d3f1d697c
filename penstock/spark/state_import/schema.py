"""Spark's state schema files: the keys and values of a store, and Spark's data types, as the JSON of a schema has them.

A file is a Java data stream: UTF "v1", "v2" or "v3"; then the key's and the value's struct as JSON. Text of versions
2 and 3 is cut into chunks, each a UTF. Version 3 has the number of column families, and for each its name, a schema
id before either struct, how keys are encoded, and the struct of a map's own keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import orjson

from penstock.base.documents import Count, convert, decoding
from penstock.errors import IncompatibleError
from penstock.spark.state_import.encoding import JavaStream

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
