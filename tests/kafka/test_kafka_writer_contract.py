"""The system `kafka` keeps those parts of the contract of every system that are about writers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import System, SystemWriter, WriterIdentity, WriterTransaction
from penstock.system.kafka.job_topic import job_topic
from penstock.system.kafka.places import Places
from penstock.system.kafka.system import KafkaSystem
from penstock.system.kafka.transaction import KafkaTransaction
from penstock.system.kafka.writer import KafkaWriter
from penstock.testing.contracts.systems.commits import CommitContract
from penstock.testing.contracts.systems.fencing import FencingContract
from penstock.testing.contracts.systems.progress import ProgressContract
from penstock.testing.contracts.systems.room import STREAM
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.jobs import wait_until
from tests.support.kafka import TIMEOUT_S

pytestmark = pytest.mark.kafka


class SettledTransaction(KafkaTransaction):
    """Waits until readers see what was committed, which is some milliseconds later."""

    def commit(self) -> None:
        super().commit()
        with closing(Places(self._writer.options)) as places:
            for ssp, ranges in self._appended.items():
                wait_until(partial(_is_readable, places, ssp, ranges[-1][1]), f"the end of {ssp}")


def _is_readable(places: Places, ssp: SystemStreamPartition, end: int) -> bool:
    return places.upcoming(ssp) >= end


class SettledWriter(KafkaWriter):
    def begin(self) -> WriterTransaction:
        return SettledTransaction(self)


@dataclass(frozen=True)
class SettledSystem(KafkaSystem):
    def writer(self, identity: WriterIdentity | None) -> SystemWriter:
        return SettledWriter(self.options, identity)


class TestKafkaWriter(CommitContract, FencingContract, ProgressContract):
    @pytest.fixture
    def system(self, kafka_broker: KafkaBroker) -> Iterator[System]:
        options = {"consumer.bootstrap.servers": kafka_broker.bootstrap_servers}
        system = SettledSystem.configured("kafka", {**options, "default.stream.retention.ms": "-1"})
        yield system
        admin = AdminClient(kafka_broker.client_options())
        topics = [STREAM, *(job_topic(name) for name in ("job", "one", "other"))]
        there = [topic for topic in topics if topic in admin.list_topics(timeout=TIMEOUT_S).topics]
        for deleted in admin.delete_topics(there).values() if there else ():
            deleted.result(TIMEOUT_S)
        wait_until(
            lambda: not set(there) & set(admin.list_topics(timeout=TIMEOUT_S).topics), "the topics to be deleted"
        )
