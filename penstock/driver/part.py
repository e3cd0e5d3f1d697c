"""The part of a wing in the driver of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.checkpoint.record import CheckpointRecord
from penstock.driver.context import RunContext
from penstock.job.board import Shown
from penstock.plugins import load
from penstock.wing import Wing, wings
from penstock.wire.protocol import Markers


class DriverPart:
    """What a wing does in the driver of one run. By default it does nothing.

    The run loop's thread calls all methods that do not say otherwise. An error ends the epoch or the run, as errors of
    the loop do: a `RetryableError` leads to another try, a `ContainerLostError` to a new epoch.
    """

    def __init__(self, run: RunContext) -> None:
        self.run = run

    def restored(self, epoch: int, checkpoint_id: str, markers: Markers) -> None:
        """Every task is restored from this checkpoint. Not called if there is none. May raise nothing."""

    def enter(self, epoch: int) -> None:
        """An epoch is open, and its first batch waits for this. May wait, and raise what ends the epoch."""

    def look(self, epoch: int) -> None:
        """Called before each step of the loop. Does not wait."""

    def versions(self) -> Mapping[str, int]:
        """The versions of tables that the next batch reads. Called before a batch that has not begun: one that is
        repeated has those of its first run."""
        return {}

    def recorded(self, record: CheckpointRecord, markers: Markers) -> None:
        """A commit's record is in the log, with these markers, and its epoch has not been left. Called on the commit
        thread. Returns at once, and may raise nothing."""

    def shown(self) -> Sequence[Shown]:
        """The documents that commands read. Called once."""
        return ()

    def close(self) -> None:
        """End. No other call follows. Idempotent."""


def driver_parts(run: RunContext) -> tuple[DriverPart, ...]:
    """The parts of all wings in a run."""
    return tuple(_part(wing, run) for wing in wings() if wing.driver)


def _part(wing: Wing, run: RunContext) -> DriverPart:
    part: DriverPart = load(wing.driver)(run)
    return part
