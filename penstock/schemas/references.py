"""The schemas that a schema in a registry refers to. Whoever may register schemas decides which these are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from penstock.schemas.schema import KINDS, Reference, Schema

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
