"""Opens registries: by the client of confluent-kafka, or in the memory of a process, for tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NoReturn

from penstock.errors import ConfigError, IncompatibleError, NotFoundError, SystemAwayError, SystemRefusedError
from penstock.schemas.avro_resolution import why_unreadable
from penstock.schemas.registry import Registry
from penstock.schemas.schema import UNKNOWN_VERSION, Reference, Schema, SchemaKind

MEMORY = "memory://"
_NUMBERS = ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity")
_DEFAULTS = {"timeout": "10", "max.retries": "2", "retries.wait.ms": "100", "retries.max.wait.ms": "1000"}
"""The client's own timeout is none at all. A job waits for a registry that is away by itself."""
_INCOMPATIBLE = 409
_INVALID = 422
_NOT_FOUND = 404
_UNAUTHORISED = (401, 403)
_AWAY = 500


def open_registry(options: Mapping[str, str]) -> Registry:
    """The registry with these options of the client of confluent-kafka, of which `url` is one. Each process has one
    client for the same options. `memory://name` is a registry in the process.

    Raises:
        ConfigError: the options are not valid, or the client is not installed.
    """
    url = options.get("url", "")
    if url.startswith(MEMORY):
        return memory_registry(url)
    return _client(tuple(sorted({**_DEFAULTS, **options}.items())))


@lru_cache(maxsize=8)
def _client(options: tuple[tuple[str, str], ...]) -> Registry:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise ConfigError(
            "a schema registry needs confluent-kafka with its client of registries: install "
            f"`penstock-streams[registry]` ({error})"
        ) from error
    given: dict[str, Any] = dict(options)
    try:
        for name in _NUMBERS:
            if name in given:
                given[name] = float(given[name]) if name == "timeout" else int(given[name])
        return ConfluentRegistry(SchemaRegistryClient(given), given["url"])
    except (ValueError, TypeError, OSError) as error:
        raise ConfigError(f"the configuration of the schema registry: {error}") from error


class ConfluentRegistry:
    """A registry with the API of Confluent's."""

    def __init__(self, client: Any, url: str) -> None:
        self._client = client
        self._url = url.rpartition("@")[2]

    def schema(self, schema_id: int) -> Schema:
        try:
            return self._schema(self._client.get_schema(schema_id))
        except Exception as error:
            self._fail(error, f"schema {schema_id}")

    def latest(self, subject: str) -> Schema | None:
        try:
            return self._schema(self._client.get_latest_version(subject).schema)
        except Exception as error:
            if _status(error) == _NOT_FOUND:
                return None
            self._fail(error, f"the newest schema of subject `{subject}`")

    def register(self, subject: str, schema: Schema) -> int:
        try:
            return int(
                self._client.register_schema(subject, _given(self._with_versions(schema)), normalize_schemas=True)
            )
        except Exception as error:
            if _status(error) in (_INCOMPATIBLE, _INVALID):
                raise IncompatibleError(self._refusal(subject, error)) from error
            self._fail(error, f"a schema of subject `{subject}`")

    def lookup(self, subject: str, schema: Schema) -> int:
        try:
            return int(
                self._client.lookup_schema(
                    subject, _given(self._with_versions(schema)), normalize_schemas=True
                ).schema_id
            )
        except Exception as error:
            self._fail(error, f"this schema of subject `{subject}`")

    def _with_versions(self, schema: Schema) -> Schema:
        """The schema, once the registry has the schemas that it refers to."""
        references = []
        for each in schema.references:
            own = self._with_versions(each.schema)
            if each.version == UNKNOWN_VERSION:
                self._client.register_schema(each.subject, _given(own))
                version = int(self._client.lookup_schema(each.subject, _given(own)).version)
                references.append(replace(each, version=version, schema=own))
            else:
                references.append(each)
        return replace(schema, references=tuple(references))

    def _schema(self, found: Any) -> Schema:
        kind: SchemaKind = found.schema_type or "AVRO"
        references = []
        for each in found.references or ():
            schema = self._schema(self._client.get_version(each.subject, each.version).schema)
            references.append(Reference(each.name, each.subject, each.version, schema))
        return Schema(kind, found.schema_str, tuple(references))

    def _refusal(self, subject: str, error: Exception) -> str:
        try:
            versions = ", ".join(map(str, self._client.get_versions(subject)))
        except Exception:
            versions = "unknown"
        return (
            f"the registry {self._url} refuses the schema of subject `{subject}` (its versions: {versions or 'none'}): "
            f"{_text(error)}. Change the schema so that readers of the others can read it, or allow more in the "
            "registry for this subject"
        )

    def _fail(self, error: Exception, what: str) -> NoReturn:
        status, text = _status(error), _text(error)
        if status == _NOT_FOUND:
            raise NotFoundError(f"the registry {self._url} does not have {what}: {text}") from error
        if status in _UNAUTHORISED:
            raise SystemRefusedError(
                f"the registry {self._url} refuses to give {what}: {text}. Set the user in "
                "`schema.registry.basic.auth.user.info`, or give that user the right"
            ) from error
        if status is None or status >= _AWAY or status == 429:
            raise SystemAwayError(f"the registry {self._url} does not answer a request for {what}: {text}") from error
        raise ConfigError(f"the registry {self._url}, asked for {what}: {text}") from error


def _status(error: Exception) -> int | None:
    """The status of an answer; None if there was none."""
    found = getattr(error, "http_status_code", None)
    return found if isinstance(found, int) else None


def _text(error: Exception) -> str:
    return str(getattr(error, "error_message", "") or error or type(error).__name__)


def _given(schema: Schema) -> Any:
    from confluent_kafka.schema_registry import Schema as Given
    from confluent_kafka.schema_registry import SchemaReference

    references = [SchemaReference(each.name, each.subject, each.version) for each in schema.references]
    return Given(schema.text, schema.kind, references)


class MemoryRegistry:
    """A registry of one process. As registries do by default, it refuses a schema of Avro with which messages of the
    subject's newest schema cannot be read. It takes all others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._schemas: list[Schema] = []
        self._subjects: dict[str, list[int]] = {}

    def schema(self, schema_id: int) -> Schema:
        with self._lock:
            if not 1 <= schema_id <= len(self._schemas):
                raise NotFoundError(f"the registry in memory does not have schema {schema_id}")
            return self._schemas[schema_id - 1]

    def latest(self, subject: str) -> Schema | None:
        with self._lock:
            found = self._subjects.get(subject)
            return self._schemas[found[-1] - 1] if found else None

    def register(self, subject: str, schema: Schema) -> int:
        with self._lock:
            own = self._subjects.setdefault(subject, [])
            known = [self._schemas[found - 1] for found in own]
            if known and schema not in known and (why := _why_incompatible(known[-1], schema)):
                raise IncompatibleError(
                    f"the registry in memory refuses the schema of subject `{subject}`: messages of its newest schema "
                    f"(version {len(own)}) cannot be read with it: {why}"
                )
            if schema not in self._schemas:
                self._schemas.append(schema)
            found = self._schemas.index(schema) + 1
            if found not in own:
                own.append(found)
            return found

    def lookup(self, subject: str, schema: Schema) -> int:
        with self._lock:
            for found in self._subjects.get(subject, ()):
                if self._schemas[found - 1] == schema:
                    return found
        raise NotFoundError(f"the registry in memory does not have this schema of subject `{subject}`")


def _why_incompatible(before: Schema, schema: Schema) -> str:
    if before.kind != schema.kind:
        return f"it is {schema.kind}, and the other {before.kind}"
    return why_unreadable(json.loads(before.text), json.loads(schema.text)) if schema.kind == "AVRO" else ""


@lru_cache(maxsize=64)
def memory_registry(url: str) -> MemoryRegistry:
    """The registry of this name in the process."""
    return MemoryRegistry()
