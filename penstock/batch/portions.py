"""The portion of a partition that a batch may read, and the part that it has read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.errors import RetryableError
from penstock.system.base import OffsetRange


@dataclass(frozen=True, slots=True)
class Portion:
    """The first messages of a range, at most `messages` of them. Offsets may have gaps, so only reading shows the
    offset of the last one."""

    offsets: OffsetRange
    messages: int

    def check(self, read: PortionRead) -> None:
        """Raise RetryableError if `read` cannot be a result of reading this portion."""
        first, last = self.offsets.start + 1, self.offsets.end
        if not (first <= read.next_offset <= last and 0 <= read.messages <= self.messages):
            raise RetryableError(
                f"`{self.offsets.ssp}`: at most {self.messages} messages of the offsets [{self.offsets.start}, {last}) "
                f"were to be read, but {read.messages} up to offset {read.next_offset} were reported"
            )


@dataclass(frozen=True, slots=True)
class PortionRead:
    """The part of a portion that was read."""

    next_offset: int
    messages: int = 0
    bytes: int = 0
    """Bytes of keys and values."""
    event_time_ms: int | None = None
    """The highest event time of its messages that is not too far ahead; None: there is none, or nothing uses it."""
    ahead: int = 0
    """Messages whose event time is further ahead of the batch time than `job.watermark.max.ahead.ms`."""
    foreign: int = 0
    """Messages of an intermediate stream that Penstock did not write, and leaves out."""

    def with_times(self, highest_ms: int | None, ahead: int) -> PortionRead:
        known = (each for each in (self.event_time_ms, highest_ms) if each is not None)
        return replace(self, event_time_ms=max(known, default=None), ahead=self.ahead + ahead)
