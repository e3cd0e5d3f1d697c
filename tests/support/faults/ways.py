"""Makes the batches of a job take both ways in turn."""

from __future__ import annotations

from itertools import cycle

from penstock.direct import two_ways
from penstock.direct.two_ways import BatchFacts, reason_for_spark


def alternate() -> None:
    """From now on, every other batch of this process is Spark's, whatever its size."""
    turns = cycle(("turn", ""))

    def reason(facts: BatchFacts) -> str:
        return next(turns) or reason_for_spark(facts)

    setattr(two_ways, "reason_for_spark", reason)  # noqa: B010 - mypy knows no name that another module imports
