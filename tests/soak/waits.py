"""Waits of the soak, and its failure."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 600.0
"""For one step, on a machine that others use as well."""


class BrokenError(AssertionError):
    """Something is not as it has to be."""


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait for a condition.

    Raises:
        BrokenError: it did not come true in time.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise BrokenError(f"waited {timeout_s:.0f} s in vain: {what}")
        time.sleep(0.1)
