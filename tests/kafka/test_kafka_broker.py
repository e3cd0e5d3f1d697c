"""The broker that tests use: it starts, keeps what it was given, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from penstock.errors import ConfigError, RetryableError
from penstock.testing.kafka_broker import KafkaBroker, Security
from tests.support.processes.inspection import has_ended
from tests.support.streams.kafka import QUIET, TIMEOUT_S, new_topic

pytestmark = pytest.mark.kafka

HOLDER = """
import sys
from penstock.testing.kafka_broker import KafkaBroker
broker = KafkaBroker().start()
print(broker.pid, broker.folder, flush=True)
sys.stdin.read()
"""
"""A program that starts a broker, does not stop it, and ends when its standard input does."""


def append(options: dict[str, Any], topic: str, *values: bytes) -> None:
    producer = Producer({**options, "acks": "all"}, logger=QUIET)
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def read(options: dict[str, Any], topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({**options, "group.id": "test", "enable.auto.commit": "false"}, logger=QUIET)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(count, TIMEOUT_S)
        assert not [message.error() for message in messages if message.error()]
        return [message.value() for message in messages]
    finally:
        consumer.close()


def await_condition(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("security", ["PLAINTEXT", "SSL", "SASL_SSL"])
def test_every_listener_speaks_to_a_client(kafka_broker: KafkaBroker, security: Security) -> None:
    topic = new_topic(kafka_broker)
    options = kafka_broker.client_options(security)
    append(options, topic, b"one", b"two")
    assert read(options, topic, 2) == [b"one", b"two"]


def test_a_client_that_does_not_know_the_authority_or_the_password_is_refused(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker)
    unknown = kafka_broker.client_options("SSL")
    del unknown["ssl.ca.location"]
    wrong = kafka_broker.client_options("SASL_SSL") | {"sasl.password": "wrong"}
    for options, expected in ((unknown, KafkaError._SSL), (wrong, KafkaError._AUTHENTICATION)):
        errors: list[KafkaError] = []
        producer = Producer({**options, "error_cb": errors.append}, logger=QUIET)
        producer.produce(topic, b"never")
        await_condition(lambda: producer.poll(0.05) >= 0 and expected in [each.code() for each in errors])  # noqa: B023
        producer.purge()


@pytest.mark.slow
def test_a_broker_keeps_its_ports_data_and_settings_when_it_is_killed_and_restarted() -> None:
    with KafkaBroker(security=["SSL"], settings={"message.max.bytes": 2000}) as broker:
        topic, address, options = new_topic(broker), broker.bootstrap_servers, broker.client_options()
        append(options, topic, b"one")
        killed = broker.pid
        broker.kill()
        assert has_ended(killed)
        broker.start()
        append(options, topic, b"two")
        broker.restart()
        assert (broker.bootstrap_servers, broker.client_options()) == (address, options)
        assert read(options, topic, 2) == [b"one", b"two"]

        delivered: list[KafkaError | None] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            delivered.append(error)

        producer = Producer(options, logger=QUIET)
        producer.produce(topic, b"x" * 3000, on_delivery=on_delivery)
        assert producer.flush(TIMEOUT_S) == 0
        assert [error and error.code() for error in delivered] == [KafkaError.MSG_SIZE_TOO_LARGE]

        broker.freeze()
        producer.produce(topic, b"three", on_delivery=on_delivery)
        assert producer.flush(0.5) == 1
        assert broker.running
        broker.resume()
        assert producer.flush(TIMEOUT_S) == 0
        assert delivered[1:] == [None]
        broker.freeze()
        broker.stop()  # which does not wait for a frozen broker
        assert not broker.running


@pytest.mark.slow
def test_brokers_end_with_their_process_and_leave_nothing() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    holders = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(2)
    ]
    brokers: list[tuple[int, Path]] = []
    for holder in holders:  # both run at the same time
        assert holder.stdout is not None
        broker, place = holder.stdout.readline().split()
        brokers.append((int(broker), Path(place)))
    assert all(psutil.Process(pid).name() == "java" and folder.is_dir() for pid, folder in brokers)
    holders[0].kill()
    for holder in holders:
        holder.communicate(timeout=TIMEOUT_S)
    for pid, folder in brokers:
        await_condition(lambda: has_ended(pid) and not folder.exists())  # noqa: B023


def test_a_broker_that_fails_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RetryableError, match=r"(?s)ended with status 1 while it started.*log.retention.hours"):
        KafkaBroker(settings={"log.retention.hours": "many"}).start()
    assert list(tmp_path.iterdir()) == []


def test_what_a_broker_decides_cannot_be_set() -> None:
    with pytest.raises(ConfigError, match="KafkaBroker decides `listeners`"):
        KafkaBroker(settings={"listeners": "PLAINTEXT://:9092"}).start()
    with pytest.raises(ConfigError, match="`security` is `TLS`; it can be some of: PLAINTEXT, SSL"):
        KafkaBroker(security=["TLS"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="has not been started"):
        KafkaBroker().bootstrap_servers  # noqa: B018
