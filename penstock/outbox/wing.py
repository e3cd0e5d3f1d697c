"""Exactly-once output as a wing: what a commit takes of it is published once the checkpoint is in the log.

Until then it is processed and committed, but not visible to readers. Messages that earlier records left to be published
are debts: here is whose they are.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

import msgspec

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.documents import Count, Form, Positive, dataclass_form, each, mapping, text
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.sections import Section
from penstock.job.identity import writer_name
from penstock.job.paths import JobPaths
from penstock.system.contract.definition import QUERY_SYSTEM
from penstock.wing import Wing
from penstock.wire.protocol import Call, Request


@dataclass(frozen=True, slots=True)
class OutputPart:
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


def own_debt(owed: OwedOutput, uid: str, paths: JobPaths) -> OwedOutput:
    """The part of a debt that is this job's, with the keys of objects in this job's folder.

    The uid ends the name of who publishes. A folder that was moved keeps its uid, and with it the name. The folder of a
    job with another uid is a copy: what its original had not published is the original's to publish. Rows for
    DataFrames are also the copy's, because it has a handler that may not have finished with them. Pure.
    """
    if owed.publisher and not owed.publisher.endswith(f"-{uid}"):
        rows = (_for_query(each) for each in owed.unpublished)
        owed = OwedOutput(tuple(each for each in rows if each.objects))
    return replace(owed, unpublished=tuple(_here(each, paths) for each in owed.unpublished))


def _for_query(owed: UnpublishedObjects) -> UnpublishedObjects:
    """The rows for DataFrames."""
    found = []
    for uploaded in owed.objects:
        parts = {ssp: part for ssp, part in uploaded.parts.items() if ssp.system == QUERY_SYSTEM}
        if parts:
            found.append(replace(uploaded, parts=parts))
    return replace(owed, objects=tuple(found))


def publisher_name(owed: OwedOutput, uid: str, paths: JobPaths) -> str:
    """The name that the job publishes under. `owed`: what of the job's debt is its own."""
    return owed.publisher or writer_name(paths, uid)


def _here(owed: UnpublishedObjects, paths: JobPaths) -> UnpublishedObjects:
    objects = tuple(replace(each, key=paths.outbox(outbox_name(each.key))) for each in owed.objects)
    return replace(owed, objects=objects)


class Debts:
    """The debt in the log, less the messages that this driver has published. Thread-safe.

    Inside a query, which takes over what a batch has sent to its DataFrames, outputs count as owed from `keep` until
    the query has taken them, so that every record names their objects.
    """

    def __init__(self, log: CheckpointLog, uid: str, paths: JobPaths) -> None:
        self._log = log
        self._uid = uid
        self._paths = paths
        self._lock = threading.Lock()
        self._published = -1
        """The output of the records up to this number is published."""
        self._taken: float = math.inf
        """A query has taken over the output of the records up to this number. Infinite: no query takes over any."""

    def now(self) -> OwedOutput:
        """Ascending by slot."""
        with self._lock:
            through = min(self._published, self._taken)
        return own_debt(owed_of(self._log.known()), self._uid, self._paths).after(through)

    def newest(self) -> int:
        """The number of the newest record of which anything can have been published: the last one that leaves
        anything, or one that is damaged or missing now."""
        view = self._log.known()
        left = own_debt(owed_of(view), self._uid, self._paths).unpublished
        return max(left[-1].slot if left else -1, *view.damaged, *view.faults, -1)

    def published(self, slot: int) -> None:
        """The output of the records up to this number is published."""
        with self._lock:
            self._published = max(self._published, slot)

    def taken(self) -> None:
        """The query has taken over everything that the last record names."""
        with self._lock:
            self._taken = max(self._taken, self.newest())

    def keep(self) -> None:
        """The job begins with the last record, or has gone back to it, and continues with all that it names."""
        with self._lock:
            self._taken = -1


@dataclass(frozen=True, slots=True)
class Publish(Request):
    """Publish objects of one record, and return once readers see all of their messages. Idempotent."""

    slot: int
    """Slot of the first record that named the objects. Slots are published one after the other."""
    objects: tuple[OutboxObject, ...]
    """Each task's are in the order of publication."""
    newest: int
    """Slot of the newest record that can have published messages before the call, or -1. An output that knows
    a later one is newer than the checkpoint log."""

    def for_tasks(self, tasks: Sequence[int]) -> Self:
        return replace(self, objects=tuple(each for each in self.objects if each.task in tasks))


@dataclass(frozen=True, slots=True)
class PublishProgress:
    """Progress of a publication. The last answer says that it is complete."""

    messages: int
    """Messages that readers see, including those that they saw before the call."""
    waits_for: str = ""
    """The reason for a pause, in words, while a system takes no messages."""


PUBLISH = Call("publish", Publish, PublishProgress, lambda config, spent_s: None)
OUTBOX_WING = Wing(
    "outbox",
    calls=(PUBLISH,),
    start="penstock.outbox.start:OutboxStart",
    driver="penstock.outbox.driver:OutboxDriver",
    container="penstock.outbox.container:OutboxContainer",
)
