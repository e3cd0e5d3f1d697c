"""The actions of the run loop. Values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import Control
from penstock.batch.losses import Loss
from penstock.batch.offered_batch import OfferedBatch
from penstock.batch.ranges import BatchRanges
from penstock.driver.feed.boundary import BatchTime


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """Run a batch."""

    ranges: BatchRanges
    latest: Mapping[SystemStreamPartition, int]
    """The next offset that every input partition assigns, as of the planning."""
    moment: BatchTime
    control: Control = "none"
    closes: frozenset[str] | None = None
    """The operators that the control is for; None: all that are left."""
    offered: OfferedBatch | None = None
    """The query's batch that it belongs to; None: none."""
    rests: frozenset[str] = frozenset()
    """The operators that do nothing in it. No message comes to them."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Do nothing before `until`, on the run's monotonic clock, in seconds."""

    until: float
    looked: bool = True
    """False if the inputs were not looked at, because it is too early for another batch."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Continue after messages that were deleted before they were read (`streams.<id>.on.data.loss`)."""

    losses: tuple[Loss, ...]


@dataclass(frozen=True, slots=True)
class End:
    """There is nothing left to do: the run ends with its last commit."""


Next: TypeAlias = PlannedBatch | Idle | Skip | End
