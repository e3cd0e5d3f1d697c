"""For tests of writers of Kafka."""

from __future__ import annotations

import uuid

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.system.kafka.options import KafkaOptions
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.streams.kafka import new_topic
from tests.support.streams.kafka_writers import FOREVER, options_of


@pytest.fixture
def options(kafka_broker: KafkaBroker) -> KafkaOptions:
    return options_of(kafka_broker)


@pytest.fixture
def name() -> str:
    return f"job-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def here(kafka_broker: KafkaBroker) -> SystemStreamPartition:
    return SystemStreamPartition("kafka", new_topic(kafka_broker, 2, FOREVER), 0)
