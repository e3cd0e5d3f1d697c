"""Limits of what a topic takes and keeps, by its settings. Pure.

A topic refuses messages by their size, also by that of the producer's settings, and by their timestamp. A message
that was sent with another timestamp has the true one in a header. Compacted topics may keep young records for a
time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from penstock.api.messages import OWN, Headers
from penstock.system.contract.messages import RecordLimits

POLICY = "cleanup.policy"
LAG = "min.compaction.lag.ms"
DELETES = "delete.retention.ms"
KEPT_MS = 86_400_000
"""Kafka's default of `delete.retention.ms`."""
_LONGEST_MARGIN_MS = 300_000


def margin_ms(lag_ms: int) -> int:
    """The possible difference between the clocks of brokers and clients."""
    return min(lag_ms // 10, _LONGEST_MARGIN_MS)


def refused(wanted: Mapping[str, str], found: Mapping[str, str]) -> str:
    """The settings of an older topic that would lose records, and the remedy; empty if there are none."""
    if found.get(POLICY) != wanted[POLICY]:
        return (
            f"has `{POLICY}={found.get(POLICY)}` and would lose records; set it to `{wanted[POLICY]}`, or name "
            "another stream"
        )
    for key in (LAG, DELETES):
        if key in wanted and int(found.get(key, "0")) < int(wanted[key]):
            return (
                f"has `{key}={found.get(key, '0')}`, and {wanted[key]} is needed: brokers would drop records too "
                "early. Change the topic, or lower the job's setting"
            )
    return ""


def differences(wanted: Mapping[str, str], found: Mapping[str, str]) -> Iterator[str]:
    for key, value in sorted(wanted.items()):
        if key not in (POLICY, LAG, DELETES) and found.get(key) != value:
            yield f"`{key}={found.get(key)}`; a new one would have {value}"


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


CLIENT_BYTES = 100_000_000
"""The largest message that a producer takes; the brokers and topics have their own limits."""
COMPRESSION = "lz4"


def record_limits(topic: Mapping[str, str], producer: Mapping[str, str]) -> RecordLimits:
    """The limits that result from the settings of a topic and the properties of a producer.

    Example:
        >>> limits = record_limits({"cleanup.policy": "compact,delete", "max.message.bytes": "1048588"}, {})
        >>> limits.needs_key, limits.max_bytes, limits.compression
        (True, 1048588, 'lz4')
    """
    size = topic.get("max.message.bytes")
    compression = producer.get("compression.codec", producer.get("compression.type", COMPRESSION)).lower()
    return RecordLimits(
        needs_key="compact" in topic.get("cleanup.policy", ""),
        max_bytes=None if size is None else int(size),
        compression=None if compression == "none" else compression,
        max_plain_bytes=int(producer.get("message.max.bytes", CLIENT_BYTES)),
    )
