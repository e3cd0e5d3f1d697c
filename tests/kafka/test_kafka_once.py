"""An exactly-once output on Kafka: drivers that are killed at any step of a publication."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from penstock.system.registry import open_systems
from penstock.testing.kafka_broker import KafkaBroker, Security
from tests.support.tools.fixtures import fixture_of
from tests.support.world.kafka_once_world import KafkaOnceWorld
from tests.support.world.sums_job import TASKS, drain

pytestmark = [pytest.mark.kafka, pytest.mark.wing("outbox")]


world = fixture_of(KafkaOnceWorld, using=("tmp_path", "kafka_broker"))


@pytest.mark.parametrize(
    "steps",
    [
        ("mark",),
        pytest.param(("after the record", "begin", "mark", "commit", "committed"), marks=pytest.mark.slow),
    ],
    ids=["sample", "all"],
)
def test_each_message_is_there_once(world: KafkaOnceWorld, steps: tuple[str, ...]) -> None:
    """One driver after the other is killed: before a transaction begins, within it, and when it was committed."""
    world.kill_drivers(*steps)
    world.finish()


@pytest.mark.parametrize("security", [pytest.param("SSL", marks=pytest.mark.slow), "SASL_SSL"])
def test_a_job_over_tls(tmp_path: Path, kafka_broker: KafkaBroker, security: Security) -> None:
    """With the system that the job's configuration describes: fence, transactions, progress, a second start."""
    world = KafkaOnceWorld(tmp_path, kafka_broker, security)
    config = world.config()
    assert config.system("kafka").options["consumer.security.protocol"] == security
    world.systems["kafka"] = open_systems(config)["kafka"]
    for first in (1, 7):
        world.put(*range(first, first + 6))
        world.finish()
    world.close()


@pytest.mark.slow
def test_an_output_that_is_deleted_and_created_again(world: KafkaOnceWorld, caplog: pytest.LogCaptureFixture) -> None:
    """The new topic gets what was not published, and what follows."""
    for numbers in ((1, 2), (3, 4), (), (5, 6)):
        world.put(*numbers)
        if not numbers:
            with closing(world.kafka.admin()) as admin:
                admin.delete_stream(world.topic)
                admin.create_stream(world.topic, TASKS)
        driver = world.next()
        driver.loop.start()
        drain(driver)
        driver.loop.finish()
        world.kill(driver)
    assert len(world.output()) == 2
    assert caplog.text.count("was deleted and created again since the last checkpoint") == 1
