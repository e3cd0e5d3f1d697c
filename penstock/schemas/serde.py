"""The common part of serdes with schemas: Confluent's wire format, and where schemas come from."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Any, ClassVar, Self, TypeAlias

from penstock.api.serdes import Serde
from penstock.errors import ConfigError
from penstock.schemas.known import Connection
from penstock.schemas.registry import Part, SchemaRegistry
from penstock.schemas.schema import Schema, SchemaKind

Read: TypeAlias = Callable[[bytes], Any]
Write: TypeAlias = Callable[[Any], bytes]

_HEAD = struct.Struct(">BI")
_MAGIC = 0
_OWN = 0
"""In place of an id, where bytes stay in the job: they have the schema of the serde. Registries count from 1."""


class SchemaSerde(Serde[Any]):
    """A serde whose bytes have a schema, which a registry may keep.

    It is a value: `for_stream`, `connected` and `registered` return others. `_reader` and `_writer` are called once in
    each process.
    """

    kind: ClassVar[SchemaKind]

    def __init__(self, registry: SchemaRegistry | None) -> None:
        if registry is not None and not isinstance(registry, SchemaRegistry):
            raise ConfigError(
                f"ps.{type(self).__name__}(registry={registry!r}): it is a ps.SchemaRegistry(), whose address the "
                "configuration has in `schema.registry.url`"
            )
        self.registry = registry
        self._place: tuple[str, Part] | None = None
        self._connection: Connection | None = None
        self._id = _OWN
        self._latest: Schema | None = None
        """The schema that a serde without one writes with, where bytes stay in the job."""
        self._reset()

    def _reset(self) -> None:
        self._reads: dict[int, Read] = {}
        self._write: Write | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reads": {}, "_write": None}

    def _with(self, **changes: Any) -> Self:
        other = copy(self)
        other.__dict__.update(changes)
        other._reset()  # noqa: SLF001 - of the same class
        return other

    @property
    @abstractmethod
    def schema(self) -> Schema | None:
        """The schema that objects are written with; None: it is not known."""

    @property
    @abstractmethod
    def record(self) -> str:
        """The full name of the schema's record."""

    @abstractmethod
    def _reader(self, written: Schema | None) -> Read:
        """Makes objects of bytes that have this schema; None: of those that this serde writes."""

    @abstractmethod
    def _writer(self) -> Write:
        """Makes bytes of objects. Raises TypeError if there is no schema."""

    def for_stream(self, topic: str, part: Part) -> Self:
        """See `Serde.for_stream`."""
        return self if self.registry is None else self._with(_place=(topic, part))

    def for_store_values(self) -> Serde[Any]:
        """See `Serde.for_store_values`."""
        return self if self.registry is None else self._with(registry=None, _place=None)

    @property
    def subject(self) -> str:
        """The name under which its schema is registered."""
        if self.registry is None or self._place is None:
            raise ValueError("it is of no stream with a registry")
        return self.registry.subject(*self._place, self.record)

    def connected(self, connection: Connection) -> Self:
        """The same, with a way to the registry."""
        return self._with(_connection=connection)

    def registered(self) -> Self:
        """The same, with the id of its schema, which is registered if need be.

        Raises:
            ConfigError: it has no schema.
            IncompatibleError, NotFoundError, SystemAwayError, SystemRefusedError: the registry's answer.
        """
        registry, connection, schema = self.registry, self._connection, self.schema
        if registry is None or connection is None:
            return self
        if schema is None:
            topic = self._place[0] if self._place else ""
            raise ConfigError(f"output `{topic}`: {self!r} has no schema to be written with: ps.Avro(schema, ...)")
        return self._with(_id=connection.open().registered(self.subject, schema, register=registry.register))

    def completed(self) -> Self:
        """The same, with the newest schema of its subject, if it has none and the registry has one. What stays in the
        job is written with it. Raises SystemAwayError."""
        connection = self._connection
        return self if connection is None else self._with(_latest=connection.open().latest(self.subject))

    def to_bytes(self, obj: Any) -> bytes:
        """See `Serde.to_bytes`."""
        write = self._write
        if write is None:
            write = self._write = self._framed(self._writer())
        return write(obj)

    def _framed(self, write: Write) -> Write:
        if self.registry is None:
            return write
        head = _HEAD.pack(_MAGIC, self._id)
        return lambda obj: head + write(obj)

    def from_bytes(self, data: bytes) -> Any:
        """See `Serde.from_bytes`."""
        if self.registry is None:
            read = self._reads.get(_OWN)
            return (read or self._read(_OWN))(data)
        if len(data) < _HEAD.size or data[0] != _MAGIC:
            raise ValueError(
                "it is not in the wire format of a schema registry, which begins with a zero byte and the schema's id. "
                "If it was written without a registry, leave out registry="
            )
        schema_id = _HEAD.unpack_from(data)[1]
        read = self._reads.get(schema_id)
        return (read or self._read(schema_id))(data[_HEAD.size :])

    def _read(self, schema_id: int) -> Read:
        if schema_id in (_OWN, self._id):
            read = self._reader(None)
        elif self._connection is None:
            raise ValueError(
                "there is no way to the registry here: run the application, or test it with TestRunner, which has one"
            )
        else:
            read = self._reader(self._connection.open().schema(schema_id))
        self._reads[schema_id] = read
        return read
