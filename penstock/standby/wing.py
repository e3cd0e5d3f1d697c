"""Standbys as a wing: containers that keep other containers' stores warm, and follow the checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import NoneType

from penstock.base.documents import Count
from penstock.checkpoint.id import CheckpointId
from penstock.wing import Wing
from penstock.wire.calls import Call
from penstock.wire.protocol import Markers, Request, of_tasks

FOLLOW_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Follow(Request):
    """Bring standbys to this checkpoint in the background. It is in the log, with these markers."""

    checkpoint_id: str
    markers: Markers
    """Only of the tasks for which the container is a standby."""

    def for_container(self, tasks: Sequence[int], standbys: Sequence[int]) -> Follow:
        return replace(self, markers=of_tasks(self.markers, standbys))


@dataclass(frozen=True, slots=True)
class StandbyState:
    """The progress of a standby of one task, in a heartbeat."""

    task: Count
    checkpoint_id: str | None
    """The oldest checkpoint that one of its stores is at; None as long as one of them has no copy."""
    wanted: str
    doing: str
    """Its present step in a few words, or its last failure; empty if it waits for the next checkpoint."""

    @property
    def behind_ms(self) -> int | None:
        if self.checkpoint_id is None:
            return None
        return CheckpointId.parse(self.wanted).millis - CheckpointId.parse(self.checkpoint_id).millis

    @property
    def is_ready(self) -> bool:
        """True if it has a copy of every store: only a tail can be missing."""
        return self.checkpoint_id is not None


FOLLOW = Call("follow", Follow, NoneType, lambda config, spent_s: FOLLOW_SECONDS)
STANDBY_WING = Wing(
    "standby",
    calls=(FOLLOW,),
    driver="penstock.standby.driver:StandbyDriver",
    container="penstock.standby.container:Standbys",
    facts="penstock.standby.shown:standby_shown",
)
