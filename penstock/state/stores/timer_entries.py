"""The entries of a store of timers, which `penstock/runtime/timers.py` writes, and a check of them."""

from __future__ import annotations

from penstock.state.engines.engine import Engine

BY_TIME = b"t"
"""Domain, time, key and name: one for each timer, without a value."""
BY_KEY = b"k"
"""Domain, key and name: one for each timer, with the time as its value."""
TIME = slice(2, 10)
"""The time in an entry by time."""
NAMED = 10
"""The position of key and name in an entry by time."""


def in_other_order(by_key: bytes, time: bytes) -> bytes:
    """The entry by time of a timer, from its entry by key."""
    return BY_TIME + by_key[1:2] + time + by_key[2:]


def timer_problem(engine: Engine) -> str | None:
    """The first difference between the two orders of entries, or None. Reads everything."""
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
