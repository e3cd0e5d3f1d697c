"""A cluster for the scenarios: the model, or a real broker. What it shows is noted."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import confluent_kafka
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka import admin as real_admin
from confluent_kafka.admin import NewTopic, OffsetSpec

from penstock.testing.kafka_broker import KafkaBroker
from tests.simulation.kafka import cluster as model
from tests.simulation.kafka.admin import AdminClient
from tests.simulation.kafka.consumer import Consumer
from tests.simulation.kafka.partition import BrokerError
from tests.simulation.kafka.producer import Producer
from tests.support.streams.kafka import QUIET
from tests.support.streams.kafka_proxy import END_TXN, KafkaProxy

WITHIN_S = 20.0
_COMMITTED, _EVERY = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


class Bench(ABC):
    """A cluster, and what was seen of it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.topic = f"model-{uuid.uuid4().hex[:8]}"
        self.admin = self.make("AdminClient", {})
        self._number = 0
        self.new = NewTopic(self.topic, num_partitions=2, replication_factor=1, config={"retention.ms": "-1"})
        one(self.admin.create_topics([self.new]))
        self.settle("the topic is there", lambda: len(self.describe().partitions), 2)

    @abstractmethod
    def make(self, kind: str, config: dict[str, Any]) -> Any:
        """A client."""

    @abstractmethod
    def settle(self, what: str, look: Callable[[], Any], expected: Any) -> None:
        """Wait for something that is not noted."""

    @abstractmethod
    def expire(self, transactional_id: str) -> None:
        """Wait until the brokers have ended the open transaction of this id, whose timeout has passed."""

    @abstractmethod
    def hold_end(self) -> Callable[[], object]:
        """Hold up the next request that ends a transaction. The client sends it again; the brokers get the one that was
        held up when the returned function is called."""

    def note(self, what: str, call: Callable[[], Any]) -> None:
        """Note what a call gives, or how it is refused."""
        self.seen.append((what, outcome(call)))

    @abstractmethod
    def note_later(self, what: str, call: Callable[[], Any]) -> None:
        """As `note`, of what takes some time."""

    # Shorter calls.

    def describe(self, topic: str | None = None) -> Any:
        return one(self.admin.describe_topics(TopicCollection([topic or self.topic])))

    def name(self) -> str:
        self._number += 1
        return f"{self.topic}-{self._number}"

    def producer(self, name: str | None = None, **more: Any) -> Any:
        """An idempotent producer; with a name, one whose transactions are initialised."""
        made = self.make(
            "Producer", {"enable.idempotence": True, **({} if name is None else {"transactional.id": name}), **more}
        )
        if name is not None:
            made.init_transactions(WITHIN_S)
        return made

    def send(self, producer: Any, keys: str, partition: int = 0, timestamp: int = 1000) -> list[Any]:
        """Send a record for each letter. Returns the offsets, or the codes of errors."""
        found: list[Any] = []

        def report(error: KafkaError | None, message: Message) -> None:
            found.append(message.offset() if error is None else error.name())

        for key in keys:
            producer.produce(self.topic, b"v", key.encode(), partition, report, None, timestamp)
        producer.flush(WITHIN_S)
        return found

    def ends(self, partition: int = 0) -> list[int]:
        """The beginning, the last stable offset, and the end of a partition."""
        return [
            self.offset(OffsetSpec.earliest(), partition),
            self.offset(OffsetSpec.latest(), partition),
            self.offset(OffsetSpec.latest(), partition, _EVERY),
        ]

    def offset(self, spec: OffsetSpec, partition: int = 0, level: IsolationLevel = _COMMITTED) -> int:
        wanted = {TopicPartition(self.topic, partition): spec}
        return int(one(self.admin.list_offsets(wanted, isolation_level=level, request_timeout=WITHIN_S)).offset)

    def read(self, offset: int = 0, partition: int = 0, *, committed: bool = True, topic: str | None = None) -> str:
        """Keys and offsets up to the end of the partition, or an error."""
        level = "read_committed" if committed else "read_uncommitted"
        config = {"group.id": "g", "isolation.level": level, "enable.partition.eof": True}
        decided = {"auto.offset.reset": "error", "enable.auto.commit": False, "fetch.wait.max.ms": 10}
        consumer = self.make("Consumer", {**config, **decided, "topic.metadata.propagation.max.ms": 2000})
        found: list[str] = []
        try:
            consumer.assign([TopicPartition(topic or self.topic, partition, offset)])
            until = time.monotonic() + WITHIN_S
            while time.monotonic() < until:
                message = consumer.poll(0.5)
                if message is None:
                    continue
                if (error := message.error()) is not None:
                    found.append(f"{error.name()}@{message.offset()}")
                    break
                found.append(f"{message.key().decode()}@{message.offset()}")
            return " ".join(found)
        finally:
            consumer.close()

    def delete_before(self, offset: int) -> Any:
        at = TopicPartition(self.topic, 0, offset)
        return one(self.admin.delete_records([at])).low_watermark


class ModelBench(Bench):
    def __init__(self) -> None:
        model.Cluster.world = model.Cluster(None)
        super().__init__()

    def make(self, kind: str, config: dict[str, Any]) -> Any:
        made: Any = {"Producer": Producer, "Consumer": Consumer, "AdminClient": AdminClient}[kind]
        return made({"bootstrap.servers": model.CALM, **config})

    def settle(self, what: str, look: Callable[[], Any], expected: Any) -> None:
        assert outcome(look) == expected, what

    def expire(self, transactional_id: str) -> None:
        coordinator = model.Cluster.world.coordinator
        coordinator.expire(transactional_id, coordinator.ids[transactional_id].number)

    def hold_end(self) -> Callable[[], object]:
        coordinator: Any = model.Cluster.world.coordinator
        real, held = coordinator.end, []

        def end(*given: Any, commits: bool) -> None:
            coordinator.end = real
            held.append(lambda: real(*given, commits=commits))
            real(*given, commits=commits)

        def release() -> None:
            with suppress(BrokerError):
                held[0]()

        coordinator.end = end
        return release

    def note_later(self, what: str, call: Callable[[], Any]) -> None:
        self.note(what, call)


class RealBench(Bench):
    def __init__(self, broker: KafkaBroker, expected: Sequence[tuple[str, Any]]) -> None:
        """`expected`: what the model has shown."""
        self._broker = broker
        self._expected = expected
        self.proxy = KafkaProxy.before(broker)
        super().__init__()

    def make(self, kind: str, config: dict[str, Any]) -> Any:
        made: Any = getattr(confluent_kafka if kind != "AdminClient" else real_admin, kind)
        through = self.proxy.address if kind == "Producer" else self._broker.bootstrap_servers
        return made({"bootstrap.servers": through, **config}, logger=QUIET)

    def settle(self, what: str, look: Callable[[], Any], expected: Any) -> None:
        assert _looked(look, expected) == expected, what

    def hold_end(self) -> Callable[[], object]:
        return self.proxy.hold(END_TXN).release

    def expire(self, transactional_id: str) -> None:
        """Brokers look for such transactions every ten seconds. Until then the partition is not stable."""
        self.settle("the transaction was aborted", lambda: len(set(self.ends()[1:])), 1)

    def note_later(self, what: str, call: Callable[[], Any]) -> None:
        expected = self._expected[len(self.seen)][1] if len(self.seen) < len(self._expected) else None
        self.seen.append((what, _looked(call, expected)))


def _looked(look: Callable[[], Any], expected: Any) -> Any:
    until = time.monotonic() + WITHIN_S
    while (found := outcome(look)) != expected and time.monotonic() < until:
        time.sleep(0.05)
    return found


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except KafkaException as error:
        found: KafkaError = error.args[0]
        kinds = {"fatal": found.fatal(), "aborts": found.txn_requires_abort()}
        return " ".join([found.name(), *(kind for kind, is_so in kinds.items() if is_so)])


def one(futures: dict[Any, Any]) -> Any:
    return next(iter(futures.values())).result(WITHIN_S)
