"""The progress of a drain as a table."""

from __future__ import annotations

from penstock.cli.shared.output import print_table
from penstock.drain.progress import DrainProgress, StageDrain

_TITLES = {
    "draining": "Drain, as of the last batch",
    "committing": "Drain: everything is processed, and the last commit is under way",
    "drained": "Drained: what was processed since the request",
}
_COLUMNS = ("stage", "operators or outputs", "messages", "panes", "timers", "joined", "left")


def print_drain(drain: DrainProgress, *, running: bool = True) -> None:
    """Each stage of a drain, and what it waits for, or waited for when its driver was lost."""
    rows = [_row(stage) for stage in drain.stages]
    right = "stage messages panes timers joined left"
    print_table(_TITLES[drain.phase], _COLUMNS, rows, right=right, first_to_go="joined")
    if drain.waits_for:
        print_table("", ("it waits for" if running else "it waited for",), [(drain.waits_for,)])


def _row(stage: StageDrain) -> tuple[object, ...]:
    left = "0" if stage.ended else stage.left or None
    names = ", ".join(stage.names)
    return (stage.stage, names, stage.messages, stage.panes, stage.timers, stage.joined, left)
