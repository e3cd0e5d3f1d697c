"""Jobs from Kafka to Kafka on Spark, also while the broker stands still or is killed: exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from penstock.testing.kafka_broker import KafkaBroker
from tests.support.jobs.home import DEADLINE_S, wait_until
from tests.support.tools.fixtures import fixture_of
from tests.support.world import kafka_world
from tests.support.world.kafka_world import KafkaWorld, read_committed

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> None:
    cloudpickle.register_pickle_by_value(kafka_world)


broker = fixture_of(KafkaBroker, using=(), scope="module")
"""A broker of this file, which comes and goes."""


@pytest.fixture
def world(broker: KafkaBroker, tmp_path: Path) -> Iterator[KafkaWorld]:
    if not broker.running:
        broker.start()
    world = KafkaWorld(broker, tmp_path)
    yield world
    world.close()


def configuration(world: KafkaWorld, **config: object) -> dict[str, object]:
    return {
        "job.name": world.paths.name,
        "job.root": str(world.folder / "jobs"),
        "job.logged.store.base.dir": str(world.folder / "state"),
        "job.batch.max.messages": 40,
        "task.commit.ms": 200,
        "job.retry.max": 2,
        "systems.kafka.consumer.default.api.timeout.ms": 2000,
        f"streams.kafka.{world.output}.output.guarantee": "exactly-once",
        **world.broker.system_config(),
        **{key.replace("_", "."): value for key, value in config.items()},
    }


def published(world: KafkaWorld) -> int:
    return len(read_committed(world.broker, world.output))


def test_a_job_from_kafka_to_kafka(world: KafkaWorld, spark: SparkSession) -> None:
    world.put(600)
    assert world.app.run(configuration(world), spark=spark, until="latest").await_termination(DEADLINE_S)
    world.check()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["killed", "frozen", "stopped"])
def test_a_broker_that_is_away_for_long_during_a_run(world: KafkaWorld, spark: SparkSession, fault: str) -> None:
    world.put(600)
    broker = world.broker
    job = world.app.run(configuration(world, job_retry_max=1), spark=spark)  # without an end: it needs the broker
    try:
        wait_until(lambda: not job.is_active or published(world) > 100, "the first output")
        if not job.is_active:
            job.await_termination()  # raises why
        {"killed": broker.kill, "frozen": broker.freeze, "stopped": broker.stop}[fault]()
        wait_until(lambda: job.outage is not None or not job.is_active, "the job waits")
        if not job.is_active:
            job.await_termination()
        assert job.outage is not None
        assert broker.bootstrap_servers in job.outage.reason
        first, tries = job.outage, [job.outage]

        def tried() -> int:
            if (last := job.outage) is not None and last is not tries[-1]:
                tries.append(last)
            return len(tries)

        wait_until(lambda: not job.is_active or tried() > 2, "it tries more often than it may fail")
        if not job.is_active:
            job.await_termination()  # raises why
        assert job.outage is not None
        assert job.outage.since_ms == first.since_ms
        assert job.is_active
        (broker.resume if fault == "frozen" else broker.start)()
        world.put(200)
        wait_until(lambda: not job.is_active or published(world) >= 800, "all output")
        job.stop()
    finally:
        if not broker.running:
            broker.start()
        if job.is_active:
            job.stop(wait=False)
            job.stop(wait=False)
    world.check()
