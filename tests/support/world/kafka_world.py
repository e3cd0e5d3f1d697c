"""A keyed sum from Kafka to Kafka, on drivers and containers of this process, and what it must come to."""

from __future__ import annotations

import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

import penstock as ps
from penstock.system.kafka.system import KafkaSystem
from penstock.testing.in_process import InProcessDriver
from penstock.testing.kafka_broker import KafkaBroker
from penstock.testing.kafka_cluster import KafkaCluster
from tests.support.streams.hooked_system import HookedSystem
from tests.support.streams.kafka import QUIET, TIMEOUT_S, new_topic
from tests.support.world.world import World

Guarantee = Literal["at-least-once", "exactly-once"]
Given = tuple[bytes | None, bytes | None]
"""The key and value of a message."""
KEYS = 7
PARTITIONS = 2


class Total(ps.StreamTask):
    """Adds up the values of each key. A message without a value counts 1,000, one without a key is of the key `none`;
    of a longer value, only the length counts. What comes out is as long as what came in."""

    def init(self, context: Any) -> None:
        self.totals = context.store("totals")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        key = envelope.key or b"none"
        total = (self.totals.get(key) or 0) + amount(envelope.value)
        self.totals.put(key, total)
        collector.emit(key=key, value=(b"%d" % total).ljust(len(envelope.value or b"")))


def amount(value: bytes | None) -> int:
    if value is None:
        return 1000
    return int(value) if len(value) < 10 else len(value)


def totals_app(source: str, output: str) -> ps.StreamApplication:
    """The job."""
    app = ps.StreamApplication("totals")
    app.store("totals", key=ps.Bytes(), value=ps.Integer())
    events = app.input(source, key=ps.Bytes(), value=ps.Bytes())
    events.partition_by(
        lambda envelope: envelope.key or b"none", key=ps.Bytes(), value=ps.Bytes(), envelope=True
    ).process(Total, stores=["totals"], id="total").send_to(app.output(output, key=ps.Bytes(), value=ps.Bytes()))
    return app


def expected(given: Iterable[Given]) -> dict[bytes, list[int]]:
    """The oracle: the totals of each key, in order."""
    totals: dict[bytes, list[int]] = defaultdict(list)
    for key, value in given:
        own = totals[key or b"none"]
        own.append((own[-1] if own else 0) + amount(value))
    return dict(totals)


class KafkaWorld(World):
    """The job over two topics of a broker, and what was produced."""

    def __init__(
        self,
        broker: KafkaBroker | KafkaCluster,
        folder: Path,
        guarantee: Guarantee = "exactly-once",
        partitions: int = PARTITIONS,
        source: Mapping[str, str] | None = None,
        **config: object,
    ) -> None:
        """
        Args:
            source: settings of the input's topic.
            config: more configuration.
        """
        super().__init__(folder, f"totals-{uuid.uuid4().hex[:8]}")
        self.broker = cast("KafkaBroker", broker)  # tests that end a broker give one
        self.source = new_topic(broker, partitions, source, name="events")
        self.output = new_topic(broker, partitions, name="totals")
        self.app = totals_app(f"kafka.{self.source}", f"kafka.{self.output}")
        self.guarantee: Guarantee = guarantee
        self.given: list[Given] = []
        self.more = dict(config)
        """More configuration, of the next driver."""
        self.partitions = partitions
        self.admin = KafkaSystem.configured("kafka", {"consumer.bootstrap.servers": broker.bootstrap_servers}).admin()
        self._producer = Producer(broker.client_options() | {"message.max.bytes": 60_000_000}, logger=QUIET)
        self._threads: list[threading.Thread] = []

    @property
    def keys(self) -> dict[str, object]:
        """The job's configuration: a commit after each batch."""
        return {
            "job.batch.max.messages": 10,
            "job.batch.interval.ms": 20,
            "task.commit.ms": 1,
            f"streams.kafka.{self.output}.output.guarantee": self.guarantee,
            **self.broker.system_config(),
            **self.more,
        }

    def put(self, count: int) -> None:
        first = len(self.given)
        self.produce([(b"k%d" % (n % KEYS), b"%d" % (n % 100)) for n in range(first, first + count)])

    def known_partitions(self) -> Collection[int]:
        """The partitions of the input that the producer knows now."""
        found: Collection[int] = (
            self._producer.list_topics(self.source, TIMEOUT_S).topics[self.source].partitions.keys()
        )
        return found

    def produce(self, messages: Sequence[Given], **how: Any) -> None:
        """Produce these messages, those of a key to one partition."""
        for key, value in messages:
            partition = sum(key or b"") % self.partitions
            self._producer.produce(self.source, value, key, partition, **how)
        assert self._producer.flush(TIMEOUT_S) == 0
        self.given += messages

    def driver(self, *, until_latest: bool = True, from_checkpoint: str | None = None) -> InProcessDriver:
        """Another driver of the job, with connections of its own. `at` sees its steps."""
        prefix = "systems.kafka."
        options = {
            key.removeprefix(prefix): str(value)
            for key, value in self.keys.items()
            if key.startswith(prefix) and not key.endswith("factory")
        }
        self.systems["kafka"] = self.hooked = HookedSystem(KafkaSystem.configured("kafka", options))
        return self.make(self.app.graph(), self.keys, until_latest=until_latest, from_checkpoint=from_checkpoint)

    def later(self, seconds: float, do: Callable[[], object]) -> None:
        """Do something in so many seconds, on another thread: `close` waits for it."""
        thread = threading.Timer(seconds, do)
        thread.start()
        self._threads.append(thread)

    def join(self) -> None:
        """Wait until everything that was to be done later is done."""
        while self._threads:
            self._threads.pop().join()

    def run(self, driver: InProcessDriver) -> None:
        """The driver's run, to its end."""
        try:
            driver.loop.run()
        finally:
            self.join()
            self.kill(driver)

    def found(self) -> dict[bytes, list[int]]:
        """The totals of each key in the output, in order, as a read_committed reader sees them."""
        totals: dict[bytes, list[int]] = defaultdict(list)
        for key, value in read_committed(self.broker, self.output):
            totals[key or b""].append(int((value or b"")[:20]))
        return dict(totals)

    def check(self) -> None:
        """The output is what the oracle says: nothing is lost, and with exactly-once nothing is there twice."""
        found, right = self.found(), expected(self.given)
        if self.guarantee == "exactly-once":
            assert found == right
        else:
            assert {key: sorted(set(own)) for key, own in found.items()} == {
                key: sorted(set(own)) for key, own in right.items()
            }
            assert {key: own[-1] for key, own in found.items()} == {key: own[-1] for key, own in right.items()}

    def close(self) -> None:
        self.join()
        self.admin.close()
        super().close()


def read_committed(broker: KafkaBroker | KafkaCluster, topic: str) -> list[Given]:
    """Everything that a read_committed reader sees in a topic, once no transaction in it is open."""
    found: list[Given] = []
    ends = _written(broker, topic)
    consumer = _consumer(broker, "read_committed")
    try:
        for at, end in ends.items():
            consumer.assign([TopicPartition(topic, at, 0)])
            while end:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None, f"a transaction in {topic} stays open"
                if (error := message.error()) is None:
                    found.append((message.key(), message.value()))
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise AssertionError(error)
                elif int(message.offset() or 0) >= end:
                    break
    finally:
        consumer.close()
    return found


_LATE = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._TRANSPORT,
    KafkaError._UNKNOWN_PARTITION,  # the client takes a partition without a leader for none at all
)


def _written(broker: KafkaBroker | KafkaCluster, topic: str) -> dict[int, int]:
    """By partition, the end of what was written, whether it is committed or not."""
    consumer = _consumer(broker, "read_uncommitted")
    deadline = time.monotonic() + TIMEOUT_S
    ends: dict[int, int] = {}
    try:
        for n in sorted(consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions):
            while n not in ends:
                try:
                    ends[n] = consumer.get_watermark_offsets(TopicPartition(topic, n), TIMEOUT_S, cached=False)[1]
                except KafkaException as error:  # a broker that has just started leads the partition a little later
                    if error.args[0].code() not in _LATE or time.monotonic() > deadline:
                        raise
                    consumer.poll(0.1)
        return ends
    finally:
        consumer.close()


def _consumer(broker: KafkaBroker | KafkaCluster, isolation: str) -> Consumer:
    settings = {
        **broker.client_options(),
        "group.id": "oracle",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": isolation,
        "auto.offset.reset": "earliest",
        "fetch.message.max.bytes": 60_000_000,
        "fetch.wait.max.ms": 10,
    }
    return Consumer(settings, logger=QUIET)
