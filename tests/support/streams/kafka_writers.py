"""The messages that tests of Kafka writers write, and how plain clients find them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import Progress, RawRecord
from penstock.system.kafka import fences
from penstock.system.kafka.job_topic import JobTopic
from penstock.system.kafka.options import KafkaOptions, parse_options
from penstock.system.kafka.writer import KafkaWriter
from penstock.testing.kafka_broker import KafkaBroker
from penstock.testing.kafka_cluster import KafkaCluster
from tests.support.streams.kafka import QUIET, TIMEOUT_S

FOREVER = {"retention.ms": "-1"}
"""Records of these tests are of 1970."""


def options_of(broker: KafkaBroker | KafkaCluster) -> KafkaOptions:
    return parse_options("kafka", {"consumer.bootstrap.servers": broker.bootstrap_servers})


def other(here: SystemStreamPartition) -> SystemStreamPartition:
    return SystemStreamPartition(here.system, here.stream, 1)


def records(first: int, count: int, value: bytes = b"v") -> list[RawRecord]:
    return [(1000 + n, b"%d" % n, value) for n in range(first, first + count)]


def read(options: KafkaOptions, ssp: SystemStreamPartition) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """The messages that a read_committed reader sees, up to the end of what was written by now. A commit returns
    before the brokers have told its partitions, so the stable end may be before what is committed for a moment."""
    end, deadline = written_end(options, ssp), time.monotonic() + TIMEOUT_S
    consumer = Consumer(
        {
            "bootstrap.servers": options.servers,
            "group.id": "oracle",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        },
        logger=QUIET,
    )
    found: list[tuple[int, int, bytes | None, bytes | None]] = []
    try:
        consumer.assign([TopicPartition(ssp.stream, ssp.partition, 0)])
        while True:
            message = consumer.poll(1)
            assert time.monotonic() < deadline, f"a transaction is open in {ssp} before {end}"
            if message is None:
                continue
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF and (message.offset() or 0) >= end:
                    return found
                continue
            found.append((message.offset() or 0, message.timestamp()[1], message.key(), message.value()))
    finally:
        consumer.close()


def keys(options: KafkaOptions, ssp: SystemStreamPartition) -> list[int]:
    return [int(key or b"-1") for _, _, key, _ in read(options, ssp)]


def written_end(options: KafkaOptions, ssp: SystemStreamPartition) -> int:
    """Behind all that is committed, open, or aborted."""
    consumer = Consumer(
        {"bootstrap.servers": options.servers, "group.id": "oracle", "isolation.level": "read_uncommitted"},
        logger=QUIET,
    )
    try:
        at, deadline = TopicPartition(ssp.stream, ssp.partition), time.monotonic() + TIMEOUT_S
        while True:
            try:
                return int(consumer.get_watermark_offsets(at, TIMEOUT_S, cached=False)[1])
            except KafkaException as error:  # its leader moves
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
                consumer.poll(0.05)
    finally:
        consumer.close()


def job_state(options: KafkaOptions, name: str) -> JobTopic:
    with closing(fences.opened(options, name, committed=False)) as log:
        return log.catch_up()


def publish(writer: KafkaWriter, marks: dict[SystemStreamPartition, Progress], batch: Iterable[RawRecord]) -> None:
    with writer.begin() as begun:
        for at, mark in marks.items():
            begun.append(at, batch)
            begun.mark(at, mark)
