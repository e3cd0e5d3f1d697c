"""A simulated cluster: its topics, its coordinator, and the network in front of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from confluent_kafka import KafkaError

from penstock.testing.simulation.faults import Trouble
from penstock.testing.simulation.scheduler import active
from tests.simulation.kafka.coordinator import Coordinator, Place
from tests.simulation.kafka.network import Network
from tests.simulation.kafka.partition import BrokerError, Partition, Sent

T = TypeVar("T")
CALM = "calm:9092"
"""The address for clients whose requests meet no faults and take no time."""
FACED = "simulated:9092"
_DEFAULTS = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.after.max.ms": "3600000",
    "min.compaction.lag.ms": "0",
    "delete.retention.ms": "86400000",
}
_EXPIRY_S = 10.0
"""Transactions that are open for too long are looked for so often."""


@dataclass(slots=True)
class Topic:
    name: str
    number: int
    """No other topic has it, not even one of this name."""
    partitions: list[Partition]
    settings: dict[str, str] = field(default_factory=dict)


class Cluster:
    """The brokers. They outlive every process, and each of their answers is of one moment."""

    world: ClassVar[Cluster]
    """The cluster of the life that is lived now."""

    def __init__(self, trouble: Trouble | None) -> None:
        self.network = Network(trouble)
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, dict[Place, int]] = {}
        self._made = 0
        self.coordinator = Coordinator(self._found, self.now_ms, self._mark_later, self._watch)

    # Topics.

    def create(self, name: str, partitions: int, settings: dict[str, str]) -> None:
        if name in self.topics:
            raise BrokerError(KafkaError.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        self._made += 1
        self.topics[name] = Topic(name, self._made, [Partition() for _ in range(partitions)], {**_DEFAULTS, **settings})

    def delete(self, name: str) -> None:
        self.topic(name)
        del self.topics[name]

    def topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise BrokerError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return self.topics[name]

    def partition(self, place: Place) -> Partition:
        found = self._found(place)
        if found is None:
            raise BrokerError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return found

    def _found(self, place: Place) -> Partition | None:
        topic = self.topics.get(place[0])
        return topic.partitions[place[1]] if topic is not None and 0 <= place[1] < len(topic.partitions) else None

    # Produce.

    def produce(
        self,
        place: Place,
        records: list[Sent],
        producer: int,
        epoch: int,
        first: int,
        transactional_id: str | None,
    ) -> int:
        """`Produce`, for one partition. Returns the offset of the first record."""
        found = self.partition(place)
        if transactional_id is not None and not found.is_open(producer):
            self.coordinator.verify(transactional_id, producer, epoch, place)
        return found.append(records, producer, epoch, first, transactional=transactional_id is not None)

    # Time and the network.

    def now_ms(self) -> int:
        scheduler = active()
        return time.time_ns() // 1_000_000 if scheduler is None else scheduler.now_ns // 1_000_000

    def ask(self, what: str, request: Callable[[], T], *, changes: bool = False) -> T:
        """See `Network.ask`."""
        return self.network.ask(what, request, changes=changes)

    def _mark_later(self, mark: Callable[[], None]) -> None:
        """The markers of a transaction come a while after the reply that it has ended."""
        living = self.network.living
        is_slow = living is not None and living[0].happens(300)
        after = (0.002, 0.02, 0.2, 2.0)[living[1].choices.draw(4)] if is_slow and living is not None else 0.001
        self.network.later(after, mark)

    def _watch(self, name: str, number: int) -> None:
        living = self.network.living
        if living is not None:
            timeout_s = self.coordinator.ids[name].timeout_ms / 1000
            after = timeout_s + _EXPIRY_S * living[1].choices.draw(3) / 2
            self.network.later(after, lambda: self.coordinator.expire(name, number))
