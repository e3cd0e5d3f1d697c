"""The job of sums with an exactly-once output in a topic of a real broker."""

from __future__ import annotations

from pathlib import Path

import penstock as ps
from penstock.job.paths import JobPaths
from penstock.system.base import OffsetRange, RawRecord
from penstock.testing.kafka_broker import KafkaBroker, Security
from tests.support.jobs.home import wait_until
from tests.support.streams.kafka import new_topic
from tests.support.streams.kafka_streams import kafka_system
from tests.support.world.once_world import OnceWorld
from tests.support.world.sums_job import TASKS, texts


class KafkaOnceWorld(OnceWorld):
    """The output is a topic."""

    def __init__(self, folder: Path, broker: KafkaBroker, security: Security | None = None) -> None:
        super().__init__(folder)
        self.topic = new_topic(broker, TASKS, {"retention.ms": "-1"})
        self.paths = JobPaths(f"sums-{self.topic}", "1")
        self.kafka = kafka_system(broker, security)
        sums = self.sums_of()
        sums.send_to(self.app.output(f"kafka.{self.topic}", key=ps.String(), value=ps.Integer()))
        self.write_to("kafka", self.topic, self.kafka, broker.system_config("kafka", security))

    def output(self) -> list[tuple[str, int]]:
        found: list[RawRecord] = []
        admin, reader = self.kafka.admin(), self.kafka.reader()
        wait_until(lambda: not admin.open_transactions(self.topic), "all transactions to end")
        for partition, ends in admin.offsets(self.topic).items():
            ssp = ps.SystemStreamPartition("kafka", self.topic, partition)
            for chunk in reader.read(OffsetRange(ssp, ends.oldest, ends.upcoming), 100):
                found += [(time, key, value) for _, time, key, value, *_ in chunk]
        reader.close()
        admin.close()
        return texts(found)
