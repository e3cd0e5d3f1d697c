"""The system that a job's run waits for, on a board for commands."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base.wording import utc_text
from penstock.job.board import Board, last_run
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Outage:
    """A system that a run waits for."""

    since_ms: int
    """The first time that it did not answer, in epoch milliseconds."""
    reason: str
    """The system, its place, the request to it, and why there is no answer, as of the last try."""

    def __str__(self) -> str:
        return f"waits since {utc_text(self.since_ms)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RunOutage:
    """The outage of a run. None: the run waits for nothing."""

    run_id: str
    outage: Outage | None


def outage_board(objects: ObjectStore, paths: JobPaths) -> Board[RunOutage]:
    """The board that the driver replaces whenever the outage has changed."""
    damage = "does not hold what a run waits for. Delete it: nothing depends on it. The cause"
    return Board(objects, last_run(paths, "outage"), RunOutage, damage)
