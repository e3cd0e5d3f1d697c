"""The broker that tests use: it starts, keeps what it was given, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.testing.kafka_broker import KafkaBroker, Mechanism, Security
from tests.support.kafka import TIMEOUT_S, need_kafka, new_topic

pytestmark = pytest.mark.kafka


def append(options: dict[str, Any], topic: str, *values: bytes) -> None:
    producer = Producer({**options, "acks": "all"})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def read(options: dict[str, Any], topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({**options, "group.id": "test", "enable.auto.commit": "false"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(count, TIMEOUT_S)
        assert not [message.error() for message in messages if message.error()]
        return [message.value() for message in messages]
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("security", "mechanism"),
    [
        ("PLAINTEXT", "PLAIN"),
        ("SSL", "PLAIN"),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-256"),
        ("SASL_SSL", "SCRAM-SHA-512"),
    ],
)
def test_every_listener_speaks_to_a_client(kafka_broker: KafkaBroker, security: Security, mechanism: Mechanism) -> None:
    topic = new_topic(kafka_broker)
    options = kafka_broker.client_options(security, mechanism)
    append(options, topic, b"one", b"two")
    assert read(options, topic, 2) == [b"one", b"two"]


def test_a_killed_broker_has_its_data_on_the_same_ports() -> None:
    need_kafka()
    with KafkaBroker() as broker:
        topic, address = new_topic(broker), broker.bootstrap_servers
        append(broker.client_options(), topic, b"one")
        broker.kill()
        assert not broker.running
        broker.start()
        append(broker.client_options(), topic, b"two")
        broker.restart()
        assert broker.bootstrap_servers == address
        assert read(broker.client_options(), topic, 2) == [b"one", b"two"]
