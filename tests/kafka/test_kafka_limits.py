"""Messages that a topic refuses, and a transaction that stays open and keeps readers back."""

from __future__ import annotations

import os
import re
import time
import uuid
from contextlib import closing

import pytest
from confluent_kafka import Producer

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError
from penstock.system.base import PartitionOffsets
from penstock.system.kafka.admin import KafkaAdmin
from penstock.system.kafka.system import KafkaSystem
from penstock.system.kafka.writer import KafkaWriter
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.jobs.home import wait_until
from tests.support.streams.kafka import QUIET, TIMEOUT_S, new_topic
from tests.support.streams.kafka_writers import options_of

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(
    ("config", "record", "setting"),
    [
        ({"cleanup.policy": "compact"}, (1, None, b"v"), "cleanup.policy=delete"),
        ({"cleanup.policy": "compact,delete"}, (1, None, None), "cleanup.policy=delete"),
        ({"max.message.bytes": "2000"}, (1, b"k", os.urandom(3000)), "max.message.bytes=..."),
    ],
)
def test_what_the_brokers_refuse_is_known_before(
    kafka_broker: KafkaBroker, config: dict[str, str], record: tuple[int, bytes | None, bytes | None], setting: str
) -> None:
    options, topic = options_of(kafka_broker), new_topic(kafka_broker, config=config)
    ssp = SystemStreamPartition("kafka", topic, 0)
    with closing(KafkaAdmin(options)) as admin:
        limits = admin.record_limits(topic)
    assert limits.refused(*record[1:]) is not None
    assert limits.refused(b"k", b"v" * 1000) is None
    assert limits.refused(b"k", b"v" * 3000) is None
    with closing(KafkaWriter(options, None)) as writer:
        with pytest.raises(ConfigError, match=rf"kafka-configs\.sh .*--entity-name {topic} .*{re.escape(setting)}`"):
            writer.append(ssp, [record])
        writer.append(ssp, [(1, b"k", b"v" * 1000), (1, b"k", b"v" * 3000)])


def test_what_is_behind_it_since_when_and_that_it_is_over(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker, partitions=2)
    servers = kafka_broker.client_options()["bootstrap.servers"]
    admin = KafkaSystem.configured("kafka", {"consumer.bootstrap.servers": str(servers)}).admin()
    assert admin.open_transactions(topic) == {}
    producer = Producer({**kafka_broker.client_options(), "transactional.id": uuid.uuid4().hex}, logger=QUIET)
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    before_ms = time.time_ns() // 1_000_000
    for _ in range(5):
        producer.produce(topic, b"value", partition=1)
    producer.flush(TIMEOUT_S)
    (found,) = admin.open_transactions(topic).items()
    partition, transaction = found
    assert (partition, transaction.offset, transaction.messages) == (1, 0, 5)
    assert before_ms <= transaction.since_ms <= time.time_ns() // 1_000_000
    assert admin.offsets(topic)[1] == PartitionOffsets(0, 0)
    producer.commit_transaction(TIMEOUT_S)
    wait_until(lambda: admin.open_transactions(topic) == {}, "the marker of the commit")
    assert admin.offsets(topic)[1] == PartitionOffsets(0, 6)
    admin.close()
