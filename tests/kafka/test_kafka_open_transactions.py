"""A transaction that stays open keeps readers back, and the admin says so."""

from __future__ import annotations

import time
import uuid

import pytest
from confluent_kafka import Producer

from penstock.system.base import PartitionOffsets
from penstock.system.kafka.system import KafkaSystem
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.jobs.home import wait_until
from tests.support.streams.kafka import QUIET, TIMEOUT_S, new_topic

pytestmark = pytest.mark.kafka


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
