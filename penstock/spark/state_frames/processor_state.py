"""State variables of a processor as columns: the content of their stores, decoded by the schemas in the stores'
layouts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, DataType, LongType, MapType, StructField, StructType, VariantType

from penstock.api.serdes import PackedColumns
from penstock.checkpoint.record import StoreLayout
from penstock.errors import ConfigError
from penstock.spark.processor.codec import RowCodec, StoredLists
from penstock.spark.processor.keys import KeyCodec
from penstock.spark.state_frames.columns import StateColumn, StateColumns
from penstock.spark.versions import TIME_TYPES, arrow_type
from penstock.state.reading.reader import VersionEntry

_KEY = "key-1("
_KINDS = {"value-1(": "value", "list-1(": "list", "map-1(": "map", "columns-1(": "columns"}
_TTL = "ttl"
_LENGTH = 4


def is_state_variable(layout: StoreLayout) -> bool:
    return layout.key.startswith(_KEY) and layout.value.startswith(tuple(_KINDS))


def variable_columns(
    store: str, layout: StoreLayout, parse: Callable[[str], DataType]
) -> tuple[list[StructField], StructField, StateColumns]:
    """The fields of the keys and of the value, and what makes them: a struct for the grouping key, one for the key of a
    map (`user_key`), and for the value a struct or, of a list, an array of structs.

    Args:
        store: the variable.
        layout: its store's layout, for which `is_state_variable` is true.
        parse: makes a type of its DDL text.

    Raises:
        ConfigError: a type in the layout cannot be read.
    """
    start = next(start for start in _KINDS if layout.value.startswith(start))
    kind, parts = _KINDS[start], layout.value[len(start) : -1].split(";")
    try:
        keys = [_schema(layout.key[len(_KEY) : -1], parse)]
        if kind == "map":
            keys.append(_schema(parts.pop(0), parse))
        expires = kind == "list" and _TTL in parts
        (fields,) = (part for part in parts if part != _TTL)
        schema = _schema(fields, parse)
        value: DataType = ArrayType(schema) if kind == "list" else schema
        arrow_keys, arrow_value = (
            [arrow_type(key) for key in keys],
            arrow_type(value),
        )
    except Exception as error:
        raise ConfigError(
            f"the layout of store `{store}` has a type that cannot be shown: {layout.key} {layout.value}: {error}. "
            'Read its bytes with key_type="BINARY", value_type="BINARY"'
        ) from error
    names = ["key", "user_key"][: len(keys)]
    stored = tuple(_stored(key) for key in keys)
    rows = _PackedRows(arrow_value) if kind == "columns" else _Rows(_stored(schema))
    columns = StateColumns(
        store,
        tuple(
            (name, StateColumn(name, arrow, _KeyPart(stored[: n + 1])))
            for n, (name, arrow) in enumerate(zip(names, arrow_keys, strict=True))
        ),
        StateColumn("value", arrow_value, _Elements(rows) if isinstance(rows, _Rows) and kind == "list" else rows),
        _WholeLists(expires) if kind == "list" else None,
    )
    return [StructField(name, key) for name, key in zip(names, keys, strict=True)], StructField("value", value), columns


def _schema(text: str, parse: Callable[[str], DataType]) -> StructType:
    """The schema of the fields in a layout: `name:type`, with commas between them."""
    schema, begin, depth = StructType(), 0, 0
    for at, character in enumerate(f"{text},"):
        depth += (character in "<(") - (character in ">)")
        if character == "," and not depth and at > begin:
            name, _, kind = text[begin:at].partition(":")
            schema = schema.add(unquote(name), parse(unquote(kind)))
            begin = at + 1
    return schema


def _stored(schema: StructType) -> str:
    """The schema that decodes bytes to values for Arrow: times as the stored numbers, because as objects of Python they
    would be in the time zone of the process."""
    return json.dumps(_as_numbers(schema).jsonValue())


def _as_numbers(kind: DataType) -> DataType:
    if isinstance(kind, TIME_TYPES):
        return LongType()
    if isinstance(kind, VariantType):
        return StructType().add("value", BinaryType()).add("metadata", BinaryType())
    if isinstance(kind, ArrayType):
        return ArrayType(_as_numbers(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_as_numbers(kind.keyType), _as_numbers(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _as_numbers(f.dataType), f.nullable) for f in kind.fields])
    return kind


@cache
def _row_codec(schema: str) -> RowCodec:
    return RowCodec(StructType.fromJson(json.loads(schema)))


@cache
def _key_codec(schema: str) -> KeyCodec:
    return KeyCodec(StructType.fromJson(json.loads(schema)))


@dataclass(frozen=True, slots=True)
class _KeyPart:
    """The last of several keys that follow each other."""

    schemas: tuple[str, ...]

    def __call__(self, data: bytes) -> Any:
        at, found = 0, None
        for schema in self.schemas:
            found, at = _key_codec(schema).decode_from(data, at)
        return found


@dataclass(frozen=True, slots=True)
class _Rows:
    schema: str

    def __call__(self, data: bytes) -> Any:
        return _row_codec(self.schema).decode(data)


@dataclass(frozen=True, slots=True)
class _PackedRows:
    kind: pa.DataType

    def __call__(self, data: bytes) -> Any:
        return _packed(self.kind).from_bytes(data)


@cache
def _packed(kind: pa.DataType) -> PackedColumns:
    return PackedColumns(pa.schema(list(kind)))


@dataclass(frozen=True, slots=True)
class _Elements:
    """The elements of a list as `_WholeLists` has them."""

    row: _Rows

    def __call__(self, data: bytes) -> list[Any]:
        decode = _row_codec(self.row.schema).decode
        found, at = [], 0
        while at < len(data):
            end = at + _LENGTH + int.from_bytes(data[at : at + _LENGTH], "big")
            found.append(decode(data[at + _LENGTH : end]))
            at = end
        return found


@dataclass(frozen=True, slots=True)
class _WholeLists:
    """One entry for each list, of those for its head and its pieces. The head comes first, because no key begins
    another one."""

    expires: bool

    def __call__(self, entries: Iterable[VersionEntry], now_ms: int) -> Iterator[VersionEntry]:
        head: VersionEntry | None = None
        pieces = _Pieces()
        for entry in entries:
            if head is None or not entry.key.startswith(head.key):
                if head is not None:
                    yield from self._whole(head, pieces, now_ms)
                head, pieces = entry, _Pieces()
            pieces[entry.key] = entry.value
        if head is not None:
            yield from self._whole(head, pieces, now_ms)

    def _whole(self, head: VersionEntry, pieces: _Pieces, now_ms: int) -> Iterator[VersionEntry]:
        lists = StoredLists(pieces, 1 if self.expires else None, lambda: now_ms)  # type: ignore[arg-type]
        data = b"".join(len(each).to_bytes(_LENGTH, "big") + each for each in lists.get(head.key))
        if data:
            yield VersionEntry(head.key, head.task, data)


class _Pieces(dict[bytes, bytes]):
    """The entries of a list, as a read-only store."""

    def put(self, key: bytes, value: bytes | None) -> None:
        raise NotImplementedError
