"""The entries of a store of timers: `penstock/runtime/timers.py` writes them, `penstock state verify` compares them."""

from __future__ import annotations

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
