"""Steps without a message: timers and windows that fire, drains, and writes of outputs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from penstock.errors import PenstockTimeoutError
from penstock.runtime.operators.base import Firing, Firings
from penstock.runtime.settings import GENERAL, StepLimit


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
