"""Draining as a wing: requests to process everything in flight, and then to end. A board shows the progress of a drain
to commands, stage by stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from penstock.base.wording import counted, listed
from penstock.facts import Column, Facts, FactTable
from penstock.job.board import Board, last_run
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.wing import Wing

DRAIN_WING = Wing("drain", driver="penstock.drain.driver:Drain")


DrainPhase: TypeAlias = Literal["draining", "committing", "drained"]
_TITLES: dict[DrainPhase, str] = {
    "draining": "Drain, as of the last batch",
    "committing": "Drain: everything is processed, and the last commit is under way",
    "drained": "Drained: what was processed since the request",
}


@dataclass(frozen=True, slots=True)
class StageDrain:
    """The work of one stage since the run noticed the request to drain.

    Counts are of batches that have ended. After a rewind they are without the batches that were dropped.
    """

    stage: Annotated[int, Column("stage", right=True)]
    names: Annotated[tuple[str, ...], Column("operators or outputs", ", ".join)]
    """The ids of its operators; for the stage that writes, the outputs."""
    messages: Annotated[int, Column("messages", right=True)] = 0
    """The number of messages read; for the stage that writes, of messages written."""
    panes: Annotated[int, Column("panes", right=True)] = 0
    timers: Annotated[int, Column("timers", right=True)] = 0
    joined: Annotated[int, Column("joined", right=True, first_to_go=1)] = 0
    """Results of joins that had waited: without a partner, or until a table was complete up to their time."""
    left: Annotated[int, Column("left", right=True, of=lambda e: 0 if e.ended else e.left or None)] = 0
    """Messages that wait for this stage in durable intermediate streams."""
    ended: bool = False

    @property
    def counts(self) -> str:
        counts = [counted(self.messages, "message")]
        counts += [counted(self.panes, "pane")] if self.panes else []
        counts += [counted(self.timers, "timer")] if self.timers else []
        counts += [counted(self.joined, "result") + " of joins"] if self.joined else []
        return listed(counts)

    def __str__(self) -> str:
        left = f", {counted(self.left, 'message')} left" if self.left else ""
        return f"stage {self.stage} ({', '.join(self.names)}): {self.counts}{left}"


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """A drain at one moment; in phase `drained`, its summary.

    `phase` is `draining` while there is something to process, `committing` during the last commit, then `drained`.

    Example:
        >>> from penstock.drain.wing import DrainProgress, StageDrain
        >>> str(DrainProgress("3f2a", stages=(StageDrain(1, ("hours",), messages=2, panes=3, timers=1),)))
        'stage 1 (hours): 2 messages, 3 panes and 1 timer'
    """

    run_id: str
    requests: tuple[str, ...] = ()
    phase: DrainPhase = "draining"
    stages: tuple[StageDrain, ...] = ()
    """In topological order. The last one writes the outputs."""
    waits_for: str = ""
    """The reason why the running batch does not end, in words; empty if it is not known."""

    def __str__(self) -> str:
        return "; ".join(map(str, self.stages))

    def as_facts(self, *, running: bool = True) -> Facts:
        """Each stage, and the reason why the drain does not end. `running`: a driver has the job."""
        waits = f"It {'waits' if running else 'waited'} for: {self.waits_for}" if self.waits_for else ""
        return Facts({}, (FactTable(_TITLES[self.phase], self.stages, note=waits),))


def drain_board(objects: ObjectStore, paths: JobPaths) -> Board[DrainProgress]:
    """The board that the driver replaces from time to time. It is of the last run that drained, or began to."""
    damage = "does not hold the progress of a drain. Delete it: nothing depends on it. The cause"
    return Board(objects, last_run(paths, "drain-progress"), DrainProgress, damage)
