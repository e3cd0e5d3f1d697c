"""The types of an Avro schema, by name, and what a value of one takes without any bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from penstock.base.budgets import EMPTY_PER_BYTE

Definition: TypeAlias = Any
"""A type as `AvroTypes.resolved` returns it: a dict, or the list of a union's branches."""

NAMED: Final = ("record", "error", "enum", "fixed")
RECORDS: Final = ("record", "error")
_MOST_LEVELS = 256
"""The most types in one another. Each level of a record is four of JSON."""


class AvroTypes:
    """A parsed schema."""

    def __init__(self, schema: Any) -> None:
        """
        Args:
            schema: as a JSON value.

        Raises:
            Exception: it is not valid. Whatever fastavro raises, or ValueError if it is too deep.
        """
        from fastavro import parse_schema

        _check_levels(schema)
        named: dict[str, Any] = {}
        self.root: Any = parse_schema(schema, named_schemas=named, _write_hint=False, _force=True)
        self._named: Mapping[str, Any] = named
        self._empty: dict[str, int | None] = {}

    def resolved(self, schema: Any) -> Definition:
        """The definition of a type that may be given by its name."""
        if not isinstance(schema, str):
            return schema
        return self._named.get(schema) or {"type": schema}

    def kind(self, schema: Any) -> str:
        """The name of the kind of a type: "record", "union", "int" and so on."""
        found = self.resolved(schema)
        return "union" if isinstance(found, list) else str(found["type"])

    def records(self) -> Iterator[Definition]:
        """The definitions of all records."""
        return (each for each in self._named.values() if each.get("type") in RECORDS)

    def empty_values(self, schema: Any) -> int | None:
        """The number of values that one of this type consists of, itself included, if it has no bytes; None if it has
        some. Records, and arrays of them, may have any number of values in no bytes."""
        found = self.resolved(schema)
        kind = self.kind(found)
        if kind == "null" or (kind == "fixed" and found["size"] == 0):
            return 1
        if kind not in RECORDS:
            return None
        name = str(found["name"])
        if name not in self._empty:
            self._empty[name] = None  # a record that contains itself has a branch, so it has bytes
            parts = [self.empty_values(field["type"]) for field in found["fields"]]
            if None not in parts:
                self._empty[name] = 1 + sum(part or 0 for part in parts)
        return self._empty[name]

    def empty_fields(self, record: Definition) -> int:
        """The number of values without bytes in the fields of a record that has bytes."""
        if self.empty_values(record) is not None:
            return 0
        return _from(sum(self.empty_values(field["type"]) or 0 for field in record["fields"]))

    def empty_branch(self, schema: Any) -> int:
        """The number of values without bytes in a branch of a union, or in a whole message."""
        return _from(self.empty_values(schema) or 0)

    def described(self, schema: Any) -> str:
        """A type for people."""
        found = self.resolved(schema)
        if isinstance(found, list):
            return f"a union of {', '.join(map(self.described, found))}"
        return f"{found['type']} `{found['name']}`" if found["type"] in NAMED else str(found["type"])


def _from(empty: int) -> int:
    """None are counted where they are as few as any budget has for the bytes around them."""
    return empty if empty > EMPTY_PER_BYTE else 0


def _check_levels(schema: Any) -> None:
    """Raise ValueError if the schema is too deep. fastavro has no limit, and ends the process."""
    level = [schema]
    for _ in range(4 * _MOST_LEVELS):
        level = [part for each in level for part in _parts(each)]
        if not level:
            return
    raise ValueError(f"its types are in one another for more than {_MOST_LEVELS} levels")


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list):
        yield from value
