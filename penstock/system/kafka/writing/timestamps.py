"""The timestamps that a topic takes, and the header with the true one of a message sent with another. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.api.messages.headers import OWN, Headers
from penstock.system.kafka.compaction import margin_ms

HEADER = "penstock.timestamp"
"""The value is the event time in epoch milliseconds, as decimal digits."""
ANY_MS = (1 << 63) - 1
_UNTIMED = -1
"""A message without a timestamp, which brokers always take."""
_LEAST_MS = 1
"""The client treats the time 0 as none."""
_INTEGER = re.compile(rb"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class TimestampLimits:
    """The distance from the brokers' clock that the timestamps of a topic may have. The default suits a topic with
    unreadable settings: by default brokers refuse messages that are an hour ahead.

    Args:
        before_ms: the limit behind the clock.
        after_ms: the limit ahead of it.
        replaced: the brokers replace each timestamp by the time of the append.
        needed: the topic's compaction goes by timestamps.
        trusted: the brokers have not refused a timestamp that these limits allow.

    Example:
        >>> limits = TimestampLimits(after_ms=3_600_000)
        >>> now_ms = 1_700_000_000_000
        >>> limits.sent(now_ms - 10, now_ms) == now_ms - 10, limits.sent(now_ms + 86_400_000, now_ms) == now_ms
        (True, True)
    """

    before_ms: int = ANY_MS
    after_ms: int = 0
    replaced: bool = False
    needed: bool = False
    trusted: bool = True

    def taken(self, now_ms: int) -> tuple[int, int]:
        """The first and the last timestamp that the brokers surely take and keep, by this machine's clock; the clocks
        may differ by a tenth of a limit, at most 5 minutes."""
        if self.replaced or not self.trusted:
            return 1, 0
        return now_ms - self.before_ms + margin_ms(self.before_ms), now_ms + self.after_ms - margin_ms(self.after_ms)

    def sent(self, timestamp_ms: int, now_ms: int) -> int:
        """The timestamp to send a message with. If it is not the message's own, that goes into the header."""
        if not self.trusted:
            return _UNTIMED
        first, last = self.taken(now_ms)
        own = timestamp_ms or _LEAST_MS
        return own if first <= own <= last else now_ms


def timestamp_limits(topic: Mapping[str, str]) -> TimestampLimits:
    """The limits that result from the settings of a topic. Brokers before 3.6 have one limit for both directions.

    Example:
        >>> timestamp_limits({"message.timestamp.after.max.ms": "3600000"}).after_ms
        3600000
    """
    both = topic.get("message.timestamp.difference.max.ms", str(ANY_MS))
    before, after = (int(topic.get(f"message.timestamp.{side}.max.ms", both)) for side in ("before", "after"))
    policy, lag = topic.get("cleanup.policy", ""), topic.get("min.compaction.lag.ms", "0")
    is_replaced = topic.get("message.timestamp.type") == "LogAppendTime"
    return TimestampLimits(before, after, is_replaced, needed="compact" in policy and lag != "0")


def header_of(timestamp_ms: int) -> list[tuple[str, str | bytes | None]]:
    return [(HEADER, b"%d" % timestamp_ms)]


def own_headers(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    """The application's headers of a message, without those of Penstock.

    Example:
        >>> own_headers([("trace", b"7"), ("penstock.timestamp", b"1700000000000")])
        (('trace', b'7'),)
    """
    return tuple(header for header in headers if not header[0].startswith(OWN))


def event_time(headers: Iterable[tuple[str, bytes | None]] | None, timestamp_ms: int) -> int:
    """The true timestamp of a message that was read with these headers and this timestamp.

    Example:
        >>> event_time([("trace", b"7"), ("penstock.timestamp", b"1700000000000")], 5), event_time(None, 5)
        (1700000000000, 5)
    """
    for name, value in headers or ():
        if name == HEADER and isinstance(value, bytes) and _INTEGER.fullmatch(value):
            found = int(value)
            return found if -ANY_MS <= found <= ANY_MS else timestamp_ms
    return timestamp_ms
