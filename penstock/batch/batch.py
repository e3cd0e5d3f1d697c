"""The batch: chosen once by the driver, and the same in every run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from penstock.api.time.watermarks import END_OF_TIME as END_OF_TIME
from penstock.api.time.watermarks import NO_WATERMARK as NO_WATERMARK
from penstock.batch.suspects import Culprit, WatchedTask

Due: TypeAlias = tuple[int | None, int | None]
"""The times of an operator's oldest timers in epoch milliseconds: in event time, and in processing time. None: it has
none."""

NOTHING_DUE: Due = (None, None)


def earlier(one: Due, other: Due) -> Due:
    """The earlier one of both, in each of the two times."""
    found = [min((each for each in pair if each is not None), default=None) for pair in zip(one, other, strict=True)]
    return found[0], found[1]


Control: TypeAlias = Literal["none", "end-of-stream", "drain", "drain-operators"]
"""The end that a batch brings. `drain-operators`: a drain for the operators that it closes, and for no others."""

Ending: TypeAlias = Literal["end-of-stream", "drain"]
"""The end of an operator, as the operator sees it."""


def is_new_period(before_ms: int | None, time_ms: int, period_ms: int) -> bool:
    """True if another period has begun since the previous batch. False for the first batch."""
    return before_ms is not None and period_ms > 0 and before_ms // period_ms != time_ms // period_ms


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
    """Counts the batches of the job, from 1. After a rewind the numbers after the checkpoint are used again."""
    run: int
    """Counts the executions of the batch within its epoch, from 1."""
    time_ms: int
    """The batch time, in epoch milliseconds. It never falls from one batch to the next."""
    control: Control = "none"
    """The batch ends its inputs, or drains the job."""
    late: Mapping[str, int] = field(default_factory=dict)
    """By operator id, the firing watermark of the previous batch, in epoch milliseconds; absent: NO_WATERMARK. A
    message with an event time below it is late."""
    firing: Mapping[str, int] = field(default_factory=dict)
    """By operator id, the watermark up to which event-time timers and windows fire in the end-of-input step; absent:
    NO_WATERMARK. It is never below `late`."""
    held: Mapping[str, int] = field(default_factory=dict)
    """By operator id, the output watermark of the operators with due timers of earlier batches: it is below the
    oldest."""

    before_ms: int | None = None
    """The time of the previous batch, in epoch milliseconds; None: this is the first batch of the job."""
    closes: tuple[str, ...] | None = None
    """The operators that the control is for, if durable intermediate streams divide the application, or only these are
    drained; None: all."""
    closed: tuple[str, ...] = ()
    """The operators that an earlier batch has closed, and those that wait until others have drained alone. They do
    nothing by themselves."""
    tables: Mapping[str, int] = field(default_factory=dict)
    """By pushed table, the version that the batch reads."""
    quiet: bool = False
    """Nothing is sent to outputs: messages are read again whose output was sent before. Dead letters are sent."""
    watched: tuple[WatchedTask, ...] = ()
    """The tasks in which processes have ended. May differ between runs."""
    culprits: tuple[Culprit, ...] = ()
    """The messages that are dead letters for having ended their processes. May differ between runs."""

    @property
    def last_ended(self) -> int:
        return self.number - 1

    def late_watermark(self, operator: str) -> int:
        """Messages of the operator with an event time below it are late."""
        return self.late.get(operator, NO_WATERMARK)

    def firing_watermark(self, operator: str) -> int:
        """Timers and windows of the operator up to this event time fire at the end of the batch's input."""
        return self.firing.get(operator, NO_WATERMARK)

    def output_watermark(self, operator: str) -> int:
        """Timers and windows of the operator up to this event time must fire in this batch: operators downstream take
        it as complete. Later ones, up to the firing watermark, may fire in one of the next batches."""
        return self.held.get(operator, self.firing_watermark(operator))

    def earliest_output(self, operator: str) -> int:
        """A result of the operator with this event time or a later one is late at no later operator."""
        return min(self.late_watermark(operator), self.output_watermark(operator) + 1)

    @property
    def ending(self) -> Ending | None:
        """The end that the batch brings, whether to all operators or to some; None: none."""
        if self.control == "none":
            return None
        return "end-of-stream" if self.control == "end-of-stream" else "drain"

    def seen_by(self, operator: str) -> Batch:
        """The batch as the operator gets it: the control of others is not its own."""
        if self.control == "none" or self.closes is None or operator in self.closes:
            return self
        return replace(self, control="none")

    def ends(self, operator: str) -> bool:
        """True if this batch or an earlier one brings the operator to its end."""
        return operator in self.closed or self.seen_by(operator).control != "none"

    def begins_period(self, period_ms: int) -> bool:
        """True if it is the first batch of a period of batch time. Periods begin at multiples of `period_ms`; below 1,
        there are none."""
        return is_new_period(self.before_ms, self.time_ms, period_ms)

    def with_suspects(self, watched: tuple[WatchedTask, ...], culprits: tuple[Culprit, ...]) -> Batch:
        return replace(self, watched=watched, culprits=culprits)

    def next_run(self) -> Batch:
        return replace(self, run=self.run + 1)

    def __str__(self) -> str:
        return f"batch {self.number} run {self.run}"


NO_BATCH = Batch(-1, -1, 0)
"""The time before the first batch of an epoch. No attempt belongs to it."""
