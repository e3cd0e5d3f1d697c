"""Replays and shadow runs of a job on Kafka: they give what the job did, and leave nothing on the brokers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

import penstock as ps
from penstock import admin
from penstock.config import load_config
from penstock.objects.open import open_job_root
from penstock.system.registry import open_system
from penstock.testing.in_process import InProcessDriver
from penstock.testing.kafka_broker import KafkaBroker
from penstock.testing.rehearsal.replay import replay_key, replay_output
from penstock.testing.rehearsal.shadow import shadow
from tests.support.streams.kafka import QUIET, new_name, new_topic
from tests.support.tools.cli import own_home

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
FOREVER = {"retention.ms": "-1"}


class World:
    """A job from topic to topic, exactly once, whose changelog is a topic, and which shows a group."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.name, self.group = new_name("flights"), new_name("group")
        self.trips, self.totals = new_topic(broker, 2, FOREVER), new_topic(broker, 3, FOREVER)
        self.client = AdminClient(broker.client_options(), logger=QUIET)
        self.config: dict[str, Any] = {
            **broker.system_config(),
            "job.name": self.name,
            "task.commit.group": self.group,
            "stores.backup.factories": "changelog-stream",
            "stores.restore.factories": "changelog-stream",
            "stores.total.changelog": f"kafka.{self.name}-changelog",
            f"streams.kafka.{self.totals}.output.guarantee": "exactly-once",
            "task.dead.letter.stream": f"kafka.{self.name}-dead",
        }
        self.kafka = open_system(load_config(overrides=self.config).system("kafka"))

    def app(self, more: int = 0) -> ps.StreamApplication:
        app = ps.StreamApplication(self.name)
        trips = app.input(f"kafka.{self.trips}").partition_by(lambda trip: trip["plane"])
        total = trips.reduce(lambda a, b: {"plane": a["plane"], "miles": a["miles"] + b["miles"] + more}, id="total")
        total.send_to(app.output(f"kafka.{self.totals}"))
        return app

    def publish(self, *trips: tuple[str, int]) -> None:
        with closing(self.kafka.writer(None)) as writer:
            for number, (plane, miles) in enumerate(trips):
                value = json.dumps({"plane": plane, "miles": miles}).encode()
                writer.append(ps.SystemStreamPartition("kafka", self.trips, number % 2), [(1_000_000, None, value)])

    def run(self) -> None:
        config = load_config(overrides=self.config)
        with closing(open_job_root(config.job)) as objects:
            driver = InProcessDriver(
                self.app().graph(), config, objects, {}, containers=1, until_latest=True, close=False
            )
            with closing(driver):
                driver.loop.run()

    def on_the_brokers(self) -> Mapping[str, Any]:
        """The ends of each topic that the test or Penstock has, and the positions of the group."""
        topics = self.client.list_topics(timeout=30).topics
        with closing(self.kafka.admin()) as looks:
            ends = {
                topic: {number: end.upcoming for number, end in looks.offsets(topic).items()}
                for topic in topics
                if self.name in topic or topic in {self.trips, self.totals} or topic.startswith("penstock")
            }
        (answer,) = self.client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(self.group)]).values()
        shown = {(each.topic, each.partition): each.offset for each in answer.result(30).topic_partitions or ()}
        return {"topics": sorted(topics), "ends": ends, "group": shown}


@pytest.fixture
def world(kafka_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    own_home(tmp_path, monkeypatch)
    return World(kafka_broker)


def test_replays_and_comparisons_leave_the_brokers_as_they_are(world: World) -> None:
    world.publish(("N1", 5), ("N2", 7), ("N1", 11))
    world.run()
    world.publish(("N1", 100), ("N2", 200))
    world.run()
    world.publish(("N1", 1000))
    before = world.on_the_brokers()
    steps: list[Any] = []
    with admin.open_job(world.name, overrides=world.config) as job:
        done = replay_key(job, world.app(), "N1", lambda step: steps.append(step.as_json()))
        assert [step["changes"][0]["after"]["miles"] for step in steps] in ([5, 16, 116], [11, 16, 116])
        assert done.differing == ()
        same = shadow(job, world.app(), world.app())
        other = shadow(job, world.app(), world.app(more=1), from_checkpoint="latest-1")
        assert not same.differs
        assert [(each.before, each.after, each.keys) for each in other.outputs] == [(3, 3, 2)]
        found: list[Any] = []
        for partition, end in before["ends"][world.totals].items():
            if end:
                ssp = ps.SystemStreamPartition("kafka", world.totals, partition)
                replay_output(job, world.app(), ssp, 0, lambda step: found.append(step.as_json()))
        assert found[-1]["outputs"]
    assert world.on_the_brokers() == before
