"""Topics of the Kafka benchmark: the events, a steady flow of messages, what a side wrote, and the other engines."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from confluent_kafka import OFFSET_END, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.engines import PEERS, Engine
from benchmarks.harness import SideRun, UsageSampler, percentile, repeating, run_facts
from benchmarks.jobs import read_stream
from benchmarks.workload import Workload, key_name
from penstock.system.kafka.system import KafkaSystem
from penstock.system.partitioner import partition_of

EVERY = 10
"""A key's count is sent on once in so many messages, by all sides: see `sends`."""
_TIMEOUT_S = 30.0
_FLOW_KEYS, _FLOW_PAUSE_S = 10_000, 0.005
Sighting = tuple[int, float, float]
"""The number of a message, when it was produced, and when it was read: epoch seconds."""
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
    "bytewax": Engine("bytewax[kafka]==0.21.1 orjson==3.11.4", PEERS / "bytewax_count.py", prepares=True),
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
    if producer.flush(300):
        raise RuntimeError("the broker did not take all events")


def committed(reader: Consumer, topic: str, partitions: int) -> int:
    """The number of committed messages of a topic. Waits while a new partition has no leader."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            parts = (TopicPartition(topic, n) for n in range(partitions))
            return sum(reader.get_watermark_offsets(each, _TIMEOUT_S)[1] for each in parts)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def sends(key: str, number: int) -> bool:
    """True if a key's count is sent on. Keys begin in turn: it is a tenth of all messages from the start."""
    return (number + ord(key[-1])) % EVERY == 0


def check_counts(brokers: str, topic: str, totals: Mapping[str, int], *, every_one: bool) -> dict[str, object]:
    """True if a side sent the messages of a plain computation: for each key its counts in order, none larger than the
    number of its messages in `totals`. All sides send at least once, so a count that comes again is no error.
    `every_one` is False for sides that send one a batch, as Spark does: their counts only rise."""
    last: dict[str, int] = {}
    wrong: list[str] = []
    messages = repeated = 0
    system = KafkaSystem.configured("kafka", {"consumer.bootstrap.servers": brokers})
    for _, key, value in read_stream(system, topic):
        messages += 1
        name, count = key.decode(), value["count"]
        before = last.get(name, 0)
        if before and count <= before:
            repeated += 1
        elif not sends(name, count) or (every_one and count > before + EVERY):
            wrong.append(f"{name}: {count} after {before}")
        last[name] = count
    wrong += [f"{key}: {count} of {totals.get(key, 0)}" for key, count in last.items() if count > totals.get(key, 0)]
    return {
        "equal": bool(last) and not wrong,
        "messages": messages,
        "keys": len(last),
        "repeated": repeated,
        "wrong": len(wrong),
        "examples": wrong[:3],
    }


class Flow:
    """A topic, and another one in which a job that runs already sends on what comes in the first."""

    def __init__(self, brokers: str, topic: str, output: str, partitions: int) -> None:
        self._topic = topic
        self._producer = new_producer(brokers, **{"linger.ms": 2})
        self._reader = new_reader(brokers)
        self._reader.assign([TopicPartition(output, n, OFFSET_END) for n in range(partitions)])
        self._reader.consume(1, 0.5)
        self._sent = 0
        self._partitions = partitions
        self._begun: set[int] = set()

    def begin(self) -> None:
        """Send a message to each partition."""
        for partition in range(self._partitions):
            self._producer.produce(self._topic, orjson.dumps({"n": -1 - partition, "at": 0.0}), b"begin", partition)
        self._producer.flush(10)

    def has_begun(self) -> bool:
        """True once all of them have come."""
        self._begun |= {number for number, _, _ in self.read()}
        return len(self._begun) == self._partitions

    def read(self, timeout_s: float = 0.005) -> list[Sighting]:
        """The messages that have come. The client waits for the whole time unless 5,000 come before."""
        messages = self._reader.consume(5000, timeout_s)
        now = time.time()
        found = [orjson.loads(each.value() or b"{}") for each in messages if each.error() is None]
        return [(each["n"], each["at"], now) for each in found]

    def run(self, rate: int, warm_up_s: float, seconds: float, late_s: float, session: int) -> dict[str, Any]:
        """Send so many messages a second, and read until all have come, at the latest `late_s` after the end. What is
        produced in `seconds` counts, after a warm-up. `session` is that of the job's processes."""
        sampler = UsageSampler(session)
        began = time.time()
        start, end = began + warm_up_s, began + warm_up_s + seconds
        found: list[Sighting] = []
        try:
            with repeating(partial(self._produce, began, rate), _FLOW_PAUSE_S):
                while time.time() < end:
                    found += self.read()
            self._producer.flush(30)
            while len(found) < self._sent and time.time() < end + late_s:
                found += self.read()
            found += self.read(1.0)  # what came twice
        finally:
            usage = sampler.close()
        waits = sorted((seen - at) * 1000 for _, at, seen in found if start <= at < end)
        spent = sum(usage.cpu_between(start, end).values())
        return {
            "messages": len(waits),
            "rate": round(len(waits) / seconds),
            "p50_ms": round(percentile(waits, 0.5)) if waits else None,
            "p99_ms": round(percentile(waits, 0.99)) if waits else None,
            "cores": round(spent / seconds, 2),
            "verified": _none_lost(self._sent, [number for number, _, _ in found]),
            **run_facts(SideRun({}, usage, time.time() - began)),
        }

    def close(self) -> None:
        self._reader.close()

    def _produce(self, began: float, rate: int) -> None:
        """Produce the messages that are due."""
        due = int((time.time() - began) * rate)
        for number in range(self._sent, due):
            value = orjson.dumps({"n": number, "at": time.time()})
            produce(self._producer, self._topic, value, f"key-{number % _FLOW_KEYS}")
        self._sent = max(self._sent, due)
        self._producer.poll(0)


def _none_lost(sent: int, numbers: Sequence[int]) -> dict[str, Any]:
    """True if each message has come, and the number of those that came more than once."""
    own = [number for number in numbers if number >= 0]
    lost = sent - len(set(own))
    return {"equal": not lost, "sent": sent, "lost": lost, "repeated": len(own) - len(set(own))}
