"""The batch: what the driver chooses once and every run of the batch repeats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Control: TypeAlias = Literal["none", "end-of-stream", "drain"]


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, as every stage, attempt and call to a container gets it.

    The driver chooses it once. A run that failed is repeated with the same values and the next `run`. Stages and
    attempts see no other clock than `time_ms`.

    Example:
        >>> Batch(number=7, run=1, time_ms=1_700_000_000_000).next_run().run
        2
    """

    number: int
    """Counts the batches of the job, from 1. After a rewind the numbers behind the checkpoint are used again."""
    run: int
    """Counts the executions of the batch within its epoch, from 1."""
    time_ms: int
    """The batch time, in epoch milliseconds. It never falls from one batch to the next."""
    control: Control = "none"
    """Whether the batch ends its inputs, or drains the job. Every batch of today is `none`."""

    @property
    def last_ended(self) -> int:
        """The number of the batch that must have ended before this one runs."""
        return self.number - 1

    def next_run(self) -> Batch:
        """The same batch, run again."""
        return replace(self, run=self.run + 1)

    def __str__(self) -> str:
        return f"batch {self.number} run {self.run}"


NO_BATCH = Batch(-1, -1, 0)
"""Before the first batch of an epoch: no attempt is of it."""
