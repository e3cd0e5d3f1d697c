"""Output that is processed and committed, but not yet visible to readers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.documents import Count, Form, Positive, dataclass_form, each, mapping, text
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.sections import Section


@dataclass(frozen=True, slots=True)
class OutputPart:
    """The share of one output partition in an object."""

    chunks: Positive
    """The number of chunks, at least 1. Each is published in one atomic step."""
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
    parts: Mapping[SystemStreamPartition, OutputPart]


@dataclass(frozen=True, slots=True)
class UnpublishedObjects:
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

    unpublished: tuple[UnpublishedObjects, ...] = ()
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


@dataclass(frozen=True, slots=True)
class OutboxSection:
    """The exactly-once output that a record names."""

    objects: tuple[OutboxObject, ...] = ()
    """The objects with the output up to the checkpoint that no earlier record names. They are published under the
    number of the record in the log."""
    unpublished: tuple[UnpublishedObjects, ...] = ()
    """The objects of earlier records that the writer had not seen published, ascending by slot."""
    keepers: tuple[str, ...] = ()
    """The systems that were ever published to: each keeps its progress, under the name `publisher`."""
    publisher: str = ""


_OBJECT = dataclass_form(OutboxObject, parts=mapping(text(SystemStreamPartition.parse), Form(OutputPart)))
OUTBOX = Section(
    "outbox",
    OutboxSection,
    dataclass_form(
        OutboxSection,
        objects=each(_OBJECT),
        unpublished=each(dataclass_form(UnpublishedObjects, objects=each(_OBJECT))),
    ),
    needed=True,
)


def outbox_section(owed: OwedOutput, objects: Sequence[OutboxObject], publisher: str) -> OutboxSection:
    """The section of a new record.

    Args:
        owed: what earlier records leave to be published.
        objects: the objects that the record is the first to name.
        publisher: the name that the job publishes under.
    """
    keepers = {*owed.keepers, *(ssp.system for own in objects for ssp in own.parts)}
    return OutboxSection(tuple(objects), owed.unpublished, tuple(sorted(keepers)), publisher if keepers else "")


def owed_of(view: LogView) -> OwedOutput:
    """The output that the last checkpoint leaves to be published, whatever a start restores: first the output that its
    writer had not seen published, then its own."""
    latest = view.latest
    if latest is None:
        return OwedOutput()
    found = latest.section(OUTBOX)
    own = (UnpublishedObjects(view.slot_of(latest), found.objects),) if found.objects else ()
    return OwedOutput((*found.unpublished, *own), found.keepers, found.publisher)


def outbox_name(key: str) -> str:
    return key.rpartition("/")[2]
