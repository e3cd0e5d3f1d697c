"""`penstock deploy` from topics to topics: no transaction of either job is lost or seen twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from penstock.testing.kafka_broker import KafkaBroker
from tests.support.jobs.deployed_jobs import HANDED, NEW, OLD, PARTITIONS, DeployedJobs, Sent
from tests.support.streams.kafka import QUIET, new_topic
from tests.support.streams.kafka_streams import kafka_system
from tests.support.tools.fixtures import fixture_of

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]
FOREVER = {"retention.ms": "-1"}


class DeployedOnKafka(DeployedJobs):
    """The streams are topics. What readers of committed messages see is read by a consumer of their own."""

    def __init__(self, folder: Path, broker: KafkaBroker) -> None:
        topics = [new_topic(broker, PARTITIONS, FOREVER, name) for name in ("trips", "totals", "panes")]
        streams = [f"kafka.{topic}" for topic in topics]
        super().__init__(folder, system=kafka_system(broker), config=broker.system_config(), streams=streams)
        self._seen: Mapping[str, list[list[Sent]]] = {topic: [[] for _ in range(PARTITIONS)] for topic in streams[1:]}
        options = {"group.id": "none", "enable.auto.commit": False, "isolation.level": "read_committed"}
        self._consumer = Consumer({**broker.client_options(), **options}, logger=QUIET)
        self._consumer.assign(
            [TopicPartition(topic, each, OFFSET_BEGINNING) for topic in topics[1:] for each in range(PARTITIONS)]
        )

    def read(self, stream: str) -> list[list[Sent]]:
        while messages := self._consumer.consume(1000, 0.2):
            for message in messages:
                assert message.error() is None, message.error()
                value = json.loads(message.value() or b"null")
                self._seen[f"kafka.{message.topic()}"][message.partition() or 0].append(
                    ((message.key() or b"").decode(), value)
                )
        return self._seen[stream]

    def close(self) -> None:
        self._consumer.close()


jobs = fixture_of(DeployedOnKafka, using=("tmp_path", "kafka_broker"))


def test_a_job_with_more_tasks_takes_over_though_its_process_is_killed(jobs: DeployedOnKafka) -> None:
    with ExitStack() as stack:
        with jobs.publishing():
            old = stack.enter_context(jobs.started(OLD))
            first = stack.enter_context(jobs.deploy(NEW, "--tasks", "3"))
            first.await_log(HANDED)
            first.kill()
            old.ended()
            new = stack.enter_context(jobs.deploy(NEW, "--tasks", "3"))
            jobs.await_output_of(new, "new")
        jobs.settle(new, "old", "new")
        new.stopped()
    jobs.verify("old", "new")
    record = jobs.last(NEW)
    assert record is not None
    assert record.task_count == 3
