"""Compares the two orders of a store of timers."""

from __future__ import annotations

from penstock.state.engines.engine import Engine
from penstock.state.stores.timer_entries import BY_KEY, BY_TIME, in_other_order


def timer_problem(engine: Engine) -> str | None:
    """The first inconsistency, or None. Reads everything."""
    by_key = by_time = 0
    for entry, value in engine.scan(None, None):
        if entry[:1] == BY_KEY:
            if engine.get(in_other_order(entry, value)) is None:
                return f"a timer is found by its key, not by its time: {entry[2:]!r}"
            by_key += 1
        elif entry[:1] == BY_TIME:
            by_time += 1
        else:
            return f"an entry is of no timer: {entry!r}"
    if by_key != by_time:
        return f"{by_time:,} timers are found by their times, and {by_key:,} by their keys"
    return None
