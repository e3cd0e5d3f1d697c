"""Where a job stands between two batches. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.checkpoint.record import CheckpointRecord
from penstock.plan.portions import PortionRead
from penstock.plan.positions import Positions, TaskSsp, to_positions
from penstock.plan.ranges import BatchRanges
from penstock.runtime.batch import Batch, Control


@dataclass(frozen=True, slots=True)
class Boundary:
    """Everything up to the end of a batch: what a commit is of, and what the next batch continues from."""

    positions: Positions
    batch: int = 0
    """The last batch that has ended."""
    batch_time_ms: int = 0
    """The largest batch time so far, in epoch milliseconds."""

    @classmethod
    def of(cls, record: CheckpointRecord) -> Boundary:
        """Where the job stood at a checkpoint."""
        return cls(to_positions(record.next_offsets), record.batch, record.batch_time_ms)

    def next_batch(self, now_ms: int, runs: int, control: Control = "none") -> Batch:
        """The next batch. Its time is `now_ms`, but never before that of an older batch.

        Args:
            now_ms: the wall clock, in epoch milliseconds.
            runs: how many runs of a batch with this number have begun in this epoch.
        """
        return Batch(self.batch + 1, runs + 1, max(self.batch_time_ms, now_ms), control)

    def after(self, batch: Batch, planned: BatchRanges, read: Mapping[TaskSsp, PortionRead]) -> Boundary:
        """Where the job stands once the batch has ended. Raises RetryableError if it cannot have read this."""
        return Boundary(planned.advance(self.positions, read), batch.number, batch.time_ms)
