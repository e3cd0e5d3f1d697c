"""Output that is processed and committed, but not yet visible to readers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.documents import Count, Positive


@dataclass(frozen=True, slots=True)
class Part:
    """The share of one output partition in an object."""

    chunks: Positive
    """At least 1. Each is published in one atomic step."""
    messages: Count


@dataclass(frozen=True, slots=True)
class OutboxObject:
    """The exactly-once output of one task in one commit, as an object of the job's store."""

    key: Annotated[str, msgspec.Meta(min_length=1)]
    """In the store of `job.root`. Its last part is the object's name in the outbox of the job's folder, which may have
    another name by now."""
    task: Count
    size_bytes: Count
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    parts: Mapping[SystemStreamPartition, Part]


@dataclass(frozen=True, slots=True)
class Unpublished:
    """The objects of one record, all of which may still have to be published."""

    slot: Count
    """The number of the record that named them first."""
    objects: tuple[OutboxObject, ...]

    @property
    def messages(self) -> int:
        """Their messages, published or not."""
        return sum(part.messages for each in self.objects for part in each.parts.values())

    @property
    def streams(self) -> frozenset[SystemStream]:
        return frozenset(ssp.system_stream for each in self.objects for ssp in each.parts)


@dataclass(frozen=True, slots=True)
class OwedOutput:
    """The output that the last record of a log still leaves to be published. Some of it may be published already."""

    unpublished: tuple[Unpublished, ...] = ()
    """Ascending by slot."""
    keepers: tuple[str, ...] = ()
    publisher: str = ""

    def after(self, slot: float) -> OwedOutput:
        """The rest, once everything up to the record of this number is published."""
        return replace(self, unpublished=tuple(each for each in self.unpublished if each.slot > slot))

    @property
    def messages(self) -> int:
        """Their messages, published or not."""
        return sum(each.messages for each in self.unpublished)

    @property
    def streams(self) -> frozenset[SystemStream]:
        return frozenset[SystemStream]().union(*(each.streams for each in self.unpublished))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(outbox_name(each.key) for own in self.unpublished for each in own.objects)


def outbox_name(key: str) -> str:
    return key.rpartition("/")[2]
