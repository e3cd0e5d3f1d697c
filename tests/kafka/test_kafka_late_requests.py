"""Requests to end a transaction that were held up in the network, and reach the brokers after the client has sent them
again and begun another transaction (KIP-890; librdkafka has no defence of its own, its issue 5423)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import Progress, WriterIdentity
from penstock.system.kafka.options.options import KafkaOptions, parse_options
from penstock.system.kafka.writing.writer import KafkaWriter
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.streams.kafka import TIMEOUT_S
from tests.support.streams.kafka_proxy import END_TXN, KafkaProxy
from tests.support.streams.kafka_writers import keys, other, records

pytestmark = pytest.mark.kafka


class Stop(Exception):
    """Ends a transaction from within."""


@pytest.fixture
def proxy(kafka_broker: KafkaBroker) -> Iterator[KafkaProxy]:
    with KafkaProxy(int(kafka_broker.bootstrap_servers.rpartition(":")[2])) as proxy:
        yield proxy


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
        with suppress(Stop), writer.begin() as begun:
            begun.append(here, records(1, 1))
            writer.producer().flush(TIMEOUT_S)
            raise Stop
        with writer.begin() as begun:
            begun.append(here, records(1, 1))
            writer.producer().flush(TIMEOUT_S)
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
        with suppress(Stop), writer.begin() as begun:
            begun.append(here, records(0, 1))
            writer.producer().flush(TIMEOUT_S)
            raise Stop
        with writer.begin() as begun:
            begun.append(here, records(1, 1))
            writer.producer().flush(TIMEOUT_S)
            late.release()
            begun.append(other(here), records(2, 1))
    assert (keys(options, here), keys(options, other(here))) == ([1], [2])


def test_a_late_commit_shows_nothing(
    proxy: KafkaProxy, through: KafkaOptions, options: KafkaOptions, name: str, here: SystemStreamPartition
) -> None:
    with closing(KafkaWriter(through, WriterIdentity(name, 1))) as writer:
        late = proxy.hold(END_TXN)
        writer.append(here, records(0, 1))
        with suppress(Stop), writer.begin() as begun:
            begun.append(here, records(1, 1))
            writer.producer().flush(TIMEOUT_S)
            late.release()
            raise Stop
        writer.append(here, records(2, 1))
    assert keys(options, here) == [0, 2]
