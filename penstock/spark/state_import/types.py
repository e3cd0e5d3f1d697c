"""Spark's data types, as a schema's JSON has them."""

from __future__ import annotations

import re
from typing import TypeAlias

import msgspec

from penstock.base.documents import convert

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
