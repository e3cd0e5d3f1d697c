"""The phase of a job's run, on a board for commands and the dashboard."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.job.board import Board, last_run
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore


@dataclass(frozen=True, slots=True)
class RunPhase:
    """The phase of a run: see `Job.phase`."""

    run_id: str
    phase: str
    since_ms: int
    """The begin of the phase, in epoch milliseconds."""
    driver: str
    """The token of the driver's lease: a start after a crash keeps the id of the run."""
    progress: str = ""
    """The progress of a restore, a bootstrap or a publication, in words; empty in other phases."""


def phase_board(objects: ObjectStore, paths: JobPaths) -> Board[RunPhase]:
    """The board that the driver replaces whenever the phase or its progress has changed."""
    damage = "does not hold the phase of a run. Delete it: nothing depends on it. The cause"
    return Board(objects, last_run(paths, "phase"), RunPhase, damage)
