"""The outbox part of a record: its written form. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Struct

from penstock.api.ssp import SystemStreamPartition
from penstock.documents import Count, Positive
from penstock.outbox.unpublished import OutboxObject, Part, Unpublished


def objects_body(objects: Iterable[OutboxObject]) -> list[dict[str, object]]:
    return [
        {
            "key": each.key,
            "task": each.task,
            "size-bytes": each.size_bytes,
            "sha256": each.sha256,
            "parts": {str(ssp): {"chunks": own.chunks, "messages": own.messages} for ssp, own in each.parts.items()},
        }
        for each in objects
    ]


def unpublished_body(unpublished: Iterable[Unpublished]) -> list[dict[str, object]]:
    return [{"slot": each.slot, "objects": objects_body(each.objects)} for each in unpublished]


class PartDocument(Struct):
    """The share of one output partition in an object."""

    chunks: Positive
    messages: Count


class ObjectDocument(Struct, rename="kebab"):
    """An object of an outbox."""

    key: Annotated[str, msgspec.Meta(min_length=1)]
    task: Count
    size_bytes: Count
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    parts: dict[str, PartDocument]

    def object(self) -> OutboxObject:
        parts = {SystemStreamPartition.parse(ssp): Part(own.chunks, own.messages) for ssp, own in self.parts.items()}
        return OutboxObject(self.key, self.task, self.size_bytes, self.sha256, parts)


class UnpublishedDocument(Struct):
    """The objects of one record."""

    slot: Count
    objects: tuple[ObjectDocument, ...]

    def unpublished(self) -> Unpublished:
        return Unpublished(self.slot, tuple(each.object() for each in self.objects))
