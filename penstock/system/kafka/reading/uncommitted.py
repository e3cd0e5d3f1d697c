"""The times at which open transactions began to write."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaException, TopicPartition

from penstock.system.kafka.client import open_consumer
from penstock.system.kafka.errors import ClientErrors
from penstock.system.kafka.options.options import KafkaOptions

_WITHIN_S = 2.0
"""Nothing waits longer for a timestamp, which is only shown to people."""
_POLL_S = 0.1


def first_timestamps(options: KafkaOptions, stream: str, offsets: Mapping[int, int]) -> dict[int, int]:
    """The timestamp of the first message at or behind an offset, committed or not, in epoch milliseconds, by partition.
    Partitions that did not answer in time are left out."""
    decided = {"isolation.level": "read_uncommitted", "enable.partition.eof": False}
    consumer = open_consumer(options, ClientErrors(), decided)
    found: dict[int, int] = {}
    try:
        consumer.assign([TopicPartition(stream, partition, offset) for partition, offset in offsets.items()])
        until = time.monotonic() + _WITHIN_S
        while found.keys() != offsets.keys() and time.monotonic() < until:
            message = consumer.poll(_POLL_S)
            if message is None or message.error() is not None:
                continue
            partition, (kind, timestamp) = message.partition(), message.timestamp()
            if partition is not None and partition not in found and kind != TIMESTAMP_NOT_AVAILABLE:
                found[partition] = timestamp
                consumer.pause([TopicPartition(stream, partition)])
    except KafkaException:
        return found
    finally:
        consumer.close()
    return found
