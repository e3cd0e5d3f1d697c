"""The schemas that a job has met, kept under its root: a restart needs no registry for them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import orjson

from penstock.base.signing import RootKeys
from penstock.errors import CorruptError, NotFoundError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_root
from penstock.objects.store import ObjectStore
from penstock.schemas.client import open_registry
from penstock.schemas.registry import Registry
from penstock.schemas.schema import Schema

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
