"""Avro: records with a schema, compact, and readable with a newer or an older one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from penstock.api.serdes import Serde
from penstock.errors import ConfigError
from penstock.schemas.avro_defaults import check_defaults
from penstock.schemas.avro_resolved import reader_of
from penstock.schemas.avro_state import AvroState
from penstock.schemas.avro_types import AvroTypes
from penstock.schemas.avro_writer import writer_of
from penstock.schemas.files import schema_text
from penstock.schemas.registry import SchemaRegistry
from penstock.schemas.schema import Schema
from penstock.schemas.serde import Read, SchemaSerde, Write

AvroSchema: TypeAlias = Mapping[str, Any] | list[Any] | str | Path
"""A schema as a dict or a list, as JSON, or as the path of an `.avsc` file."""


class Avro(SchemaSerde):
    """Avro's binary form. Records are dicts; dates, times, decimals and UUIDs are Python's own types.

    Without a registry, bytes are those of the schema alone. With one, they begin with the id of the schema that they
    were written with: readers find it in the registry, and fill in the fields that their own schema has since got.

    A dict needs all fields that have no default, and may have no others.

    Example:
        >>> trip = ps.Avro({
        ...     "type": "record",
        ...     "name": "Trip",
        ...     "fields": [{"name": "tail", "type": "string"}, {"name": "miles", "type": "int", "default": 0}],
        ... })
        >>> trip.to_bytes({"tail": "N1", "miles": 1400})
        b'\\x04N1\\xf0\\x15'
        >>> trip.from_bytes(b"\\x04N1\\xf0\\x15")
        {'tail': 'N1', 'miles': 1400}
    """

    kind = "AVRO"

    def __init__(self, schema: AvroSchema | None = None, *, registry: SchemaRegistry | None = None) -> None:
        """Make a serde of Avro.

        Args:
            schema: the schema, as a dict, as JSON, or as the path of an `.avsc` file. None: each message is read as its
                schema in the registry says, and none can be written.
            registry: keeps the schemas of messages. None: the bytes do not say with which schema they were written.

        Raises:
            ConfigError: the schema is not valid or cannot be read, or there is neither a schema nor a registry.
        """
        super().__init__(registry)
        if schema is None and registry is None:
            raise ConfigError("ps.Avro() takes a schema, registry=ps.SchemaRegistry(), or both")
        self._given = None if schema is None else _parsed_json(schema)
        if self._given is not None:
            _check(self._given)

    def __repr__(self) -> str:
        parts = [] if self._given is None else [self.record or "..."]
        return f"ps.Avro({', '.join([*parts, *(['registry=ps.SchemaRegistry()'] if self.registry else [])])})"

    @property
    def name(self) -> str:
        """See `Serde.name`. What waits in windows and joins has the bytes of one schema, so another one has another
        name."""
        schema = self.schema
        return "avro" if schema is None else f"avro-{schema.digest[:8]}"

    def for_store_values(self) -> Serde[Any]:
        """See `Serde.for_store_values`. Values of a store can be read after the schema has changed."""
        if self._given is None:
            raise ConfigError("ps.Avro() of a store takes a schema: there are no messages whose registry has it")
        return AvroState.of(self._given)

    @cached_property
    def schema(self) -> Schema | None:
        """See `SchemaSerde.schema`."""
        return None if self._given is None else Schema("AVRO", json.dumps(self._given, separators=(",", ":")))

    @property
    def record(self) -> str:
        """The full name of the record."""
        if not isinstance(self._given, Mapping):
            return ""
        name, space = str(self._given.get("name", "")), self._given.get("namespace")
        return f"{space}.{name}" if space and "." not in name else name

    def _own(self) -> AvroTypes | None:
        """The schema that it writes with; None: there is none."""
        if self._given is not None:
            return AvroTypes(self._given)
        return None if self._latest is None else _of_registry(self._latest)

    def _reader(self, written: Schema | None) -> Read:
        try:
            writer = self._own() if written is None else _of_registry(written)
            reader = None if self._given is None else self._own()
            if writer is not None:
                return reader_of(writer, reader)
        except Exception as error:  # whatever fastavro says of a schema that the registry has
            return _refusing(f"the schema that it was written with cannot be used: {type(error).__name__}: {error}")
        raise TypeError("there is no schema to read it with: give one, as ps.Avro(schema, ...)")

    def _writer(self) -> Write:
        own = self._own()
        if own is None:
            raise TypeError("there is no schema to write it with: give one, as ps.Avro(schema, ...)")
        return writer_of(own)


def _refusing(why: str) -> Read:
    """Reads no message: all that have this schema fail alike."""

    def read(data: bytes) -> Any:
        raise ValueError(why)

    return read


def _parsed_json(given: object) -> Any:
    """The schema as a JSON value. Raises ConfigError."""
    if isinstance(given, Mapping | list):
        try:
            return json.loads(json.dumps(given))
        except RecursionError:
            raise ConfigError("the schema of ps.Avro() is too deep") from None
    text = schema_text(given, ".avsc", "ps.Avro()")
    if text.isidentifier():
        return text  # a primitive type, as "string"
    try:
        return json.loads(text)
    except RecursionError:
        raise ConfigError("the schema of ps.Avro() is too deep") from None
    except ValueError as error:
        raise ConfigError(f"the schema of ps.Avro() is no JSON: {error}") from error


def _check(schema: Any) -> None:
    try:
        types = AvroTypes(schema)
        writer_of(types)
        reader_of(types, None)
        check_defaults(types)
    except ImportError as error:
        raise ConfigError(f"ps.Avro() needs fastavro: install `penstock-streams[avro]` ({error})") from error
    except Exception as error:
        raise ConfigError(f"the schema of ps.Avro() is not valid: {type(error).__name__}: {error}") from error


def _of_registry(schema: Schema) -> AvroTypes:
    """The schema, with those that it refers to."""
    from fastavro import parse_schema

    named: dict[str, Any] = {}
    for each in schema.references:
        _add_definitions(each.schema, named)
    given = parse_schema(_as_json(schema), named_schemas={**named}, _write_hint=False)
    return AvroTypes(_with_definitions(given, named))


def _add_definitions(schema: Schema, named: dict[str, Any]) -> None:
    from fastavro import parse_schema

    for each in schema.references:
        _add_definitions(each.schema, named)
    parse_schema(_as_json(schema), named_schemas=named, _write_hint=False)


def _as_json(schema: Schema) -> Any:
    try:
        return json.loads(schema.text)
    except ValueError:
        return schema.text  # a primitive type, as "string"


def _with_definitions(schema: Any, named: dict[str, Any]) -> Any:
    """The schema with the definitions of other schemas in it: that of a name where it comes first.

    Args:
        schema: one with full names.
        named: the definitions that are not in it yet, by full name. Those that are used are removed.
    """
    if isinstance(schema, str):
        definition = named.pop(schema, None)
        return schema if definition is None else _with_definitions(definition, named)
    if isinstance(schema, list):
        return [_with_definitions(each, named) for each in schema]
    found = dict(schema)
    for part in ("type", "items", "values"):
        if part in found:
            found[part] = _with_definitions(found[part], named)
    if "fields" in found:
        found["fields"] = [_with_definitions(each, named) for each in found["fields"]]
    return found
