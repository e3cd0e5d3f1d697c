"""A real Kafka broker for tests. A test that asks for one is skipped where none can be had."""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.errors import NotFoundError
from penstock.testing.kafka_broker import KafkaBroker, require_kafka

TIMEOUT_S = 60.0
_RETRY_AFTER_S = 300.0
"""All processes of a run fail together to fetch the server."""
QUIET = logging.Logger("tests.kafka", logging.CRITICAL + 1)
"""For clients (`logger=QUIET`) of brokers that come and go: they would write each lost connection to standard error."""


@functools.cache
def _missing() -> str:
    """Why this machine has no Kafka; empty if it has."""
    try:
        require_kafka(retry_after_s=_RETRY_AFTER_S)
    except NotFoundError as error:
        return str(error)
    return ""


def skip_without_kafka() -> None:
    """Skip a test where no broker can be had. A broker that does not start fails it."""
    if _missing():
        pytest.skip(f"every test that needs a Kafka broker was left out: {_missing()}")


def shared_broker() -> Iterator[KafkaBroker]:
    """The broker of this process, for tests that leave it running: with listeners of every kind."""
    skip_without_kafka()
    with KafkaBroker(security=("PLAINTEXT", "SSL", "SASL_SSL")) as broker:
        yield broker


def new_name(name: str = "topic") -> str:
    return f"{name}-{uuid.uuid4().hex[:12]}"


def new_topic(
    broker: KafkaBroker, partitions: int = 1, config: Mapping[str, str] | None = None, name: str = "topic"
) -> str:
    topic = new_name(name)
    admin = AdminClient(broker.client_options(), logger=QUIET)
    admin.create_topics([NewTopic(topic, partitions, 1, config=dict(config or {}))])[topic].result(TIMEOUT_S)
    return topic
