"""The system `kafka` keeps the contract of every system, on a real broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import PartitionOffsets, System, SystemAdmin
from penstock.system.kafka.admin import KafkaAdmin
from penstock.system.kafka.cluster import Cluster
from penstock.system.kafka.system import KafkaSystem
from penstock.testing.kafka_broker import KafkaBroker
from penstock.testing.system_contract import SystemContract
from tests.support.streams.kafka_streams import kafka_system
from tests.support.tools import contracts
from tests.support.tools.fixtures import fixture_of

pytestmark = pytest.mark.kafka
_SERVERS_OWN = {"__consumer_offsets", "__transaction_state", "__share_group_state"}


@dataclass(frozen=True, slots=True)
class SeekingKafka(KafkaSystem):
    """Readers seek as well. Jobs do not rely on it: several tasks that read one partition would fetch it again."""

    readers_seek: ClassVar[bool] = True

    def admin(self) -> SystemAdmin:
        return SettledAdmin(self.options)


class SettledAdmin(KafkaAdmin):
    """Looks once no transaction is open: brokers answer a commit before they have marked it in every partition, and
    then its messages are not there for a moment. In these tests nobody leaves a transaction open."""

    def offsets(self, stream: str) -> dict[int, PartitionOffsets]:
        self._settle(stream)
        return super().offsets(stream)

    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        self._settle(ssp.stream)
        return super().offset_at_time(ssp, timestamp_ms)

    def _settle(self, stream: str) -> None:
        self._cluster.wait_until("a transaction was ended", lambda: not self.open_transactions(stream))


own_broker = fixture_of(KafkaBroker, using=(), scope="module")
"""A broker whose topics may all be deleted."""


@pytest.mark.quick(*contracts.SYSTEM)
class TestKafkaSystem(SystemContract):
    timestamps = (1, 7)

    @pytest.fixture
    def system(self, own_broker: KafkaBroker) -> System:
        system = kafka_system(own_broker)
        cluster = Cluster(system.options)
        for topic in set(cluster.topics()) - _SERVERS_OWN:
            cluster.delete(topic)
        cluster.wait_until("everything was deleted", lambda: set(cluster.topics()) <= _SERVERS_OWN)
        cluster.close()
        return SeekingKafka(system.name, system.options)

    def truncate(self, system: System, ssp: SystemStreamPartition, before: int) -> None:
        assert isinstance(system, KafkaSystem)
        cluster = Cluster(system.options)
        cluster.delete_records({ssp: before})
        cluster.close()
