"""What a batch reads of a partition, and what it then has read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.errors import RetryableError
from penstock.system.base import OffsetRange


@dataclass(frozen=True, slots=True)
class Portion:
    """The first messages of a range, at most `messages` of them. Offsets may have gaps, so only reading shows where the
    last of them is."""

    offsets: OffsetRange
    messages: int

    def check(self, read: PortionRead) -> None:
        """Raise RetryableError unless this may have been read of it."""
        first, last = self.offsets.start + 1, self.offsets.end
        if not (first <= read.next_offset <= last and 0 <= read.messages <= self.messages):
            raise RetryableError(
                f"`{self.offsets.ssp}`: at most {self.messages} messages of the offsets [{self.offsets.start}, {last}) "
                f"were to be read, but {read.messages} up to offset {read.next_offset} were reported"
            )


@dataclass(frozen=True, slots=True)
class PortionRead:
    """What was read of a portion."""

    next_offset: int
    """What the next portion begins with."""
    messages: int = 0
    bytes: int = 0
    """Of their keys and values."""
    event_time_ms: int | None = None
    """The highest event time of its messages that is not too far ahead; None: there is none, or nothing uses it."""
    ahead: int = 0
    """Messages whose event time is further ahead of the batch time than `job.watermark.max.ahead.ms`."""
    foreign: int = 0
    """Messages of an intermediate stream that Penstock has not written, and leaves out."""

    def with_times(self, highest_ms: int | None, ahead: int) -> PortionRead:
        """The event times of more messages."""
        known = (each for each in (self.event_time_ms, highest_ms) if each is not None)
        return replace(self, event_time_ms=max(known, default=None), ahead=self.ahead + ahead)
