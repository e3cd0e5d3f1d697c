"""An exactly-once output on Kafka: drivers that are killed at any step of a publication."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import PenstockError
from penstock.system.base import OffsetRange
from penstock.system.registry import open_systems
from penstock.testing.kafka_broker import KafkaBroker, Security
from tests.support.hooked_system import HookedSystem
from tests.support.jobs import wait_until
from tests.support.kafka import new_topic
from tests.support.kafka_streams import kafka_system
from tests.support.once_world import OnceWorld, die
from tests.support.sums_job import TASKS, Sum, drain

pytestmark = pytest.mark.kafka


class KafkaWorld(OnceWorld):
    """The output is a topic."""

    def __init__(self, folder: Path, broker: KafkaBroker, security: Security | None = None) -> None:
        super().__init__(folder)
        self.topic = new_topic(broker, TASKS, {"retention.ms": "-1"})
        self.kafka = kafka_system(broker, security)
        self.app = ps.StreamApplication("sums")
        self.app.store("sums", key=ps.String(), value=ps.Integer())
        source = self.app.input("m.events", key=ps.String(), value=ps.Integer())
        source.partition_by(lambda envelope: envelope.key, envelope=True).process(
            Sum, stores=["sums"], id="sum"
        ).send_to(self.app.output(f"kafka.{self.topic}", key=ps.String(), value=ps.Integer()))
        self.hooked = HookedSystem(self.kafka)
        self.systems |= {"m": self.system, "kafka": self.hooked}
        self.keys = {
            "job.name": f"sums-{self.topic}",
            "systems.m.samza.factory": "memory",
            **broker.system_config("kafka", security),
            f"streams.kafka.{self.topic}.output.guarantee": "exactly-once",
        }

    def output(self) -> list[tuple[str, int]]:
        found = []
        admin, reader = self.kafka.admin(), self.kafka.reader()
        wait_until(lambda: not admin.open_transactions(self.topic), "all transactions to end")
        for partition, ends in admin.offsets(self.topic).items():
            ssp = ps.SystemStreamPartition("kafka", self.topic, partition)
            for chunk in reader.read(OffsetRange(ssp, ends.oldest, ends.upcoming), 100):
                found += [(ps.String().from_bytes(k or b""), ps.Integer().from_bytes(v or b"")) for _, _, k, v in chunk]
        reader.close()
        admin.close()
        return found


@pytest.fixture
def world(tmp_path: Path, kafka_broker: KafkaBroker) -> Iterator[KafkaWorld]:
    world = KafkaWorld(tmp_path, kafka_broker)
    yield world
    world.close()


def test_each_message_is_there_once(world: KafkaWorld) -> None:
    """One driver after the other is killed: before a transaction begins, within it, and when it was committed."""
    for number, step in enumerate(["after the record", "begin", "mark", "commit", "committed"]):
        world.put(*range(6 * number + 1, 6 * number + 7))
        driver = world.next()
        driver.loop.start()
        drain(driver)
        world.at(driver, step, die)
        with pytest.raises(PenstockError, match="was killed"):
            driver.loop.commit()
        world.kill(driver)
    driver = world.next()
    driver.loop.start()
    drain(driver)
    driver.loop.finish()
    world.check(driver)
    world.kill(driver)


@pytest.mark.parametrize("security", ["SSL", "SASL_SSL"])
def test_a_job_over_tls(tmp_path: Path, kafka_broker: KafkaBroker, security: Security) -> None:
    """With the system that the job's configuration describes: fence, transactions, progress, a second start."""
    world = KafkaWorld(tmp_path, kafka_broker, security)
    config = world.config()
    assert config.system("kafka").options["consumer.security.protocol"] == security
    world.systems["kafka"] = open_systems(config)["kafka"]
    for first in (1, 7):
        world.put(*range(first, first + 6))
        driver = world.next()
        driver.loop.start()
        drain(driver)
        driver.loop.finish()
        world.check(driver)
        world.kill(driver)
    world.close()
