"""The common part of serdes with schemas: Confluent's wire format, and where schemas come from.

The start of a job connects the serdes of its application with the registry. The schemas that a job has met are kept
under its root: a restart needs no registry for them.
"""

from __future__ import annotations

import hashlib
import logging
import struct
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Self, TypeAlias

import orjson

from penstock.api.serdes import Serde
from penstock.base.secrets import RootKeys
from penstock.config.model import JobConfig
from penstock.config.optional_settings import SchemaRegistrySettings
from penstock.errors import ConfigError, CorruptError, NotFoundError, SystemAwayError
from penstock.graph.serdes import with_output_serdes, with_serdes
from penstock.graph.specs import ApplicationGraph
from penstock.job.paths import JobPaths
from penstock.objects.open import open_root
from penstock.objects.store import ObjectStore
from penstock.schemas.client import open_registry
from penstock.schemas.registry import Part, Registry, Schema, SchemaKind, SchemaRegistry
from penstock.start.part import StartPart

_NAMESPACE = "schemas"


@dataclass(frozen=True, slots=True)
class Connection:
    """Everything a process needs to find schemas: the registry's options, and the root of the job. Picklable."""

    options: tuple[tuple[str, str], ...] = field(repr=False)
    root: str
    keys: RootKeys = field(repr=False)
    paths: JobPaths

    @classmethod
    def of(cls, options: Mapping[str, str], root: str, keys: RootKeys, paths: JobPaths) -> Connection:
        return cls(tuple(sorted(options.items())), root, keys, paths)

    def open(self) -> KnownSchemas:
        """The schemas. Each process has them once."""
        return _opened(self)


@lru_cache(maxsize=8)
def _opened(connection: Connection) -> KnownSchemas:
    return KnownSchemas(connection, open_root(connection.root, connection.keys))


class KnownSchemas:
    """Schemas of one registry. Those that were met once are kept in the process and under the job's root; ids and
    schemas never change, so nothing there is ever out of date. Thread-safe."""

    def __init__(self, connection: Connection, objects: ObjectStore) -> None:
        options = dict(connection.options)
        self._options = options
        self._objects = objects
        self._paths = connection.paths
        self._registry = hashlib.sha256(options.get("url", "").encode()).hexdigest()[:16]
        self._schemas: dict[int, Schema] = {}
        self._lock = threading.Lock()

    def schema(self, schema_id: int) -> Schema:
        """The schema with this id.

        Raises:
            NotFoundError: the registry does not have it.
            SystemAwayError: it is not known here, and the registry does not answer.
        """
        with self._lock:
            if schema_id not in self._schemas:
                self._schemas[schema_id] = self._kept(f"{schema_id}", lambda: self._ask().schema(schema_id))
            return self._schemas[schema_id]

    def registered(self, subject: str, schema: Schema, *, register: bool) -> int:
        """The id of a schema of a subject.

        Args:
            register: add it to the registry if it is not there.

        Raises:
            IncompatibleError: the registry refuses it.
            NotFoundError: it is not there, and may not be added.
            SystemAwayError: it is not known here, and the registry does not answer.
        """
        key = self._key(f"{subject}:{schema.digest}")
        try:
            return int(self._objects.get(key))
        except NotFoundError:
            pass
        except ValueError as error:
            raise CorruptError(f"`{key}` is no id of a schema: {error}. Delete it, and start again") from error
        found = (self._ask().register if register else self._ask().lookup)(subject, schema)
        self._objects.put_if_absent(key, b"%d" % found)
        return found

    def latest(self, subject: str) -> Schema | None:
        """The newest schema of a subject. Raises SystemAwayError."""
        return self._ask().latest(subject)

    def _ask(self) -> Registry:
        return open_registry(self._options)

    def _key(self, name: str) -> str:
        return self._paths.metadata(_NAMESPACE, f"{self._registry}:{name}")

    def _kept(self, name: str, ask: Callable[[], Schema]) -> Schema:
        key = self._key(name)
        try:
            return Schema.of_json(orjson.loads(self._objects.get(key)))
        except NotFoundError:
            pass
        except orjson.JSONDecodeError as error:
            raise CorruptError(f"`{key}` is no schema: {error}. Delete it, and start again") from error
        found = ask()
        self._objects.put_if_absent(key, orjson.dumps(found.to_json()))
        return found


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

    def registered(self, *, may_add: bool = True) -> Self:
        """The same, with the id of its schema, which is registered if need be, and if it may be added.

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
        return self._with(
            _id=connection.open().registered(self.subject, schema, register=may_add and registry.register)
        )

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


logger = logging.getLogger(__name__)


def with_registry(graph: ApplicationGraph, config: JobConfig) -> ApplicationGraph:
    """The graph whose serdes find the registry. Nothing is asked of it yet.

    Raises:
        ConfigError: a serde has a registry, and the configuration has no address of one.
    """
    given, paths = config.schema_registry, JobPaths(config.job.name, config.job.id)

    def connected(serde: Serde[Any]) -> Serde[Any]:
        if not isinstance(serde, SchemaSerde) or serde.registry is None:
            return serde
        options = _options(given, serde.registry.url)
        return serde.connected(Connection.of(options, config.job.root, config.job.root_keys, paths))

    return with_serdes(graph, connected)


def with_registered(graph: ApplicationGraph, *, may_add: bool = True) -> ApplicationGraph:
    """The graph whose outputs have the ids of their schemas, and whose inputs without a schema have the newest one of
    their subject. `may_add`: outputs may add their schemas to the registry.

    Raises:
        ConfigError: an output has no schema.
        IncompatibleError, NotFoundError, SystemAwayError, SystemRefusedError: the registry's answer.
    """
    inputs = {id(serde) for op in graph.sources for serde in (op.key_serde, op.value_serde)}
    graph = with_serdes(graph, lambda serde: _completed(serde) if id(serde) in inputs else serde)

    def registered(serde: Serde[Any]) -> Serde[Any]:
        return serde.registered(may_add=may_add) if isinstance(serde, SchemaSerde) else serde

    return with_output_serdes(graph, registered)


def _completed(serde: Serde[Any]) -> Serde[Any]:
    if not isinstance(serde, SchemaSerde) or serde.registry is None or serde.schema is not None:
        return serde
    try:
        return serde.completed()
    except SystemAwayError as error:
        logger.warning("%s. Messages are read with the schemas that this job has met before", error)
        return serde


def _options(given: Mapping[str, str], url: str | None) -> dict[str, str]:
    options = {**given, **({} if url is None else {"url": url})}
    if "url" not in options:
        raise ConfigError(
            f"`{SchemaRegistrySettings.url.name}` is missing: the application has a serde with a schema registry. Set "
            "it to the registry's address, as http://registry:8081"
        )
    return options


class SchemasStart(StartPart):
    """The part of schema registries in a start."""

    def connect(self, graph: ApplicationGraph, config: JobConfig) -> ApplicationGraph:
        """With serdes that know the registry, and have their schemas from it. A shadow adds none to it."""
        return with_registered(with_registry(graph, config), may_add=not config.job.shadow_enabled)
