"""The values of fields that are not given: what the JSON of a default stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.base.budgets import MessageBudget
from penstock.schemas.avro_logical import logical_of
from penstock.schemas.avro_misfits import MisfitError, wrong
from penstock.schemas.avro_types import RECORDS, AvroTypes

_MOST_VALUES = 100_000
_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_MOST = {"int": 31, "long": 63}


class SchemaDefaults:
    """Makes the defaults of a schema. They are as values of their type are read: bytes are bytes, dates are dates, and
    a record has the defaults of its own fields."""

    def __init__(self, types: AvroTypes) -> None:
        self._types = types

    def of(self, schema: Any, default: Any) -> Any:
        """The value of a default. Raises MisfitError if it is none of the type.

        Args:
            schema: the type.
            default: as the schema has it.
        """
        return _DefaultMaker(self._types).value(schema, default)


def maker_of(value: Any) -> Callable[[], Any]:
    """A function that makes the value anew: code that gets it may change it."""
    if isinstance(value, dict):
        parts = [(name, maker_of(each)) for name, each in value.items()]
        return lambda: {name: make() for name, make in parts}
    if isinstance(value, list):
        makers = [maker_of(each) for each in value]
        return lambda: [make() for make in makers]
    return lambda: value


def check_defaults(types: AvroTypes) -> None:
    """Raise ValueError if a field has a default that is none of its type."""
    defaults = SchemaDefaults(types)
    for definition in types.records():
        for field in definition["fields"]:
            if "default" in field:
                try:
                    defaults.of(field["type"], field["default"])
                except MisfitError as error:
                    raise error.inside(f".{field['name']}").inside(definition["name"]).error() from error


class _DefaultMaker:
    def __init__(self, types: AvroTypes) -> None:
        self._types = types
        self._budget = MessageBudget(0)
        self._left = _MOST_VALUES

    def value(self, schema: Any, default: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise MisfitError(f"a default has more than {_MOST_VALUES:,} values")
        try:
            self._budget.enter()
        except ValueError as error:
            raise MisfitError(f"a default: {error}") from None
        try:
            return self._of_kind(self._types.kind(schema), self._types.resolved(schema), default)
        finally:
            self._budget.leave()

    def _of_kind(self, kind: str, definition: Any, default: Any) -> Any:
        if kind == "union":
            return self._union(definition, default)
        if kind in RECORDS:
            return self._record(definition, default)
        if kind == "array" and isinstance(default, list):
            return [self.value(definition["items"], each) for each in default]
        if kind == "map" and isinstance(default, dict):
            return {name: self.value(definition["values"], each) for name, each in default.items()}
        plain = _plain(kind, definition, default)
        logical = logical_of(definition)
        try:
            return plain if logical is None else logical.made(plain)
        except ValueError as error:
            raise MisfitError(f"its default is {default!r}: {error}") from None

    def _union(self, branches: Any, default: Any) -> Any:
        """The value of the first branch which takes it. Until Avro 1.12, it was the first branch."""
        for each in branches:
            try:
                return self.value(each, default)
            except MisfitError:
                continue
        raise wrong(default, f"default of {self._types.described(branches)}")

    def _record(self, definition: Any, default: Any) -> Any:
        if not isinstance(default, dict):
            raise wrong(default, f"default of the record `{definition['name']}`")
        found = {}
        for field in definition["fields"]:
            name = field["name"]
            if name not in default and "default" not in field:
                raise MisfitError(f"its default has no field `{name}`, which has none itself")
            try:
                found[name] = self.value(field["type"], default.get(name, field.get("default")))
            except MisfitError as error:
                raise error.inside(f".{name}") from None
        return found


def _plain(kind: str, definition: Any, default: Any) -> Any:
    found = default
    if kind in ("bytes", "fixed") and isinstance(default, str):
        try:
            found = default.encode("latin-1")
        except UnicodeEncodeError:
            raise wrong(default, f"default of {kind}: each character is a byte, \\u0000 to \\u00ff") from None
    elif kind in ("float", "double"):
        found = _FLOATS.get(default, default) if isinstance(default, str) else default
        found = float(found) if type(found) is int else found
    if not _fits(kind, definition, found):
        raise wrong(default, f"default of {kind}")
    return found


def _fits(kind: str, definition: Any, value: Any) -> bool:
    if kind in _MOST:
        return type(value) is int and -(1 << _MOST[kind]) <= value < 1 << _MOST[kind]
    if kind == "fixed":
        return isinstance(value, bytes) and len(value) == definition["size"]
    if kind == "enum":
        return value in definition["symbols"]
    wanted = {"null": type(None), "boolean": bool, "string": str, "bytes": bytes, "float": float, "double": float}
    return type(value) is wanted.get(kind)
