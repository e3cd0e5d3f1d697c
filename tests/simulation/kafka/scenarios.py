"""The same calls of the client on a real broker and on the model, and what each of them shows.

A scenario is a function over a bench. It makes clients, calls them, and notes what it sees. What brokers do a little
later, as writing the markers of a transaction, is noted once it is as the other bench has it, or after a time limit.
"""

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
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec, ResourceType

from penstock.testing.kafka_broker import KafkaBroker
from tests.simulation.kafka import cluster as model
from tests.simulation.kafka.admin import AdminClient
from tests.simulation.kafka.consumer import Consumer
from tests.simulation.kafka.partition import BrokerError
from tests.simulation.kafka.producer import Producer
from tests.support.streams.kafka import QUIET
from tests.support.streams.kafka_proxy import END_TXN, KafkaProxy

_WITHIN_S = 20.0
_COMMITTED, _EVERY = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
Scenario = Callable[["Bench"], None]


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
            made.init_transactions(_WITHIN_S)
        return made

    def send(self, producer: Any, keys: str, partition: int = 0, timestamp: int = 1000) -> list[Any]:
        """Send a record for each letter. Returns the offsets, or the codes of errors."""
        found: list[Any] = []

        def report(error: KafkaError | None, message: Message) -> None:
            found.append(message.offset() if error is None else error.name())

        for key in keys:
            producer.produce(self.topic, b"v", key.encode(), partition, report, None, timestamp)
        producer.flush(_WITHIN_S)
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
        return int(one(self.admin.list_offsets(wanted, isolation_level=level, request_timeout=_WITHIN_S)).offset)

    def read(self, offset: int = 0, partition: int = 0, *, committed: bool = True, topic: str | None = None) -> str:
        """Keys and offsets up to the end of the partition, or an error."""
        level = "read_committed" if committed else "read_uncommitted"
        config = {"group.id": "g", "isolation.level": level, "enable.partition.eof": True}
        decided = {"auto.offset.reset": "error", "enable.auto.commit": False, "fetch.wait.max.ms": 10}
        consumer = self.make("Consumer", {**config, **decided, "topic.metadata.propagation.max.ms": 2000})
        found: list[str] = []
        try:
            consumer.assign([TopicPartition(topic or self.topic, partition, offset)])
            until = time.monotonic() + _WITHIN_S
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
    until = time.monotonic() + _WITHIN_S
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
    return next(iter(futures.values())).result(_WITHIN_S)


# Scenarios.


def a_commit(bench: Bench) -> None:
    producer = bench.producer(bench.name())
    producer.begin_transaction()
    bench.note("sent", lambda: bench.send(producer, "ab"))
    bench.note("sent to the other partition", lambda: bench.send(producer, "c", 1))
    bench.note("open", bench.ends)
    bench.note("read while it is open", bench.read)
    bench.note("read uncommitted while it is open", lambda: bench.read(committed=False))
    bench.note("commit", lambda: producer.commit_transaction(_WITHIN_S))
    bench.note_later("ends", bench.ends)
    bench.note_later("ends of the other partition", lambda: bench.ends(1))
    bench.note("read", bench.read)
    bench.note("read from the marker on", lambda: bench.read(2))
    bench.note("read behind the end", lambda: bench.read(4))


def an_abort(bench: Bench) -> None:
    producer = bench.producer(bench.name())
    producer.begin_transaction()
    bench.send(producer, "ab")
    bench.note("abort", lambda: producer.abort_transaction(_WITHIN_S))
    bench.note_later("ends", bench.ends)
    bench.note("read", bench.read)
    bench.note("read uncommitted", lambda: bench.read(committed=False))
    other = bench.producer()
    bench.note("a plain record", lambda: bench.send(other, "p"))
    bench.note("read both", bench.read)


def an_open_transaction_holds_others_up(bench: Bench) -> None:
    first, second = bench.producer(bench.name()), bench.producer(bench.name())
    plain = bench.producer()
    bench.send(plain, "a")
    first.begin_transaction()
    bench.send(first, "b")
    second.begin_transaction()
    bench.send(second, "c")
    bench.send(plain, "d")
    second.commit_transaction(_WITHIN_S)
    bench.note_later("the second one is committed", bench.ends)
    bench.note("read", bench.read)
    bench.note("the offset at a time", lambda: bench.offset(OffsetSpec.for_timestamp(1000)))
    bench.note("no offset that is stable at a time", lambda: bench.offset(OffsetSpec.for_timestamp(1001)))
    first.abort_transaction(_WITHIN_S)
    bench.note_later("the first one is aborted", bench.ends)
    bench.note("read all", bench.read)
    bench.note("a marker has a time", lambda: bench.offset(OffsetSpec.for_timestamp(1001)))


def a_fenced_producer(bench: Bench) -> None:
    name = bench.name()
    first = bench.producer(name)
    first.begin_transaction()
    bench.send(first, "a")
    second = bench.producer(name)
    bench.note_later("what was open is aborted", bench.ends)
    bench.note("the first one sends", lambda: bench.send(first, "b"))
    bench.note("it commits", lambda: first.commit_transaction(_WITHIN_S))
    bench.note("it aborts", lambda: first.abort_transaction(_WITHIN_S))
    bench.note("it sends again", lambda: bench.send(first, "b"))
    bench.note("it begins", first.begin_transaction)
    second.begin_transaction()
    bench.note("the second one sends", lambda: bench.send(second, "c"))
    bench.note("and commits", lambda: second.commit_transaction(_WITHIN_S))
    bench.note_later("ends", bench.ends)
    bench.note("read", bench.read)


def a_commit_of_a_fenced_producer(bench: Bench) -> None:
    name = bench.name()
    first = bench.producer(name)
    first.begin_transaction()
    bench.send(first, "a")
    bench.producer(name)
    bench.note("commit", lambda: first.commit_transaction(_WITHIN_S))
    bench.note_later("ends", bench.ends)
    bench.note("read", bench.read)


def a_producer_fenced_before_it_begins(bench: Bench) -> None:
    name = bench.name()
    first = bench.producer(name)
    bench.producer(name)
    first.begin_transaction()
    bench.note("sent", lambda: bench.send(first, "a"))
    bench.note("commit", lambda: first.commit_transaction(_WITHIN_S))
    bench.note("ends", bench.ends)


def a_transaction_that_takes_too_long(bench: Bench) -> None:
    name = bench.name()
    producer = bench.producer(name, **{"transaction.timeout.ms": 1000, "message.timeout.ms": 1000})
    producer.begin_transaction()
    bench.note("sent", lambda: bench.send(producer, "a"))
    bench.expire(name)
    bench.note("commit", lambda: producer.commit_transaction(_WITHIN_S))
    bench.note("read", bench.read)
    bench.note("ends", bench.ends)


def a_late_commit(bench: Bench) -> None:
    """A request that comes late ends the next transaction of its producer."""
    producer = bench.producer(bench.name())
    producer.begin_transaction()
    bench.send(producer, "a")
    release = bench.hold_end()
    bench.note("commit", lambda: producer.commit_transaction(_WITHIN_S))
    producer.begin_transaction()
    bench.note("sent", lambda: bench.send(producer, "b"))
    release()
    bench.note_later("the second one is committed", bench.ends)
    bench.note("sent behind it", lambda: bench.send(producer, "c"))
    bench.note("commit the second one", lambda: producer.commit_transaction(_WITHIN_S))
    bench.note("abort it", lambda: producer.abort_transaction(_WITHIN_S))
    bench.note_later("ends", bench.ends)
    bench.note("read", bench.read)


def a_late_abort(bench: Bench) -> None:
    producer = bench.producer(bench.name())
    producer.begin_transaction()
    bench.send(producer, "a")
    release = bench.hold_end()
    bench.note("abort", lambda: producer.abort_transaction(_WITHIN_S))
    producer.begin_transaction()
    bench.note("sent", lambda: bench.send(producer, "b"))
    release()
    bench.note_later("the second one is aborted", bench.ends)
    bench.note("commit the second one", lambda: producer.commit_transaction(_WITHIN_S))
    bench.note_later("ends", bench.ends)
    bench.note("read", bench.read)


def a_late_commit_before_a_commit(bench: Bench) -> None:
    """Nobody notices."""
    producer = bench.producer(bench.name())
    producer.begin_transaction()
    bench.send(producer, "a")
    release = bench.hold_end()
    producer.commit_transaction(_WITHIN_S)
    producer.begin_transaction()
    bench.send(producer, "b")
    release()
    bench.note_later("the second one is committed", bench.ends)
    bench.note("commit the second one", lambda: producer.commit_transaction(_WITHIN_S))
    bench.note_later("ends", bench.ends)
    bench.note("read", bench.read)


def reports(bench: Bench) -> None:
    producer = bench.producer()
    for name, given in {
        "first": (bench.seen.append, None),
        "second": (None, bench.seen.append),
        "alone": (),
    }.items():
        found: list[Any] = []

        def report(error: KafkaError | None, message: Message) -> None:
            found.append(message.offset())  # noqa: B023 - called in this pass

        called = [None if each is None else report for each in given]
        more = {} if called else {"on_delivery": report}
        producer.produce(bench.topic, b"v", b"a", 0, *called, **more)
        bench.note(f"{name}: left", lambda: producer.flush(_WITHIN_S))
        bench.note(f"{name}: reports", found.copy)


def calls_at_the_wrong_time(bench: Bench) -> None:
    producer = bench.producer(bench.name())
    bench.note("send", lambda: bench.send(producer, "a"))
    bench.note("commit", lambda: producer.commit_transaction(_WITHIN_S))
    bench.note("abort", lambda: producer.abort_transaction(_WITHIN_S))
    bench.note("begin", producer.begin_transaction)
    bench.note("begin twice", producer.begin_transaction)
    bench.note("commit nothing", lambda: producer.commit_transaction(_WITHIN_S))
    bench.note("ends", bench.ends)
    bench.note("begin again", producer.begin_transaction)
    bench.note("abort nothing", lambda: producer.abort_transaction(_WITHIN_S))


def deleted_records(bench: Bench) -> None:
    producer = bench.producer()
    bench.send(producer, "abcd")
    bench.note("delete", lambda: bench.delete_before(2))
    bench.note("ends", bench.ends)
    bench.note("read from the beginning", bench.read)
    bench.note("read what is left", lambda: bench.read(2))
    bench.note("delete behind the end", lambda: bench.delete_before(9))
    bench.note("delete all", lambda: bench.delete_before(-1))
    bench.note("ends again", bench.ends)
    bench.note("read nothing", lambda: bench.read(4))
    bench.note("the producer goes on", lambda: bench.send(producer, "e"))


def topics(bench: Bench) -> None:
    missing = bench.name()
    bench.note("describe", lambda: str(bench.describe(missing)))
    consumer = bench.make("Consumer", {"group.id": "g"})
    at = TopicPartition(missing, 0)
    bench.note("its ends", lambda: consumer.get_watermark_offsets(at, 5, cached=False))
    consumer.close()
    bench.note("metadata", lambda: bench.admin.list_topics(missing, timeout=5).topics[missing].error.name())
    bench.note("create again", lambda: one(bench.admin.create_topics([bench.new])))
    bench.note("delete what is not there", lambda: one(bench.admin.delete_topics([missing])))
    before = str(bench.describe().topic_id)
    bench.send(bench.producer(), "ab")
    one(bench.admin.delete_topics([bench.topic]))
    bench.note_later("deleted", lambda: str(bench.describe()))
    bench.note_later("create", lambda: one(bench.admin.create_topics([bench.new])))
    bench.note_later("another topic", lambda: str(bench.describe().topic_id) != before)
    bench.note_later("empty", bench.ends)


def settings(bench: Bench) -> None:
    resource = ConfigResource(ResourceType.TOPIC, bench.topic)
    found = one(bench.admin.describe_configs([resource]))
    for name in sorted(model._DEFAULTS.keys() - {"max.message.bytes"}):  # the broker of tests has another one
        bench.note(name, lambda name=name: found[name].value)  # type: ignore[misc]


SCENARIOS: Sequence[Scenario] = (
    a_commit,
    an_abort,
    an_open_transaction_holds_others_up,
    a_fenced_producer,
    a_commit_of_a_fenced_producer,
    a_producer_fenced_before_it_begins,
    a_late_commit,
    a_late_abort,
    a_late_commit_before_a_commit,
    reports,
    calls_at_the_wrong_time,
    deleted_records,
    topics,
    settings,
)
SLOW: Sequence[Scenario] = (a_transaction_that_takes_too_long,)
