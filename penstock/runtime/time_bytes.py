"""Times in the keys of stores: eight bytes that sort as the times do."""

from __future__ import annotations

BIAS = 2**63
"""Added to a time, so that no time is below zero."""


def time_bytes(ms: int) -> bytes:
    try:
        return (ms + BIAS).to_bytes(8, "big")
    except OverflowError as error:
        raise out_of_range(ms) from error


def out_of_range(*times_ms: int) -> ValueError:
    found = next(ms for ms in times_ms if not -BIAS <= ms < BIAS)
    return ValueError(
        f"the time {found} ms, of a window or a wait, is not between -2^63 and 2^63 - 1: the message's timestamp is "
        "too close to the end of that range. Timestamps are milliseconds since 1970; check the one that the message has"
    )


def time_of(data: bytes) -> int:
    return int.from_bytes(data, "big") - BIAS
