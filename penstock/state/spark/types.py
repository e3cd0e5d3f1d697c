"""Spark's data types, as a schema's JSON has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.errors import CorruptError

_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_SHOWN = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


@dataclass(frozen=True, slots=True)
class Simple:
    """A type without parts: `long`, `string`, `timestamp`..., by its name in JSON."""

    name: str

    def __str__(self) -> str:
        return _SHOWN.get(self.name, self.name)


@dataclass(frozen=True, slots=True)
class Decimal:
    """A decimal number."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class Array:
    """A list of one type."""

    element: SparkType

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True, slots=True)
class Map:
    """A map."""

    key: SparkType
    value: SparkType

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a row, or a field of a struct."""

    name: str
    type: SparkType


@dataclass(frozen=True, slots=True)
class Struct:
    """A row within a row, or the whole row. No two columns have one name."""

    columns: tuple[Column, ...]

    def __str__(self) -> str:
        return f"struct<{','.join(f'{column.name}:{column.type}' for column in self.columns)}>"


SparkType: TypeAlias = Simple | Decimal | Array | Map | Struct


def parse_type(document: Any) -> SparkType:
    """The type that a parsed JSON document says.

    Columns of one name, as the state of an aggregation may have (two `sum`s), get different names: `sum`, `sum_2`.

    Raises:
        CorruptError: it is no type.
    """
    if isinstance(document, str):
        found = _DECIMAL.fullmatch(document)
        return Simple(document) if found is None else Decimal(int(found[1]), int(found[2]))
    try:
        return _composed(document)
    except (KeyError, TypeError) as error:
        raise CorruptError(f"{document!r} is no type of Spark's") from error


def _composed(document: Mapping[str, Any]) -> SparkType:
    match document["type"]:
        case "struct":
            fields = document["fields"]
            names = _unique([str(field["name"]) for field in fields])
            types = [parse_type(field["type"]) for field in fields]
            return Struct(tuple(Column(name, type_) for name, type_ in zip(names, types, strict=True)))
        case "array":
            return Array(parse_type(document["elementType"]))
        case "map":
            return Map(parse_type(document["keyType"]), parse_type(document["valueType"]))
        case "udt":
            return Simple("udt")
        case other:
            raise TypeError(other)


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
