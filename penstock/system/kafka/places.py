"""Which partitions a writer may append to."""

from __future__ import annotations

from confluent_kafka.admin import OffsetSpec

from penstock.api.ssp import SystemStreamPartition
from penstock.system.kafka.cluster import Cluster, check_partition, check_system
from penstock.system.kafka.options import KafkaOptions


class Places:
    """The topics that a writer has seen. Appending to one that does not exist would create it on some clusters."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._partitions: dict[str, int] = {}
        self._cluster: Cluster | None = None

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

    def upcoming(self, ssp: SystemStreamPartition) -> int:
        """The end of the partition, once no transaction is under way in it. What older epochs have committed, which
        brokers may show a little later, is before it. Raises RetryableError if one stays open."""
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
        """Look at every topic again."""
        self._partitions.clear()

    def close(self) -> None:
        """Close the connection."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _opened(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options)
        return self._cluster
