"""Time limits of steps without a message: timers and windows that fire, drains, and writes of outputs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from penstock.batch.batch import Batch
from penstock.errors import PenstockTimeoutError
from penstock.runtime.operators.base import Firing, Firings


@dataclass(frozen=True, slots=True)
class StepLimit:
    """The time that one step of a batch may take."""

    key: str = "container.attempt.timeout.ms"
    ms: int | None = None
    """Milliseconds; 0 or less: no limit. None: a step that makes no progress is given up like a message that does not,
    and the batch runs again."""
    drains: bool = False

    @property
    def is_general(self) -> bool:
        return self.ms is None

    def is_over(self, began: float | None, now: float) -> bool:
        """True if a step has taken too long.

        Args:
            began, now: on the machine's monotonic clock, in seconds; None: nothing runs.
        """
        return began is not None and self.ms is not None and 0 < self.ms < (now - began) * 1000

    def error(self, what: str, took_s: float) -> PenstockTimeoutError:
        """The error for a step that took too long.

        Args:
            what: the step, in words.
            took_s: seconds so far.
        """
        then = " The run has not drained: its request stays, and the next start drains again." if self.drains else ""
        return PenstockTimeoutError(
            f"{what} has taken {took_s * 1000:,.0f} ms; {self.key} is {self.ms}.{then} Find out what it waits for, or "
            "set a longer time"
        )


GENERAL = StepLimit()


@dataclass(frozen=True, slots=True)
class StepLimits:
    """`task.callback.*.timeout.ms`, in milliseconds; 0 or less: no limit. None: the rule for messages holds."""

    drain_ms: int | None = None
    watermark_ms: int | None = None

    def of_operators(self, batch: Batch) -> StepLimit:
        """The limit for an operator of a task in its steps without a message."""
        if batch.ending == "drain":
            return self.of_outputs(batch)
        return StepLimit("task.callback.watermark.timeout.ms", self.watermark_ms)

    def of_outputs(self, batch: Batch) -> StepLimit:
        if batch.ending == "drain":
            return StepLimit("task.callback.drain.timeout.ms", self.drain_ms, drains=True)
        return GENERAL


@dataclass(slots=True)
class Step:
    """The step of an operator without a message, at the start or at the end of an attempt's input. May be read by any
    thread."""

    operator: str
    limit: StepLimit = GENERAL
    began: float = field(default_factory=lambda: time.monotonic())
    """On the machine's monotonic clock, in seconds."""
    firing: Firing | Firings | None = None

    def __str__(self) -> str:
        firing = self.firing
        what = "" if firing is None else firing.name if isinstance(firing, Firings) else firing.what or firing.name
        return f"operator `{self.operator}`" + (f" ({what})" if what else "")

    def late(self, stage: int, task: int) -> PenstockTimeoutError | None:
        """The error if it has taken too long; otherwise None. `stage` and `task` say where it runs."""
        now = time.monotonic()
        if not self.limit.is_over(self.began, now):
            return None
        return self.limit.error(f"{self} in task {task}, stage {stage}", now - self.began)
