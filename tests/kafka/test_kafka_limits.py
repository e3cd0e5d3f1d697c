"""Messages that a topic refuses are known before they are sent, and a refusal says how to change the topic."""

from __future__ import annotations

import os
import re
from contextlib import closing

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError
from penstock.system.kafka.admin import KafkaAdmin
from penstock.system.kafka.writer import KafkaWriter
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.streams.kafka import new_topic
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
