"""JSON that is checked against a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from penstock.api.serdes import Json, JsonKey, Serde
from penstock.errors import ConfigError
from penstock.schemas.files import schema_text
from penstock.schemas.json_checks import check_patterns, checker_of
from penstock.schemas.registry import SchemaRegistry
from penstock.schemas.schema import Schema
from penstock.schemas.serde import Read, SchemaSerde, Write


class JsonSchema(SchemaSerde):
    """JSON, as `ps.Json`, whose objects are checked against a schema when they are written and when they are read.

    What does not fit is a failed message, with the field and the reason. `title` in the schema is the name of the
    record, for subjects of a registry.

    Example:
        >>> trip = ps.JsonSchema({
        ...     "title": "Trip",
        ...     "type": "object",
        ...     "properties": {"tail": {"type": "string"}, "miles": {"type": "integer", "minimum": 0}},
        ...     "required": ["tail"],
        ... })
        >>> trip.from_bytes(b'{"tail":"N1","miles":1400}')
        {'tail': 'N1', 'miles': 1400}
        >>> trip.to_bytes({"tail": "N1", "miles": -1})
        Traceback (most recent call last):
        ValueError: `miles`: -1 is less than the minimum of 0
    """

    kind = "JSON"

    def __init__(
        self, schema: Mapping[str, Any] | str | Path | None = None, *, registry: SchemaRegistry | None = None
    ) -> None:
        """Make a serde of JSON with a schema.

        Args:
            schema: the schema, as a dict, as JSON, or as the path of a `.json` file. None: messages are read without a
                check, and none can be written.
            registry: keeps the schemas of messages. None: the bytes are the JSON alone.

        Raises:
            ConfigError: the schema is not valid or cannot be read, a `$ref` in it leads nowhere, or there is neither a
                schema nor a registry.
        """
        super().__init__(registry)
        if schema is None and registry is None:
            raise ConfigError("ps.JsonSchema() takes a schema, registry=ps.SchemaRegistry(), or both")
        self._given = None if schema is None else _parsed(schema)
        if self._given is not None:
            checker_of(self._given)
            _check_schema(self._given)

    def __repr__(self) -> str:
        return f"ps.JsonSchema({self.record or '...'}{', registry=ps.SchemaRegistry()' if self.registry else ''})"

    @property
    def name(self) -> str:
        """See `Serde.name`. The bytes of an object are JSON, whatever the schema."""
        return "json" if self.registry is None else "json-registered"

    @cached_property
    def schema(self) -> Schema | None:
        """See `SchemaSerde.schema`."""
        return None if self._given is None else Schema("JSON", json.dumps(self._given, separators=(",", ":")))

    @property
    def record(self) -> str:
        """The schema's title."""
        return str((self._given or {}).get("title", ""))

    def for_keys(self) -> Serde[Any]:
        """See `Serde.for_keys`. Keys are JSON with sorted fields; in a registry's format they are as they come."""
        return JsonKey() if self.registry is None else self

    def for_store_values(self) -> Serde[Any]:
        """See `Serde.for_store_values`. Values of a store are JSON, and checked."""
        if self._given is None:
            raise ConfigError("ps.JsonSchema() of a store takes a schema")
        return JsonSchema(self._given)

    def _check(self) -> Callable[[Any, int], None]:
        return _unchecked if self._given is None else checker_of(self._given)

    def _reader(self, written: Schema | None) -> Read:
        check, read = self._check(), Json().from_bytes

        def read_checked(data: bytes) -> Any:
            found = read(data)
            check(found, len(data))
            return found

        return read_checked

    def _writer(self) -> Write:
        if self._given is None and self._latest is None:
            raise TypeError("there is no schema to write it with: give one, as ps.JsonSchema(schema, ...)")
        check, write = self._check(), Json().to_bytes

        def write_checked(obj: Any) -> bytes:
            data = write(obj)
            check(obj, len(data))
            return data

        return write_checked


def _unchecked(obj: Any, size: int) -> None:
    """Takes everything: a serde that has no schema checks nothing."""


def _parsed(given: object) -> Any:
    if isinstance(given, Mapping):
        return json.loads(json.dumps(given))
    text = schema_text(given, ".json", "ps.JsonSchema()")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the schema of ps.JsonSchema() is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"the schema of ps.JsonSchema() is {text[:60]}: it is a JSON object")
    return found


def _check_schema(schema: Any) -> None:
    """Raise ConfigError if a `$ref` leads nowhere, so that a message that it takes part in would fail, or if a pattern
    may take any time."""
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing.jsonschema import DRAFT202012, SchemaResource

    def check(part: SchemaResource, resolver: Any) -> None:
        if isinstance(part.contents, Mapping):
            check_patterns(part.contents)
        if isinstance(part.contents, Mapping) and "$ref" in part.contents:
            reference = part.contents["$ref"]
            try:
                resolver.lookup(reference)
            except Exception as error:  # pointers that make no sense raise others than Unresolvable
                raise ConfigError(
                    f"the schema of ps.JsonSchema() has the `$ref` {reference!r}, which leads nowhere. Correct it, or "
                    "add the definition under `$defs`: nothing is fetched"
                ) from error
        for each in part.subresources():
            check(each, resolver.in_subresource(each))

    root = SchemaResource.from_contents(schema, default_specification=DRAFT202012)
    check(root, REGISTRY.resolver_with_root(root))
