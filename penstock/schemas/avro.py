"""Avro: records with a schema, compact, and readable with a newer or an older one.

In a store, each value says with which of the store's schemas it was written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from penstock.api.serdes import Serde
from penstock.errors import ConfigError, IncompatibleError
from penstock.schemas.avro_resolved import reader_of
from penstock.schemas.avro_types import AvroTypes, why_unreadable
from penstock.schemas.avro_values import check_defaults
from penstock.schemas.avro_writer import writer_of
from penstock.schemas.registry import Schema, SchemaRegistry, schema_text
from penstock.schemas.serde import Read, SchemaSerde, Write

_MOST = 255
"""Schemas that a store can have: one byte counts them."""
_SAFE = "[]{}\":,.'*+-_/"
"""The characters of a schema, besides letters and digits, that a name has unchanged."""


class AvroState(Serde[Any]):
    """Values of a store. Its name has all schemas that values were written with: it is in every checkpoint, so that the
    state can be read with nothing else. A value begins with the number of its schema, in one byte."""

    def __init__(self, schemas: tuple[str, ...], number: int | None = None) -> None:
        """
        Args:
            schemas: as JSON without docs, in the order in which the store got them.
            number: of the one that is written and read with; by default the last one.
        """
        self.schemas = schemas
        self.number = len(schemas) - 1 if number is None else number
        self._reads: dict[int, Read] = {}
        self._write: Write | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reads": {}, "_write": None}

    @classmethod
    def of(cls, schema: Any) -> AvroState:
        return cls((json.dumps(_without_docs(schema), separators=(",", ":")),))

    @classmethod
    def named(cls, name: str) -> AvroState | None:
        """The serde with this name; None if it is the name of another one."""
        if not (name.startswith("avro(") and name.endswith(")")):
            return None
        try:
            found = json.loads(f"[{unquote(name.removeprefix('avro(')[:-1])}]")
            return cls(tuple(json.dumps(each, separators=(",", ":")) for each in found))
        except (ValueError, RecursionError):
            return None

    @property
    def name(self) -> str:
        """See `Serde.name`."""
        return f"avro({','.join(quote(each, safe=_SAFE) for each in self.schemas)})"

    def continuing(self, before: str) -> Serde[Any]:
        """See `Serde.continuing`.

        Raises:
            IncompatibleError: values of the store cannot be read with this schema.
        """
        known = AvroState.named(before)
        if known is None:
            return self
        own = self.schemas[self.number]
        for written in known.schemas:
            if why := why_unreadable(json.loads(written), json.loads(own)):
                raise IncompatibleError(
                    f"values that were written with an earlier schema cannot be read with this one: {why}"
                )
        if own in known.schemas:
            return AvroState(known.schemas, known.schemas.index(own))
        if len(known.schemas) == _MOST:
            raise IncompatibleError(f"it has had {_MOST} schemas, and can have no more. Copy it to another store")
        return AvroState((*known.schemas, own))

    def to_bytes(self, obj: Any) -> bytes:
        """See `Serde.to_bytes`."""
        write = self._write
        if write is None:
            write = self._write = self._writer()
        return write(obj)

    def _writer(self) -> Write:
        return writer_of(self._types(self.number), head=bytes([self.number]))

    def _types(self, number: int) -> AvroTypes:
        return AvroTypes(json.loads(self.schemas[number]))

    def from_bytes(self, data: bytes) -> Any:
        """See `Serde.from_bytes`."""
        number = data[0]
        return (self._reads.get(number) or self._read(number))(data)

    def _read(self, number: int) -> Read:
        if number >= len(self.schemas):
            raise ValueError(f"it has schema {number}, and the store has had {len(self.schemas)}")
        read = reader_of(self._types(number), self._types(self.number), start=1)
        self._reads[number] = read
        return read


def _without_docs(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_docs(each) for each in schema]
    if isinstance(schema, dict):
        return {key: each if key == "default" else _without_docs(each) for key, each in schema.items() if key != "doc"}
    return schema


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
    from fastavro import parse_schema  # an extra

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
