"""The progress of a run's standbys, on a board for commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from penstock.base.wording import duration_text
from penstock.facts import Column, Facts, FactTable
from penstock.job.board import Board, last_run
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore


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
