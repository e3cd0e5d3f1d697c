"""The messages that a topic refuses, by its settings and those of the producer. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.system.contract.limits import RecordLimits

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
