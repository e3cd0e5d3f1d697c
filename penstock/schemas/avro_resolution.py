"""The rules of Avro's schema resolution: can bytes of one schema be read as another? Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from penstock.schemas.avro_types import NAMED

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
