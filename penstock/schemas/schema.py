"""A schema as its registry keeps it. Values only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from penstock.errors import CorruptError

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
