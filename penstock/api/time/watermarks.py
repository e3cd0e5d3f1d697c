"""Watermark policies: how far event time has come in an input, by the highest event time that was read of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.base.wording import Duration, milliseconds

NO_WATERMARK = -(2**63)
"""The watermark of an operator that has seen no event time yet: nothing is late, and nothing fires."""
END_OF_TIME = 2**63 - 1
"""The watermark of an operator whose inputs have ended: everything that waits for event time fires."""


class WatermarkPolicy(Protocol):
    """Says up to which event time a partition is complete.

    Any object with this method is a policy. The method is called in the driver, after each batch, and must be a pure
    function: the same highest event time gives the same watermark. A watermark never falls, whatever the policy says.

    Example:
        >>> class FullHours:
        ...     def watermark(self, highest_event_time_ms: int) -> int:
        ...         return highest_event_time_ms // 3_600_000 * 3_600_000
        >>> FullHours().watermark(7_300_000)
        7200000
    """

    def watermark(self, highest_event_time_ms: int) -> int:
        """The watermark of a partition. Messages with an event time below it are late.

        Args:
            highest_event_time_ms: the highest event time that ended batches have read of the partition, in epoch
                milliseconds.
        """
        ...


@dataclass(frozen=True, slots=True)
class BoundedOutOfOrderness:
    """The event time of a message is at most `max_delay_ms` below the highest one before it.

    Args:
        max_delay_ms: how far behind the highest event time of its partition a message may be without being late:
            milliseconds, a text such as "5s", or a timedelta.

    Raises:
        ConfigError: the delay is negative.

    Example:
        >>> BoundedOutOfOrderness(max_delay_ms=5_000).watermark(60_000)
        55000
    """

    max_delay_ms: int

    def __init__(self, max_delay_ms: Duration) -> None:
        delay = milliseconds("BoundedOutOfOrderness: max_delay_ms", max_delay_ms, least=0)
        object.__setattr__(self, "max_delay_ms", delay)

    def watermark(self, highest_event_time_ms: int) -> int:
        """`max_delay_ms` below the highest event time.

        Args:
            highest_event_time_ms: as in `WatermarkPolicy.watermark`.
        """
        return highest_event_time_ms - self.max_delay_ms


@dataclass(frozen=True, slots=True)
class Ascending:
    """The event times of each partition never fall. This is the policy of an input that has no other one.

    Example:
        >>> Ascending().watermark(60_000)
        60000
    """

    def watermark(self, highest_event_time_ms: int) -> int:
        """The highest event time: a message with that time is not late.

        Args:
            highest_event_time_ms: as in `WatermarkPolicy.watermark`.
        """
        return highest_event_time_ms


__all__ = ["END_OF_TIME", "NO_WATERMARK", "Ascending", "BoundedOutOfOrderness", "WatermarkPolicy"]
