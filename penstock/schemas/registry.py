"""The declaration of a schema registry, a schema as its registry keeps it, and the protocol by which serdes reach
one. As a wing, a start asks registries for the schemas that the application's serdes need.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

from penstock.errors import ConfigError, CorruptError
from penstock.wing import Wing

SchemaKind: TypeAlias = Literal["AVRO", "PROTOBUF", "JSON"]
UNKNOWN_VERSION: Final = -1
"""In a reference to a schema that the registry may not have yet."""
KINDS: Final[tuple[SchemaKind, ...]] = ("AVRO", "PROTOBUF", "JSON")


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one uses: the name it has there, and its place in the registry."""

    name: str
    subject: str
    version: int
    schema: Schema


@dataclass(frozen=True, slots=True)
class Schema:
    """The text of a schema, and the schemas it refers to."""

    kind: SchemaKind
    text: str
    references: tuple[Reference, ...] = ()

    @property
    def digest(self) -> str:
        """Equal for equal schemas."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:32]

    def to_json(self) -> dict[str, Any]:
        """The schema as a JSON value."""
        return {
            "kind": self.kind,
            "text": self.text,
            "references": [
                {"name": each.name, "subject": each.subject, "version": each.version, "schema": each.schema.to_json()}
                for each in self.references
            ],
        }

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Schema:
        """The schema from its JSON value. Raises CorruptError if it is another value."""
        try:
            kind = found["kind"]
            if kind not in KINDS or not isinstance(found["text"], str):
                raise ValueError(f"kind {kind!r}")
            references = tuple(
                Reference(str(each["name"]), str(each["subject"]), int(each["version"]), cls.of_json(each["schema"]))
                for each in found["references"]
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"a kept schema is damaged: {type(error).__name__}: {error}") from error
        return cls(kind, found["text"], references)


Subjects: TypeAlias = Literal["topic", "record", "topic-record"]
Part: TypeAlias = Literal["key", "value"]


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """A schema registry with the API of Confluent's, as Apicurio and Karapace have it, too.

    Messages are in Confluent's wire format: a zero byte, the schema's id in four bytes, and the message. What was
    written with an earlier schema is read with that schema. At the start of a run, the schemas of outputs are
    registered, and the registry refuses one that is not compatible with those of its subject.

    The configuration says where the registry is, and how to log in: `schema.registry.url`, and the client's options
    after `schema.registry.`, such as `schema.registry.basic.auth.user.info` and `schema.registry.ssl.ca.location`.

    Args:
        url: another registry than the one in the configuration. Several addresses of one are separated by commas.
        subjects: the names under which schemas are registered. "topic": `<topic>-value` or `<topic>-key`. "record": the
            full name of the record, whatever the topic. "topic-record": `<topic>-<full name>`.
        register: whether a start registers schemas of outputs. If not, they must be in the registry already.

    Raises:
        ConfigError: an argument has another value.

    Example:
        >>> registry = ps.SchemaRegistry(subjects="record")
        >>> ps.Avro({"type": "record", "name": "Trip", "fields": []}, registry=registry)
        ps.Avro(Trip, registry=ps.SchemaRegistry())
    """

    url: str | None = None
    subjects: Subjects = "topic"
    register: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        if self.subjects not in ("topic", "record", "topic-record"):
            raise ConfigError(f"SchemaRegistry(subjects={self.subjects!r}): it is `topic`, `record` or `topic-record`")
        if self.url is not None and (not isinstance(self.url, str) or "://" not in self.url):
            raise ConfigError(f"SchemaRegistry(url={self.url!r}): an address is text, as http://registry:8081")
        if type(self.register) is not bool:
            raise ConfigError(f"SchemaRegistry(register={self.register!r}): expected True or False")

    def subject(self, topic: str, part: Part, record: str) -> str:
        """The name under which a schema is registered.

        Args:
            topic: of the messages.
            part: the part of the messages.
            record: the full name of the schema's record.
        """
        if self.subjects == "topic":
            return f"{topic}-{part}"
        return record if self.subjects == "record" else f"{topic}-{record}"


class Registry(Protocol):
    """The calls to a registry. All of them raise SystemAwayError if it does not answer, and SystemRefusedError if it
    refuses who asks."""

    def schema(self, schema_id: int) -> Schema:
        """The schema with this id. Raises NotFoundError."""
        ...

    def latest(self, subject: str) -> Schema | None:
        """The newest schema of a subject; None if there is none."""
        ...

    def register(self, subject: str, schema: Schema) -> int:
        """The id of the schema, which is added to the subject if it is not there. Raises IncompatibleError if the
        registry refuses it beside the subject's other schemas."""
        ...

    def lookup(self, subject: str, schema: Schema) -> int:
        """The id of the schema. Raises NotFoundError if the subject does not have it."""
        ...


def schema_text(given: object, ending: str, what: str) -> str:
    """The text of a schema.

    Args:
        given: the text, or the path of a file with it.
        ending: of such files: a text that ends so is a path.
        what: the beginning of errors.

    Raises:
        ConfigError: it is something else, or the file cannot be read.
    """
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(ending)):
        try:
            return Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{what}: the schema `{given}` cannot be read: {error}") from error
    if not isinstance(given, str):
        raise ConfigError(f"{what}: a schema is a dict, text, or the path of a file `*{ending}`, not {given!r}")
    return given


SCHEMAS_WING = Wing("schemas", start="penstock.schemas.serde:SchemasStart")
