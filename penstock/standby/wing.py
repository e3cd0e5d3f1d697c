"""Standbys as a wing: containers that keep other containers' stores warm, and follow the checkpoints. A board shows
their progress to commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Annotated

from penstock.base.documents import Count
from penstock.base.wording import duration_text
from penstock.checkpoint.record import CheckpointId
from penstock.facts import Column, Facts, FactTable
from penstock.job.board import Board, last_run
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.wing import Wing
from penstock.wire.protocol import Call, Markers, Request, of_tasks

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
    facts="penstock.standby.wing:standby_shown",
)


@dataclass(frozen=True, slots=True)
class StandbyFacts:
    """A standby of one task."""

    task: Annotated[int, Column("task", right=True)]
    container: Annotated[str, Column("container", first_to_go=True)]
    checkpoint_id: Annotated[str | None, Column("checkpoint", absent="none yet")]
    """The checkpoint that it is at; None as long as it has no copy of every store."""
    behind_ms: Annotated[int | None, Column("behind", duration_text, right=True, most_first=True)]
    """The time between that checkpoint and the last one."""
    doing: Annotated[str, Column("does", lambda doing: doing or "waits for the next checkpoint")]
    """Its work, or its last failure; empty if it waits for the next checkpoint."""


@dataclass(frozen=True, slots=True)
class RunStandbys:
    """The standbys of a run."""

    run_id: str
    standbys: tuple[StandbyFacts, ...]


def standby_board(objects: ObjectStore, paths: JobPaths) -> Board[RunStandbys]:
    """The board that the driver replaces whenever something has changed."""
    damage = "does not hold the standbys of a run. Delete it: nothing depends on it. The cause"
    return Board(objects, last_run(paths, "standbys"), RunStandbys, damage)


def standby_shown(objects: ObjectStore, paths: JobPaths, run_id: str | None) -> Facts:
    """The facts about the standbys of a run as of a few seconds ago; none without a run."""
    found = None if run_id is None else standby_board(objects, paths).get_of(run_id)
    return Facts(tables=(FactTable("Standbys", found.standbys),)) if found is not None and found.standbys else Facts()
