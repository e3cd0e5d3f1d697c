"""What every embedded system says about a range it cannot read whole."""

from __future__ import annotations

from penstock.errors import ConfigError, NotFoundError
from penstock.system.base import OffsetRange, PartitionOffsets


def check_call(offsets: OffsetRange, chunk_messages: int) -> None:
    """Raises:
    ConfigError: the range ends before it starts, or `chunk_messages` is not positive.
    """
    if offsets.end < offsets.start or chunk_messages < 1:
        raise ConfigError(f"cannot read {offsets} in chunks of {chunk_messages} messages")


def check_inside(offsets: OffsetRange, ends: PartitionOffsets) -> None:
    """Raises:
    NotFoundError: a message of the range no longer exists or does not exist yet.
    """
    if offsets.start == offsets.end:
        return
    if offsets.start < ends.oldest:
        raise missing(offsets, offsets.start, f"the oldest one is {ends.oldest}")
    if offsets.end > ends.upcoming:
        raise missing(offsets, max(offsets.start, ends.upcoming), f"the upcoming one is {ends.upcoming}")


def missing(offsets: OffsetRange, expected: int, found: str) -> NotFoundError:
    """The error for a message of a range that is not there; `found` says what is."""
    return NotFoundError(
        f"stream `{offsets.ssp.system_stream}` partition {offsets.ssp.partition}: expected offset {expected} of the "
        f"range [{offsets.start}, {offsets.end}), but {found}. Choose a starting point inside what is there"
    )
