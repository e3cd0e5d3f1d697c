"""A durable intermediate stream in a topic: read exactly once over drivers that are killed, and one job's alone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.streams.kafka import new_name
from tests.support.streams.kafka_streams import kafka_system
from tests.support.tools.fixtures import fixture_of
from tests.support.world.once_world import OnceWorld
from tests.support.world.sums_job import TASKS

pytestmark = pytest.mark.kafka


class ThroughWorld(OnceWorld):
    """All messages go through a topic. The broker has seen no other job of this name."""

    def __init__(self, folder: Path, broker: KafkaBroker, topic: str) -> None:
        super().__init__(folder, through=f"kafka.{topic}")
        self.topic = topic
        self.kafka = kafka_system(broker)
        self.systems["kafka"] = self.kafka
        self.keys |= {"job.name": new_name("sums"), **broker.system_config("kafka")}


world = fixture_of(lambda tmp_path, kafka_broker: ThroughWorld(tmp_path, kafka_broker, new_name("between")))


@pytest.mark.slow
def test_each_message_counts_once(world: ThroughWorld) -> None:
    world.kill_drivers("before the record", "after the record", "committed")
    world.finish()
    with closing(world.kafka.admin()) as admin:
        assert "intermediate stream" in str(admin.owner(world.topic))


def test_the_topic_of_another_job_is_refused(world: ThroughWorld, tmp_path: Path, kafka_broker: KafkaBroker) -> None:
    world.put(1, 2, 3)
    world.finish()
    other = ThroughWorld(tmp_path / "other", kafka_broker, world.topic)
    with (
        closing(other),
        pytest.raises(ConfigError, match=rf"`kafka\.{world.topic}` belongs to another owner: job sums"),
    ):
        other.next()
    world.put(4, 5, 6)
    world.finish()


def test_a_topic_with_messages_of_others_is_refused(world: ThroughWorld) -> None:
    with closing(world.kafka.admin()) as admin:
        admin.create_stream(world.topic, TASKS)
    with closing(world.kafka.writer(None)) as writer:
        writer.append(SystemStreamPartition("kafka", world.topic, 1), [(0, None, b"of another program")])
    with pytest.raises(ConfigError, match=r"has messages that this job did not write \(partition 1\)"):
        world.next()
