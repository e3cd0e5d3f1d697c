"""Times in the keys of stores: eight bytes that sort as the times do."""

from __future__ import annotations

BIAS = 2**63
"""What is added to a time, so that no time is below zero."""


def time_bytes(ms: int) -> bytes:
    """A time as bytes that sort as times do."""
    return (ms + BIAS).to_bytes(8, "big")


def time_of(data: bytes) -> int:
    """The time from its bytes."""
    return int.from_bytes(data, "big") - BIAS
