"""The types of an Avro schema, by name, and what a value of one takes without any bytes.

The rules of Avro's schema resolution are here too: can bytes of one schema be read as another? They are pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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
        from fastavro import parse_schema  # an extra

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


Named: TypeAlias = dict[str, Mapping[str, Any]]

PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""The types that values of a type may be read as."""


def why_unreadable(written: Any, read: Any) -> str:
    """The first reason why what was written with one schema cannot be read with another, and what to change in the
    latter; empty if it can.

    Args:
        written: the schema of the bytes, as a JSON value.
        read: the schema of the reader.
    """
    return _Resolution(_names(written, ""), _names(read, "")).reason(written, read, "")


class _Resolution:
    def __init__(self, written: Named, read: Named) -> None:
        self._written = written
        self._read = read
        self._seen: set[tuple[int, int]] = set()
        """Pairs of records that are being compared: types may contain themselves."""

    def reason(self, written: Any, read: Any, place: str) -> str:
        written, read = _resolved(written, self._written), _resolved(read, self._read)
        if isinstance(written, list):
            return next((why for each in written if (why := self.reason(each, read, place))), "")
        if isinstance(read, list):
            reasons = [self.reason(written, each, place) for each in read]
            missing = f"{_at(place)}no branch of the union takes {_shown(written)}. Add one that does"
            return "" if "" in reasons else missing
        one, other = _kind(written), _kind(read)
        if one != other:
            if other in PROMOTED.get(one, ()) and not (one == "string" and _is_decimal(read)):
                return ""
            return _other(written, read, place, "Keep the type, or use a new field that has a default")
        return self._of_one_kind(one, written, read, place)

    def _of_one_kind(self, kind: str, written: Any, read: Any, place: str) -> str:
        if kind in ("record", "error"):
            return self._record(written, read, place)
        if kind == "enum":
            gone = [each for each in written["symbols"] if each not in read["symbols"]]
            if not gone or "default" in read:
                return ""
            return f"{_at(place)}the symbol `{gone[0]}` is gone. Keep it, or give the enum a default"
        if kind == "fixed":
            same = written["size"] == read["size"] and matches(written, read)
            return "" if same else _other(written, read, place, "Keep its name and its size")
        if kind == "array":
            return self.reason(written["items"], read["items"], f"{place}[]")
        if kind == "map":
            return self.reason(written["values"], read["values"], f"{place}{{}}")
        return _logical(written, read, place)

    def _record(self, written: Mapping[str, Any], read: Mapping[str, Any], place: str) -> str:
        if not matches(written, read):
            advice = f"Keep the name, or give the new one `aliases: [{json.dumps(written['name'])}]`"
            return _other(written, read, place, advice)
        pair = id(written), id(read)
        if pair in self._seen:
            return ""
        self._seen.add(pair)
        before = {field["name"]: field for field in written["fields"]}
        for field in read["fields"]:
            names = [field["name"], *field.get("aliases", ())]
            found = next((before[name] for name in names if name in before), None)
            inner = f"{place}.{field['name']}".lstrip(".")
            if found is None:
                if "default" not in field:
                    return f"the field `{inner}` has no default, and is not in what was written. Give it a default"
            elif why := self.reason(found["type"], field["type"], inner):
                return why
        return ""


def _is_decimal(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("logicalType") == "decimal"


def _logical(written: Any, read: Any, place: str) -> str:
    def of(schema: Any) -> tuple[Any, ...]:
        if not _is_decimal(schema):
            return ()
        return schema.get("precision"), schema.get("scale", 0)

    if of(written) and of(read) and of(written)[1] != of(read)[1]:
        return f"{_at(place)}a decimal of scale {of(written)[1]} is none of scale {of(read)[1]}. Keep the scale"
    return ""


def _names(schema: Any, space: str) -> Named:
    """The named types of a schema, by full name and by name."""
    found: Named = {}
    if isinstance(schema, list):
        for each in schema:
            found |= _names(each, space)
    elif isinstance(schema, Mapping):
        kind = schema.get("type")
        if kind in NAMED:
            space = str(schema.get("namespace") or space)
            name = str(schema["name"])
            found[name] = found[f"{space}.{name}" if space else name] = schema
            for field in schema.get("fields", ()):
                found |= _names(field["type"], space)
        else:
            for inner in (kind, schema.get("items"), schema.get("values")):
                if not isinstance(inner, str):
                    found |= _names(inner, space)
    return found


def _resolved(schema: Any, named: Named) -> Any:
    """The definition of a type that is given by name or in brackets."""
    if isinstance(schema, str):
        return named.get(schema, schema)
    if isinstance(schema, Mapping) and not isinstance(schema.get("type"), str):
        return _resolved(schema["type"], named)
    return schema


def _kind(schema: Any) -> str:
    return str(schema["type"] if isinstance(schema, Mapping) else schema)


def matches(written: Mapping[str, Any], read: Mapping[str, Any]) -> bool:
    """True if types have the same name, or the reader's has the other's as an alias. Namespaces do not count."""

    def last(name: str) -> str:
        return name.rpartition(".")[2]

    names: Sequence[str] = (read["name"], *read.get("aliases", ()))
    return last(written["name"]) in map(last, names)


def _shown(schema: Any) -> str:
    kind = _kind(schema)
    return f"`{schema['name']}`" if kind in NAMED else kind


def _other(written: Any, read: Any, place: str, advice: str) -> str:
    return f"{_at(place)}{_shown(written)} is no {_shown(read)}. {advice}"


def _at(place: str) -> str:
    return f"`{place}`: " if place else ""
