"""Requests to end a transaction that were held up in the network, and reach the brokers after the client has sent them
again and begun another transaction (KIP-890; librdkafka has no defence of its own, its issue 5423)."""

from __future__ import annotations

import time
import uuid
from contextlib import closing, suppress
from pathlib import Path

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import RetryableError
from penstock.system.base import Progress, WriterIdentity
from penstock.system.kafka.client import open_producer, resent_after_s
from penstock.system.kafka.errors import ClientErrors
from penstock.system.kafka.options import KafkaOptions, parse_options
from penstock.system.kafka.writer import KafkaWriter
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.jobs.home import wait_until
from tests.support.streams.kafka import TIMEOUT_S
from tests.support.streams.kafka_proxy import ADD_PARTITIONS_TO_TXN, END_TXN, PRODUCE, HeldRequest, KafkaProxy
from tests.support.streams.kafka_streams import kafka_system
from tests.support.streams.kafka_writers import job_state, keys, other, records
from tests.support.tools.fixtures import fixture_of
from tests.support.world.kafka_once_world import KafkaOnceWorld
from tests.support.world.late_requests import StopError, run_lives

pytestmark = pytest.mark.kafka


proxy = fixture_of(KafkaProxy.before, using=("kafka_broker",))


@pytest.fixture
def through(proxy: KafkaProxy) -> KafkaOptions:
    """The options of a system whose brokers are behind the proxy."""
    return parse_options("kafka", {"consumer.bootstrap.servers": proxy.address})


def test_a_late_abort_loses_nothing(
    proxy: KafkaProxy, through: KafkaOptions, options: KafkaOptions, name: str, here: SystemStreamPartition
) -> None:
    with closing(KafkaWriter(through, WriterIdentity(name, 1))) as writer:
        with writer.begin() as begun:
            begun.append(here, records(0, 1))
            begun.mark(here, Progress(1, 0))
        late = proxy.hold(END_TXN)
        with suppress(StopError), writer.begin() as begun:
            begun.append(here, records(1, 1))
            writer.session.producer().flush(TIMEOUT_S)
            raise StopError
        with writer.begin() as begun:
            begun.append(here, records(1, 1))
            writer.session.producer().flush(TIMEOUT_S)
            late.release()
            begun.mark(here, Progress(1, 1))
    with closing(KafkaWriter(options, WriterIdentity(name, 2))) as successor:
        assert successor.progress([here])[here] == Progress(1, 1)
    assert keys(options, here) == [0, 1]


def test_a_late_abort_tears_nothing(
    proxy: KafkaProxy, through: KafkaOptions, options: KafkaOptions, name: str, here: SystemStreamPartition
) -> None:
    with closing(KafkaWriter(through, WriterIdentity(name, 1))) as writer:
        late = proxy.hold(END_TXN)
        with suppress(StopError), writer.begin() as begun:
            begun.append(here, records(0, 1))
            writer.session.producer().flush(TIMEOUT_S)
            raise StopError
        with writer.begin() as begun:
            begun.append(here, records(1, 1))
            writer.session.producer().flush(TIMEOUT_S)
            late.release()
            begun.append(other(here), records(2, 1))
    assert (keys(options, here), keys(options, other(here))) == ([1], [2])


def test_a_late_commit_shows_nothing(
    proxy: KafkaProxy, through: KafkaOptions, options: KafkaOptions, name: str, here: SystemStreamPartition
) -> None:
    with closing(KafkaWriter(through, WriterIdentity(name, 1))) as writer:
        late = proxy.hold(END_TXN)
        writer.append(here, records(0, 1))
        with suppress(StopError), writer.begin() as begun:
            begun.append(here, records(1, 1))
            writer.session.producer().flush(TIMEOUT_S)
            late.release()
            raise StopError
        writer.append(here, records(2, 1))
    assert keys(options, here) == [0, 2]


def test_a_topic_does_not_grow_with_producers(through: KafkaOptions, name: str, here: SystemStreamPartition) -> None:
    with closing(KafkaWriter(through, WriterIdentity(name, 1))) as writer:
        for turn in range(3):
            with suppress(StopError), writer.begin() as begun:
                begun.append(here, records(turn, 1))
                raise StopError
        writer.append(here, records(9, 1))
        assert len(job_state(through, name).producers) == 1
    assert len(job_state(through, name).producers) == 0


@pytest.mark.parametrize(
    "backoff", [{"retry.backoff.ms": "20"}, {"retry.backoff.ms": "500", "retry.backoff.max.ms": "20"}]
)
def test_the_client_waits_and_asks_again(
    proxy: KafkaProxy, here: SystemStreamPartition, backoff: dict[str, str]
) -> None:
    """The time of a commit tells whether its request was sent once."""
    producer = {f"producer.{key}": value for key, value in {**backoff, "reconnect.backoff.ms": "0"}.items()}
    options = parse_options("kafka", {"consumer.bootstrap.servers": proxy.address, **producer})
    client = open_producer(options, ClientErrors(), {"transactional.id": uuid.uuid4().hex})
    client.init_transactions(TIMEOUT_S)
    for _ in range(10):
        client.begin_transaction()
        client.produce(here.stream, b"v", partition=here.partition)
        client.flush(TIMEOUT_S)
        held, began = proxy.hold(END_TXN), time.monotonic()
        client.commit_transaction(TIMEOUT_S)
        assert held.has_come
        assert time.monotonic() - began >= resent_after_s(options)


def test_a_job_publishes_each_message_once(tmp_path: Path, kafka_broker: KafkaBroker, proxy: KafkaProxy) -> None:
    """Publications fail at their commit, and are made again while the request to abort them is under way."""
    world = KafkaOnceWorld(tmp_path, kafka_broker)
    world.hooked.inner = kafka_system(kafka_broker, consumer__bootstrap__servers=proxy.address)
    late: list[HeldRequest] = []

    def fail(step: str) -> None:
        if step == "mark" and late and late[-1].has_come:
            proxy.release_before((PRODUCE, ADD_PARTITIONS_TO_TXN, END_TXN)[len(late) % 3], late[-1])
        if step == "commit" and len(late) < 3 and not (late and not late[-1].has_come):
            wait_until(lambda: proxy.seen[ADD_PARTITIONS_TO_TXN] > before[0], "the transaction to have partitions")
            before[0] = proxy.seen[ADD_PARTITIONS_TO_TXN]
            late.append(proxy.hold(END_TXN))
            raise RetryableError("the test ends the transaction")

    before = [0]
    world.hooked.at = fail
    world.put(*range(1, 13))
    world.finish()
    world.close()
    assert [each.has_come for each in late] == [True, True, True]


@pytest.mark.slow
def test_lives_of_writers(kafka_broker: KafkaBroker) -> None:
    """`python -m tests.support.world.late_requests` holds up thousands."""
    held = 50
    verdicts = list(run_lives(kafka_broker, range(100, 109), held, at_once=4))
    assert [verdict for _, _, verdict in verdicts if verdict.wrong] == []
    assert all(verdict.held >= held for _, _, verdict in verdicts)
