"""Opens registries: by the client of confluent-kafka, or in the memory of a process, for tests.

A call to a registry ends in time, and takes answers of a limited size. A schema comes with those that it refers to.
Whoever may register schemas decides which these are, so their number and size are limited. The client is an extra.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, NoReturn, TypeAlias, TypeVar
from urllib.parse import urlsplit

from penstock.base.exact_json import float_of, whole_of
from penstock.base.http_hosts import is_loopback
from penstock.errors import ConfigError, IncompatibleError, NotFoundError, SystemAwayError, SystemRefusedError
from penstock.schemas.avro_types import why_unreadable
from penstock.schemas.registry import KINDS, UNKNOWN_VERSION, Reference, Registry, Schema

T = TypeVar("T")

ANSWER_BYTES: Final = 8 << 20
"""The largest answer that is read. Registries take schemas of a megabyte or less."""
SLOWEST_S = 60.0
"""The longest time of a call besides its attempts to connect."""
PATIENCE_S = 600.0
"""The time for which an error that may pass is waited for, if there is no other answer meanwhile."""
MAY_PASS: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of answers after which the same request may succeed."""
_MALFORMED: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Errors of an answer that is there, and is none of a registry."""
_MOST_LEFT = 8
_IDENTITY = ("", "identity")


class RefusedAnswerError(ValueError):
    """An answer that is not read."""


class Calls:
    """Makes the calls to one registry."""

    def __init__(self, client: Any, options: Mapping[str, Any]) -> None:
        """
        Args:
            client: of confluent-kafka.
            options: of that client.
        """
        session = client._rest_client.session  # noqa: SLF001 - nothing else has the answers as they come
        session.headers["Accept-Encoding"] = "identity"  # a compressed answer may be of any size
        session.event_hooks = {"response": [_read]}
        attempts = (float(options["max.retries"]) + 1) * len(str(options["url"]).split(","))
        self._deadline_s = attempts * (2 * float(options["timeout"]) + float(options["retries.max.wait.ms"]) / 1000)
        self._left: list[threading.Thread] = []
        self._since: dict[str, float] = {}

    def make(self, call: Callable[[], T]) -> T:
        """The result of a call. Raises whatever it raises, or TimeoutError."""
        self._left = [each for each in self._left if each.is_alive()]
        if len(self._left) >= _MOST_LEFT:
            raise TimeoutError("earlier calls have not ended yet")
        results: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(call())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="schema-registry", daemon=True)
        thread.start()
        limit_s = self._deadline_s + SLOWEST_S
        thread.join(limit_s)
        if errors:
            raise errors[0]
        if not results:
            self._left.append(thread)
            raise TimeoutError(f"its answer is not complete after {limit_s:.0f} s")
        return results[0]

    def may_pass(self, what: str, error: Exception) -> bool:
        """True if the same request may succeed later, and has not failed for too long.

        Args:
            what: the request.
            error: its failure.
        """
        status = status_of(error)
        if status is None:
            return not isinstance(error, _MALFORMED)
        if status not in MAY_PASS:
            return False
        now = time.monotonic()
        if len(self._since) >= 1000:
            del self._since[next(iter(self._since))]
        return now - min(self._since.setdefault(what, now), self._since.setdefault("", now)) < PATIENCE_S

    def succeeded(self, what: str) -> None:
        """Forget earlier failures of a request."""
        self._since.pop(what, None)
        self._since.pop("", None)


def status_of(error: Exception) -> int | None:
    """The status of an answer; None if there was none."""
    found = getattr(error, "http_status_code", None)
    return found if isinstance(found, int) else None


def text_of(error: Exception) -> str:
    """The text of an error, cut: a registry may answer with any."""
    text = str(getattr(error, "error_message", "") or error or type(error).__name__)
    return text if len(text) <= 500 else f"{text[:500]}..."


def plain_credentials(options: Mapping[str, str]) -> str | None:
    """The address to which the options send a password or a token without encryption; None if there is none.

    Example:
        >>> plain_credentials({"url": "http://registry:8081", "basic.auth.user.info": "a:b"})
        'registry:8081'
        >>> plain_credentials({"url": "http://127.0.0.1:8081", "basic.auth.user.info": "a:b"}) is None
        True
    """
    has_any = any(name.startswith(("basic.auth.user", "bearer.auth.")) for name in options)
    for url in options.get("url", "").split(","):
        place = urlsplit(url.strip())
        if place.scheme == "http" and (has_any or place.password) and not is_loopback(place.hostname or ""):
            return place.netloc.rpartition("@")[2]
    return None


def _read(response: Any) -> None:
    """Reads an answer, before the client does so without a limit."""
    if response.headers.get("Content-Encoding", "") not in _IDENTITY:
        raise RefusedAnswerError("the answer is compressed, though nobody asked for that")
    found = bytearray()
    for piece in response.iter_raw():
        found += piece
        if len(found) > ANSWER_BYTES:
            raise RefusedAnswerError(f"the answer has more than {ANSWER_BYTES:,} bytes")
    response._content = bytes(found)  # noqa: SLF001 - where `read` of the client leaves it


Ask: TypeAlias = Callable[[str, int], Any]
"""The registry's schema of a subject and a version."""

_MOST: Final = 500
_LEVELS: Final = 32
_SCHEMA_BYTES: Final = 16 << 20
_BYTES_EACH = 1 << 10
"""Beside the text. A schema counts as often as others refer to it: it is written out there."""


def collected(found: Any, ask: Ask) -> Schema:
    """A schema of a registry, with those that it refers to.

    Args:
        found: as confluent-kafka has it.
        ask: gives the others. Each is asked for once.

    Raises:
        ValueError: it refers to itself, or they are too many, too deep or too large.
    """
    return _Collection(ask).schema(found, _LEVELS)[0]


@dataclass(slots=True)
class _Collection:
    ask: Ask
    known: dict[tuple[str, int], tuple[Schema, int] | None] = field(default_factory=dict)
    """Each with its size; None while those are looked for that it refers to."""

    def schema(self, found: Any, levels: int) -> tuple[Schema, int]:
        kind, text = found.schema_type or "AVRO", found.schema_str
        if kind not in KINDS or not isinstance(text, str):
            raise ValueError(f"it is a schema of the kind {kind!r}")
        if not levels:
            raise ValueError(f"schemas refer to each other over more than {_LEVELS} levels")
        references, size = [], len(text) + _BYTES_EACH
        for each in found.references or ():
            schema, own = self._referred(str(each.subject), int(each.version), levels)
            size += own
            if size > _SCHEMA_BYTES:
                raise ValueError(f"the schemas that it refers to have more than {_SCHEMA_BYTES:,} bytes together")
            references.append(Reference(str(each.name), str(each.subject), int(each.version), schema))
        return Schema(kind, text, tuple(references)), size

    def _referred(self, subject: str, version: int, levels: int) -> tuple[Schema, int]:
        key = subject, version
        if key not in self.known:
            if len(self.known) >= _MOST:
                raise ValueError(f"it refers to more than {_MOST} schemas")
            self.known[key] = None
            self.known[key] = self.schema(self.ask(subject, version), levels - 1)
        known = self.known[key]
        if known is None:
            raise ValueError(f"schema {version} of subject `{subject}` refers to itself")
        return known


logger = logging.getLogger(__name__)

MEMORY = "memory://"
_NUMBERS = ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity")
_DEFAULTS = {
    "timeout": "10",
    "max.retries": "2",
    "retries.wait.ms": "100",
    "retries.max.wait.ms": "1000",
    "cache.capacity": "100",
}
"""The client's own timeout is none at all. A job waits for a registry that is away by itself, and keeps schemas."""
_INCOMPATIBLE = 409
_INVALID = 422
_NOT_FOUND = 404
_UNAUTHORISED = (401, 403)


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
                given[name] = float_of(given[name]) if name == "timeout" else whole_of(given[name])
        registry = ConfluentRegistry(SchemaRegistryClient(given), given)
    except (ValueError, TypeError, OSError) as error:
        raise ConfigError(f"the configuration of the schema registry: {error}") from error
    if (address := plain_credentials(dict(options))) is not None:
        logger.warning(
            "`schema.registry.url` is http://%s: the network can read the password or token that goes there. Use https",
            address,
        )
    return registry


class ConfluentRegistry:
    """A registry with the API of Confluent's."""

    def __init__(self, client: Any, options: Mapping[str, Any]) -> None:
        self._client = client
        self._calls = Calls(client, options)
        self._url = str(options["url"]).rpartition("@")[2]

    def schema(self, schema_id: int) -> Schema:
        what = f"schema {schema_id}"
        return self._collected(what, self._ask(what, lambda: self._client.get_schema(schema_id)))

    def latest(self, subject: str) -> Schema | None:
        what = f"the newest schema of subject `{subject}`"
        try:
            return self._collected(what, self._ask(what, lambda: self._client.get_latest_version(subject).schema))
        except NotFoundError:
            return None

    def register(self, subject: str, schema: Schema) -> int:
        what = f"a schema of subject `{subject}`"
        given = _given(self._with_versions(what, schema))
        return int(
            self._ask(
                what,
                lambda: self._client.register_schema(subject, given, normalize_schemas=True),
                lambda error: self._refused(subject, error),
            )
        )

    def lookup(self, subject: str, schema: Schema) -> int:
        what = f"this schema of subject `{subject}`"
        given = _given(self._with_versions(what, schema))
        found = self._ask(what, lambda: self._client.lookup_schema(subject, given, normalize_schemas=True))
        return int(found.schema_id)

    def _with_versions(self, what: str, schema: Schema) -> Schema:
        """The schema, once the registry has the schemas that it refers to."""
        references = []
        for each in schema.references:
            own = self._with_versions(what, each.schema)
            if each.version == UNKNOWN_VERSION:
                version = self._version(what, each.subject, _given(own))
                references.append(replace(each, version=version, schema=own))
            else:
                references.append(each)
        return replace(schema, references=tuple(references))

    def _version(self, what: str, subject: str, given: Any) -> int:
        self._ask(
            what,
            lambda: self._client.register_schema(subject, given),
            lambda error: self._refused(subject, error),
        )
        return int(self._ask(what, lambda: self._client.lookup_schema(subject, given).version))

    def _collected(self, what: str, found: Any) -> Schema:
        def ask(subject: str, version: int) -> Any:
            return self._ask(what, lambda: self._client.get_version(subject, version).schema)

        try:
            return collected(found, ask)
        except ValueError as error:
            raise ConfigError(f"the registry {self._url}, asked for {what}: {error}") from error

    def _ask(self, what: str, call: Callable[[], Any], refused: Callable[[Exception], None] | None = None) -> Any:
        try:
            found = self._calls.make(call)
        except Exception as error:
            if refused is not None and status_of(error) in (_INCOMPATIBLE, _INVALID):
                refused(error)
            self._fail(error, what)
        self._calls.succeeded(what)
        return found

    def _refused(self, subject: str, error: Exception) -> NoReturn:
        try:
            versions = ", ".join(map(str, self._calls.make(lambda: self._client.get_versions(subject))))
        except Exception:
            versions = "unknown"
        raise IncompatibleError(
            f"the registry {self._url} refuses the schema of subject `{subject}` (its versions: {versions or 'none'}): "
            f"{text_of(error)}. Change the schema so that readers of the others can read it, or allow more in the "
            "registry for this subject"
        ) from error

    def _fail(self, error: Exception, what: str) -> NoReturn:
        status, text = status_of(error), text_of(error)
        if status == _NOT_FOUND:
            self._calls.succeeded(what)  # it is an answer
            raise NotFoundError(f"the registry {self._url} does not have {what}: {text}") from error
        if status in _UNAUTHORISED:
            raise SystemRefusedError(
                f"the registry {self._url} refuses to give {what}: {text}. Set the user in "
                "`schema.registry.basic.auth.user.info`, or give that user the right"
            ) from error
        if self._calls.may_pass(what, error):
            raise SystemAwayError(f"the registry {self._url} does not answer a request for {what}: {text}") from error
        raise ConfigError(f"the registry {self._url}, asked for {what}: {text}") from error


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
