"""Compacted topics as tables: side inputs whose brokers drop old values, and deletions after a while."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import OffsetRange
from penstock.system.partitioner import partition_of
from penstock.testing.in_process import InProcessDriver
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.jobs.home import wait_until
from tests.support.streams.kafka import new_topic
from tests.support.streams.kafka_streams import kafka_system
from tests.support.world.sums_job import TASKS, drain
from tests.support.world.world import World

pytestmark = pytest.mark.kafka
SOON = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.0",
    "delete.retention.ms": "1000",
}


class Planes(World):
    """A job that joins flights with a topic of planes."""

    def __init__(self, folder: Path, broker: KafkaBroker) -> None:
        super().__init__(folder, f"planes-{uuid.uuid4().hex[:8]}", ("flights", "out"), TASKS)
        self.topic = new_topic(broker, TASKS, SOON)
        kafka = kafka_system(broker)
        self.systems["kafka"] = kafka
        self.broker, self.writer, self.admin, self.reader = broker, kafka.writer(None), kafka.admin(), kafka.reader()
        self.app = ps.StreamApplication("planes")
        planes = self.app.table("planes", value=ps.String(), side_inputs=[f"kafka.{self.topic}"])
        flights = self.app.input("m.flights").partition_by(lambda flight: flight["plane"])
        joined = flights.join_table(planes, lambda flight, plane: [flight["plane"], plane], kind="left")
        joined.send_to(self.app.output("m.out"))
        self.newest: dict[str, str | None] = {}

    def put(self, plane: str, value: str | None) -> None:
        key = plane.encode()
        place = SystemStreamPartition("kafka", self.topic, partition_of(key, TASKS))
        self.writer.append(place, [(0, key, None if value is None else value.encode())])
        self.newest[plane] = value

    def messages(self) -> list[tuple[bytes | None, bytes | None]]:
        """The messages that the brokers still have."""
        found = []
        for partition, ends in self.admin.offsets(self.topic).items():
            place = SystemStreamPartition("kafka", self.topic, partition)
            for chunk in self.reader.read(OffsetRange(place, ends.oldest, ends.upcoming), 1000):
                found += [(key, value) for _, _, key, value, *_ in chunk]
        return found

    def started(self) -> InProcessDriver:
        keys = {"systems.m.samza.factory": "memory", **self.broker.system_config()}
        driver = self.make(self.app.graph(), keys, memory=False)
        driver.loop.start()
        return driver

    def look(self, driver: InProcessDriver) -> dict[str, str | None]:
        """The values that flights of all planes find."""
        for plane in self.newest:
            self.append("flights", 0, (0, None, json.dumps({"plane": plane}).encode()))
        drain(driver)
        return dict(json.loads(value or b"") for _, _, value, *_ in self.records("out"))


@pytest.fixture
def world(tmp_path: Path, kafka_broker: KafkaBroker) -> Iterator[Planes]:
    world = Planes(tmp_path, kafka_broker)
    yield world
    world.reader.close()
    world.close()
    world.admin.delete_stream(world.topic)


def test_a_compacted_topic_is_a_table_with_its_deletions(world: Planes, caplog: pytest.LogCaptureFixture) -> None:
    """A plane that is deleted while the job is down, and whose deletion is compacted away, is not found again."""
    for number in range(20):
        world.put(f"N{number % 4}", f"model {number}")
    driver = world.started()
    assert world.look(driver) == world.newest
    driver.loop.finish()
    driver.close()
    world.put("N1", None)
    world.put("N2", "another")

    def compacted() -> bool:
        world.put("last", "one")  # the newest segment is not compacted
        return (b"N1", None) not in world.messages()

    wait_until(compacted, "the deletion to be compacted away", 60)
    driver = world.started()
    assert world.look(driver) == world.newest
    assert "delete.retention.ms" in caplog.text
