"""The progress of a drain, or its summary, on a board for commands."""

from __future__ import annotations

from penstock.drain.progress import DrainProgress
from penstock.job.board import Board, last_run
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore


def drain_board(objects: ObjectStore, paths: JobPaths) -> Board[DrainProgress]:
    """The board that the driver replaces from time to time. It is of the last run that drained, or began to."""
    damage = "does not hold the progress of a drain. Delete it: nothing depends on it. The cause"
    return Board(objects, last_run(paths, "drain-progress"), DrainProgress, damage)
