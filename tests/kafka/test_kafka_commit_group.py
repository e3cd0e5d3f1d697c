"""The positions of commits as a consumer group (`task.commit.group`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

import penstock as ps
from penstock.testing.in_process import InProcessDriver
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.jobs.home import wait_until
from tests.support.streams.kafka import QUIET, new_name, new_topic
from tests.support.streams.kafka_streams import kafka_system
from tests.support.tools.fixtures import fixture_of
from tests.support.world.sums_job import TASKS, at_end, drain
from tests.support.world.world import World

pytestmark = pytest.mark.kafka


class GroupWorld(World):
    """A job that copies a topic."""

    def __init__(self, folder: Path, broker: KafkaBroker) -> None:
        super().__init__(folder, "copies", ("out",), TASKS)
        self.broker = broker
        self.topic, self.group = new_topic(broker, TASKS, {"retention.ms": "-1"}), new_name("group")
        kafka = kafka_system(broker)
        self.systems |= {"m": self.system, "kafka": kafka}
        self.app = ps.StreamApplication("copies")
        self.app.input(f"kafka.{self.topic}", value=ps.Bytes()).send_to(self.app.output("m.out", value=ps.Bytes()))
        self.writer = kafka.writer(None)
        self.client = AdminClient(broker.client_options(), logger=QUIET)

    def put(self, partition: int, count: int) -> None:
        self.writer.append(ps.SystemStreamPartition("kafka", self.topic, partition), [(0, None, b"v")] * count)

    def driver(self, **more: object) -> InProcessDriver:
        keys = {
            "systems.m.samza.factory": "memory",
            **self.broker.system_config(),
            "task.commit.group": self.group,
            **more,
        }
        driver = self.make(self.app.graph(), keys)
        driver.loop.start()
        drain(driver)
        return driver

    def shown(self) -> Mapping[int, int]:
        (answer,) = self.client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(self.group)]).values()
        return {each.partition: each.offset for each in answer.result(30).topic_partitions or ()}

    def ends(self) -> Mapping[int, int]:
        return {n: ends.upcoming for n, ends in self.systems["kafka"].admin().offsets(self.topic).items()}


world = fixture_of(GroupWorld, using=("tmp_path", "kafka_broker"))


def test_a_group_shows_the_positions_of_each_commit(world: GroupWorld) -> None:
    world.put(0, 5)
    world.put(2, 3)
    driver = world.driver()
    driver.loop.commit()
    first = dict(world.ends())
    wait_until(lambda: world.shown() == first, "the positions of the first commit to be shown")
    world.put(1, 4)
    wait_until(lambda: any(at_end(driver)), "the new messages to be seen")
    drain(driver)
    assert world.shown() == first, "nothing is shown before it is committed"
    driver.loop.finish()
    driver.close()
    assert world.shown() == world.ends(), "an end waits for the last positions"


def test_a_group_that_a_consumer_uses_is_refused_alone(world: GroupWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.put(0, 1)
    consumer = Consumer({**world.broker.client_options(), "group.id": world.group, "auto.offset.reset": "earliest"})
    consumer.subscribe([world.topic])
    wait_until(lambda: consumer.poll(0.2) is not None, "the consumer to have joined")
    driver = world.driver()
    for _ in range(2):
        driver.loop.commit()
        world.put(0, 1)
        wait_until(lambda: any(at_end(driver)), "the new message to be seen")
        drain(driver)
    driver.loop.finish()
    driver.close()
    consumer.close()
    assert caplog.text.count(f"could not be shown as consumer group `{world.group}`") == 1
    assert len([*world.records("out")]) == 3
