"""Topics of the Kafka benchmark: the events in a topic, what a side wrote, and the other engines."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.engines import PEERS, Engine
from benchmarks.workload import Workload, key_name
from penstock.system.partitioner import partition_of

EVERY = 10
"""A key's count is sent on once in so many messages, by all sides: see `sends`."""
_TIMEOUT_S = 30.0
_LOGGER = logging.getLogger("benchmarks.kafka.clients")
"""Drops librdkafka's log lines, such as that a broker is gone. A call that fails raises an error besides."""
_LOGGER.addHandler(logging.NullHandler())
_LOGGER.propagate = False


def _spark(version: str) -> Engine:
    connector = ("org.apache.spark", "spark-sql-kafka-0-10_2.13", version)
    return Engine(f"pyspark=={version}", PEERS / "spark_count.py", connector, threads=True)


ENGINES = {
    "spark": _spark("4.2.0"),
    "spark-real-time": _spark("4.3.0"),  # the first one that drops duplicates there
    "quix": Engine("quixstreams==3.28.1", PEERS / "quix.py"),
    "bytewax": Engine("bytewax[kafka]==0.21.1 orjson==3.11.4", PEERS / "bytewax_count.py"),
    "faust": Engine("faust-streaming[rocksdict]==0.15.3 orjson==3.11.4", PEERS / "faust_count.py"),
}


def new_producer(brokers: str, **options: object) -> Producer:
    """One that says nothing on stderr."""
    return Producer({"bootstrap.servers": brokers, **options}, logger=_LOGGER)


def new_reader(brokers: str, **options: object) -> Consumer:
    """A reader of committed messages that says nothing on stderr, and commits nothing."""
    fixed = {"group.id": "benchmark", "isolation.level": "read_committed", "enable.auto.commit": False}
    return Consumer({"bootstrap.servers": brokers, **fixed, **options}, logger=_LOGGER)


def create(brokers: str, topics: Sequence[str], partitions: int) -> None:
    """Create topics, which must not be there yet."""
    admin = AdminClient({"bootstrap.servers": brokers}, logger=_LOGGER)
    for made in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        made.result(_TIMEOUT_S)


def publish(brokers: str, topic: str, partitions: int, workload: Workload) -> None:
    """Write the events, by key as Java's client would."""
    producer = new_producer(brokers, **{"linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    places = {key_name(n): partition_of(key_name(n).encode(), partitions) for n in range(workload.keys)}
    for key, amount in workload.records():
        produce(producer, topic, orjson.dumps({"key": key, "amount": amount}), key, places[key])
    flush(producer)


def produce(producer: Producer, topic: str, value: bytes, key: str | None, partition: int = -1) -> None:
    """Produce a message, and wait while the producer's queue is full."""
    while True:
        try:
            return producer.produce(topic, value, key, partition)
        except BufferError:
            producer.poll(0.01)


def flush(producer: Producer) -> None:
    """Wait until the broker has all messages."""
    if producer.flush(300):
        raise RuntimeError("the broker did not take all events")


class Ends:
    """Counts the committed messages of a topic. Used by one thread."""

    def __init__(self, brokers: str, topic: str, partitions: int) -> None:
        self._reader = new_reader(brokers)
        self._partitions = [TopicPartition(topic, n) for n in range(partitions)]

    def messages(self) -> int:
        """The sum of the ends of all partitions. Waits while a new partition has no leader."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                return sum(self._reader.get_watermark_offsets(each, _TIMEOUT_S)[1] for each in self._partitions)
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def close(self) -> None:
        """Count no more."""
        self._reader.close()


def read_committed(brokers: str, topic: str, partitions: int) -> Iterator[tuple[bytes, bytes]]:
    """Every committed message of a topic that nobody writes to any more.

    Raises:
        RuntimeError: the broker gave nothing for a long time.
    """
    reader = new_reader(brokers, **{"enable.partition.eof": True})
    try:
        reader.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(partitions)])
        left = set(range(partitions))
        last = time.monotonic()
        while left:
            messages = reader.consume(10_000, 0.1)
            if messages:
                last = time.monotonic()
            elif time.monotonic() - last > _TIMEOUT_S:
                raise RuntimeError(f"partitions {sorted(left)} of `{topic}` cannot be read")
            for message in messages:
                error = message.error()
                if error is None:
                    yield message.key() or b"", message.value() or b""
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition() or 0)
    finally:
        reader.close()


def sends(key: str, number: int) -> bool:
    """True if a key's count is sent on. Keys begin in turn: it is a tenth of all messages from the start."""
    return (number + ord(key[-1])) % EVERY == 0


def first_sent(key: str) -> int:
    """The first count of a key that is sent on."""
    return next(number for number in range(1, EVERY + 1) if sends(key, number))


def check_counts(
    brokers: str, topic: str, partitions: int, totals: Mapping[str, int], *, every_one: bool
) -> dict[str, object]:
    """True if a side sent the messages of a plain computation: for each key its counts in order, none too large.

    All sides send at least once, so a count that comes again is `repeated`, which is no error.

    Args:
        totals: how many messages each key has.
        every_one: whether none may be missing from the first on. Otherwise they only rise: Spark sends one a batch.
    """
    last: dict[str, int] = {}
    wrong: list[str] = []
    messages = repeated = 0
    for key, value in read_committed(brokers, topic, partitions):
        messages += 1
        name, count = key.decode(), orjson.loads(value)["count"]
        before = last.get(name, 0)
        if before and count <= before:
            repeated += 1
        elif not sends(name, count) or (every_one and count != (before + EVERY if before else first_sent(name))):
            wrong.append(f"{name}: {count} after {before}")
        last[name] = count
    wrong += [
        f"{name}: {count} of {totals.get(name, 0)}" for name, count in last.items() if count > totals.get(name, 0)
    ]
    return {
        "equal": bool(last) and not wrong,
        "messages": messages,
        "keys": len(last),
        "repeated": repeated,
        "wrong": len(wrong),
        "examples": wrong[:3],
    }
