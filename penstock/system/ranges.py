"""Rules that systems share, including your own: the ranges that can be read, and the errors for others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from penstock.errors import ConfigError, NotFoundError
from penstock.system.contract.messages import OffsetRange, PartitionOffsets, RawMessage

__all__ = ["Compacted", "check_call", "check_inside", "missing", "take_chunk"]


def check_call(offsets: OffsetRange, chunk_messages: int = 1, chunk_bytes: int = 1) -> None:
    """Check a call of a reader.

    Raises:
        ConfigError: the range ends before it starts, or a bound is not positive.
    """
    if offsets.end < offsets.start or min(chunk_messages, chunk_bytes) < 1:
        raise ConfigError(f"cannot read {offsets} in chunks of {chunk_messages} messages and {chunk_bytes} bytes")


def take_chunk(messages: Iterable[RawMessage], chunk_bytes: int, chunk_messages: int | None = None) -> list[RawMessage]:
    """The first messages, up to the one with which their keys and values reach `chunk_bytes`, and at most
    `chunk_messages`. No more than these are taken from an iterator."""
    chunk: list[RawMessage] = []
    size, add = 0, chunk.append
    for message in islice(messages, chunk_messages):
        add(message)
        key, value = message[2], message[3]
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        if size >= chunk_bytes:
            break
    return chunk


def check_inside(offsets: OffsetRange, ends: PartitionOffsets) -> None:
    """Check that a partition holds a range.

    Raises:
        NotFoundError: a message of the range no longer exists or does not exist yet.
    """
    if offsets.start == offsets.end:
        return
    if offsets.start < ends.oldest:
        raise missing(offsets, offsets.start, f"the oldest one is {ends.oldest}")
    if offsets.end > ends.upcoming:
        raise missing(offsets, max(offsets.start, ends.upcoming), f"the upcoming one is {ends.upcoming}")


def missing(offsets: OffsetRange, expected: int, found: str) -> NotFoundError:
    """The error for a missing message of a range; `found` describes what is there instead."""
    return NotFoundError(
        f"{_partition(offsets)}: expected offset {expected} of the range [{offsets.start}, {offsets.end}), "
        f"but {found}. Choose an offset that the partition holds"
    )


@dataclass(frozen=True, slots=True)
class Compacted:
    """The state of compaction of a partition: it begins at `start`, and below `end` every key has one record at
    most."""

    start: int = 0
    end: int = 0
    kept: int = 0
    """The number of records that the last compaction left below `end`."""

    def with_range(self, offsets: OffsetRange, kept: int) -> Compacted:
        """The state after the compaction of another range. Neither end ever goes back."""
        return Compacted(max(self.start, offsets.start), max(self.end, offsets.end), kept)

    def with_start(self, start: int) -> Compacted:
        """The state after all records before `start` were dropped. `kept` is then too large if some of the dropped
        records were compacted ones."""
        return Compacted(max(self.start, start), max(self.end, start), self.kept if start < self.end else 0)

    def is_due(self, offsets: OffsetRange, min_dirty_ratio: float) -> bool:
        """True if the range is worth a compaction: it drops records before it, or enough in it came since the last
        time."""
        dirty = offsets.end - self.end
        return offsets.start > self.start or (dirty > 0 and dirty >= min_dirty_ratio * (self.kept + dirty))

    def check_compact(self, offsets: OffsetRange, upcoming: int) -> None:
        """Check that a range can be compacted.

        Raises:
            ConfigError: the range ends before it starts.
            NotFoundError: it ends beyond upcoming or begins before `start`.
        """
        check_call(offsets)
        if offsets.end > upcoming or offsets.start < self.start:
            raise NotFoundError(
                f"{_partition(offsets)}: the range [{offsets.start}, {offsets.end}) cannot be compacted: the "
                f"partition holds [{self.start}, {upcoming})"
            )

    def check_read(self, offsets: OffsetRange, upcoming: int) -> None:
        """Check that the records left of a range can stand for it.

        Raises:
            NotFoundError: they cannot.
        """
        if offsets.start == offsets.end:
            return
        if offsets.start < self.start:
            raise missing(offsets, offsets.start, f"what was before {self.start} is no longer kept")
        if offsets.end > upcoming:
            raise missing(offsets, max(offsets.start, upcoming), f"the upcoming one is {upcoming}")
        if offsets.end < self.end:
            raise NotFoundError(
                f"{_partition(offsets)}: the range [{offsets.start}, {offsets.end}) can no longer be distinguished, "
                f"because records with a newer one before {self.end} were deleted. Choose a range that ends there or "
                "later"
            )


def _partition(offsets: OffsetRange) -> str:
    return f"stream `{offsets.ssp.system_stream}` partition {offsets.ssp.partition}"
