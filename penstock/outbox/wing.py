"""Exactly-once output as a wing: what a commit takes of it is published once the checkpoint is in the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from penstock.outbox.unpublished import OutboxObject
from penstock.wing import Wing
from penstock.wire.calls import Call
from penstock.wire.protocol import Request


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
