"""The progress of a run's standbys, on a board for commands."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.job.board import Board, last_run
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore


@dataclass(frozen=True, slots=True)
class StandbyFacts:
    """A standby of one task."""

    task: int
    container: str
    checkpoint_id: str | None
    """The checkpoint that it is at; None as long as it has no copy of every store."""
    behind_ms: int | None
    """The time between that checkpoint and the last one."""
    doing: str
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
