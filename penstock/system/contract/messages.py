"""Messages as systems read and write them, and their offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.api.ssp import SystemStreamPartition
from penstock.wording import counted, utc_text

RawMessage: TypeAlias = tuple[int, int, bytes | None, bytes | None]
"""A message as it is read: (offset, timestamp in epoch milliseconds, key, value)."""

RawRecord: TypeAlias = tuple[int, bytes | None, bytes | None]
"""A message to be written: (timestamp in epoch milliseconds, key, value)."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The messages of one partition with `start <= offset < end`. Its length is how many there are at most; it is
    the number of messages where a system has `dense_offsets`.

    Example:
        >>> from penstock.api.ssp import SystemStreamPartition
        >>> len(OffsetRange(SystemStreamPartition("local", "flights", 0), 10, 25))
        15
    """

    ssp: SystemStreamPartition
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The ends of a partition: `oldest` is the first offset still there (equal to `upcoming` if there is none),
    `upcoming` the one the next message will get. `ended` says that no message will follow.

    Example:
        >>> print(PartitionOffsets(oldest=3, upcoming=8))
        messages from 3 (oldest) to 7 (newest), the next one will be 8
    """

    oldest: int
    upcoming: int
    ended: bool = False

    @property
    def newest(self) -> int | None:
        """The offset before `upcoming`, or None if the partition holds no message. It is the last message's where a
        system has `dense_offsets`."""
        return self.upcoming - 1 if self.upcoming > self.oldest else None

    def __str__(self) -> str:
        if self.newest is None:
            return f"no messages, the next one will be {self.upcoming}"
        return f"messages from {self.oldest} (oldest) to {self.newest} (newest), the next one will be {self.upcoming}"


@dataclass(frozen=True, slots=True)
class Compaction:
    """How far a stream may have been compacted that a system compacts in its own time.

    Example:
        >>> Compaction(untouched_from={0: 120}, lag_ms=14_400_000, deletes_stay_ms=86_400_000).untouched_from[0]
        120
    """

    untouched_from: Mapping[int, int]
    """By partition, an offset: no record at or above it has gone, and none has made an older one of its key go."""
    lag_ms: int
    """How old a record is at least before it goes, or makes an older one go."""
    deletes_stay_ms: int
    """How long a delete (value None) stays after it has made the older records of its key go."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction of some writer that is not over, with what is behind its first message: a reader sees none of it
    yet.

    Example:
        >>> print(OpenTransaction(offset=120, messages=40, since_ms=1_700_000_000_000))
        at most 40 messages behind an open transaction since 2023-11-14T22:13:20.000Z
    """

    offset: int
    """That of its first message, before which everything can be read."""
    messages: int
    """How many offsets are behind that: at most so many messages wait."""
    since_ms: int
    """The timestamp of its first message, in epoch milliseconds; 0 if that is not known."""

    def __str__(self) -> str:
        since = f" since {utc_text(self.since_ms)}" if self.since_ms else ""
        return f"at most {counted(self.messages, 'message')} behind an open transaction{since}"


def partitions_with_messages(ends: Mapping[int, PartitionOffsets]) -> tuple[int, ...]:
    """The partitions of a stream that hold messages, ascending.

    Example:
        >>> partitions_with_messages({1: PartitionOffsets(0, 2), 0: PartitionOffsets(4, 4)})
        (1,)
    """
    return tuple(partition for partition, own in sorted(ends.items()) if own.newest is not None)
