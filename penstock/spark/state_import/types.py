"""Spark's data types, as a schema's JSON has them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from penstock.documents import convert

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


class _Struct(msgspec.Struct, tag_field="type", tag="struct"):
    fields: list[_Field]


class _Array(msgspec.Struct, tag_field="type", tag="array", rename="camel"):
    element_type: _Written


class _Map(msgspec.Struct, tag_field="type", tag="map", rename="camel"):
    key_type: _Written
    value_type: _Written


class _UserDefined(msgspec.Struct, tag_field="type", tag="udt"):
    """Its other fields describe the storage, which is not read."""


_Written: TypeAlias = str | _Struct | _Array | _Map | _UserDefined


class _Field(msgspec.Struct):
    type: _Written
    name: str = ""


def parse_type(document: object) -> SparkType:
    """The type that a parsed JSON document says.

    Columns of one name, as the state of an aggregation may have (two `sum`s), get different names: `sum`, `sum_2`.

    Raises:
        msgspec.ValidationError: it is no type.
    """
    return _type(convert(_Field, {"type": document}).type)


def _type(written: _Written) -> SparkType:
    match written:
        case str(name):
            found = _DECIMAL.fullmatch(name)
            return Simple(name) if found is None else Decimal(int(found[1]), int(found[2]))
        case _Struct(fields):
            names = _unique([field.name for field in fields])
            types = [_type(field.type) for field in fields]
            return Struct(tuple(Column(name, type_) for name, type_ in zip(names, types, strict=True)))
        case _Array(element):
            return Array(_type(element))
        case _Map(key, value):
            return Map(_type(key), _type(value))
        case _UserDefined():
            return Simple("udt")


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
