"""The topics of the demo as other programs write and read them: with a plain Kafka client, without Penstock."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import orjson
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from examples.flights.data import flights

ANSWER_S = 60.0
QUIET = logging.Logger("examples.kafka", logging.CRITICAL + 1)
"""Keeps the clients from reporting on standard error that the broker was killed."""

Options = Mapping[str, Any]


def create(options: Options, topic: str, partitions: int, settings: Mapping[str, str] | None = None) -> None:
    """Create a topic."""
    admin = AdminClient(dict(options), logger=QUIET)
    admin.create_topics([NewTopic(topic, partitions, 1, config=dict(settings or {}))])[topic].result(ANSWER_S)


def write_flights(options: Options, topic: str, limit: int | None) -> int:
    """Write the flights with their tail numbers as keys, or without a key. Returns the number of flights."""
    producer = Producer(
        {**options, "partitioner": "murmur2_random", "enable.idempotence": True, "linger.ms": 50}, logger=QUIET
    )
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    count = 0
    for flight in islice(flights(), limit):
        while True:
            try:
                producer.produce(topic, orjson.dumps(flight), flight["tailnum"], on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
    if producer.flush(ANSWER_S) or failed:
        raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
    return count


def read_committed(options: Options, topic: str) -> Iterator[Message]:
    """Every message that a reader with `isolation.level=read_committed` sees, in order within a partition."""
    ends = _ends(options, topic)
    consumer = Consumer(
        {
            **options,
            "group.id": "demo",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        },
        logger=QUIET,
    )
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
        deadline = time.monotonic() + ANSWER_S
        while ends:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: the partitions {sorted(ends)} were not read to the end in {ANSWER_S} s")
            for message in consumer.consume(10_000, timeout=1.0):
                error, partition, offset = message.error(), message.partition(), message.offset()
                if error is None:
                    yield message
                elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
                    raise KafkaException(error)
                elif partition is not None and offset is not None and offset >= ends.get(partition, 0):
                    ends.pop(partition, None)
    finally:
        consumer.close()


def _ends(options: Options, topic: str) -> dict[int, int]:
    """The end of each partition, including transaction markers."""
    admin = AdminClient(dict(options), logger=QUIET)
    found = admin.list_topics(topic, timeout=ANSWER_S).topics[topic]
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in found.partitions}
    level = IsolationLevel.READ_UNCOMMITTED
    answers = admin.list_offsets(asked, isolation_level=level)  # pyright: ignore[reportArgumentType]
    return {place.partition: answer.result(ANSWER_S).offset for place, answer in answers.items()}
