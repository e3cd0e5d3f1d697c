"""The partitions that a writer may append to, and the timestamps that their topics take."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from confluent_kafka.admin import OffsetSpec

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError
from penstock.system.kafka.cluster import Cluster, check_partition, check_system
from penstock.system.kafka.options.options import KafkaOptions
from penstock.system.kafka.writing.timestamps import TimestampLimits, timestamp_limits

logger = logging.getLogger(__name__)
_KNOWN_S = 60.0
"""A topic is assumed to keep its settings for so long, unless the brokers refuse a timestamp."""


class WriterTopics:
    """The topics that a writer has seen. Appending to one that does not exist would create it on some clusters."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._partitions: dict[str, int] = {}
        self._cluster: Cluster | None = None
        self._limits: dict[str, tuple[TimestampLimits, float]] = {}
        self._refused: dict[str, TimestampLimits] = {}
        """Limits that allowed a timestamp which the brokers refused."""
        self._replacing: set[str] = set()
        """Topics with unreadable settings, whose brokers replaced a timestamp."""
        self._unknown: set[str] = set()
        """Topics with unreadable settings that were logged."""

    def check(self, ssp: SystemStreamPartition) -> None:
        """Look at the topic once.

        Raises:
            NotFoundError: there is no such topic or partition.
            ConfigError: the partition is of another system, or its topic's name is not allowed.
        """
        if 0 <= ssp.partition < self._partitions.get(ssp.stream, 0) and ssp.system == self._options.system:
            return
        check_system(self._options, ssp)
        self._partitions[ssp.stream] = self._opened().partition_count(ssp.stream)
        check_partition(ssp, self._partitions[ssp.stream])

    def timestamps(self, stream: str) -> TimestampLimits:
        """The timestamps that the topic takes now. Raises NotFoundError if there is no such topic."""
        limits, read_s = self._limits.get(stream, (TimestampLimits(), 0.0))
        if not read_s or time.monotonic() - read_s > _KNOWN_S:
            limits = self._read_limits(stream)
            self._limits[stream] = limits, time.monotonic()
        if limits != self._refused.get(stream) or limits.needed:
            return limits
        return replace(limits, trusted=False)

    def refused_timestamp(self, stream: str, limits: TimestampLimits) -> None:
        """Note that the brokers refused a timestamp that these limits allow: the topic has others now, or the clocks
        differ."""
        self._limits.pop(stream, None)
        if limits == self._refused.get(stream):
            return
        self._refused[stream] = limits
        logger.warning(
            "the brokers refused a timestamp for `%s.%s` that is within the limits last read of the topic; they are "
            "read again. If they have not changed, messages are sent without timestamps, and Penstock's readers find "
            "them in a header. Compare the clocks of this machine and of the brokers",
            self._options.system,
            stream,
        )

    def replaced_timestamp(self, stream: str) -> None:
        """Note that the brokers replaced a timestamp: the topic has `LogAppendTime` by now."""
        self._limits.pop(stream, None)
        self._replacing.add(stream)

    def upcoming(self, ssp: SystemStreamPartition) -> int:
        """The end of the partition, once it has no open transaction. Messages that older epochs have committed, which
        brokers may show a little later, are before it. Raises RetryableError if a transaction stays open."""
        end = 0

        def is_settled() -> bool:
            nonlocal end
            (written,) = self._opened().offsets(ssp.stream, [ssp.partition], [OffsetSpec.latest()], committed=False)
            (stable,) = self._opened().offsets(ssp.stream, [ssp.partition], [OffsetSpec.latest()])
            end = stable[ssp.partition]
            return end >= written[ssp.partition]

        self._opened().wait_until(f"the transactions of others in `{ssp}` are over", is_settled)
        return end

    def forget(self) -> None:
        self._partitions.clear()

    def _read_limits(self, stream: str) -> TimestampLimits:
        try:
            found = timestamp_limits(self._opened().settings(stream))
        except ConfigError as error:
            if stream not in self._unknown:
                self._unknown.add(stream)
                logger.warning(
                    "times ahead of the clock are sent to `%s.%s` in a header only, because the limits of its "
                    "timestamps are not known: %s",
                    self._options.system,
                    stream,
                    error,
                )
            return TimestampLimits(replaced=stream in self._replacing)
        self._replacing.discard(stream)
        return found

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _opened(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options)
        return self._cluster
