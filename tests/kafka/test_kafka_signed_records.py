"""Signed records of Penstock on a real broker, and a stranger who may write to its topics but has no key."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from penstock import admin
from penstock.api.ssp import SystemStreamPartition
from penstock.base.secrets import RootKeys
from penstock.checkpoint.log import CheckpointLog
from penstock.errors import ConfigError, FencedError, IncompatibleError
from penstock.objects.open import open_root
from penstock.system.base import Progress, WriterIdentity
from penstock.system.kafka import fences
from penstock.system.kafka.fences import TOPIC, Owners
from penstock.system.kafka.job_topic import fence_key, fence_record, job_topic, producer_record, progress_record
from penstock.system.kafka.options import KafkaOptions
from penstock.system.kafka.system import KafkaSystem
from penstock.system.kafka.writer import KafkaWriter
from penstock.system.registry import open_systems
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.stores.hooked_store import HookedStore
from tests.support.streams.hooked_system import HookedSystem
from tests.support.streams.kafka import QUIET, TIMEOUT_S
from tests.support.streams.kafka_writers import job_state, keys, other, publish, records
from tests.support.tools.fixtures import fixture_of
from tests.support.world.kafka_once_world import KafkaOnceWorld
from tests.support.world.sums_job import TASKS

pytestmark = [pytest.mark.attack, pytest.mark.kafka]

KEY = "the key of this root, 32 characters or more"


class Stranger:
    """A plain client."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._producer = Producer(broker.client_options(), logger=QUIET)

    def put(self, topic: str, *forged: tuple[bytes, bytes | None]) -> None:
        for key, value in forged:
            self._producer.produce(topic, value, key)
        assert self._producer.flush(TIMEOUT_S) == 0

    def attack(self, name: str, epoch: int, *ssps: SystemStreamPartition) -> None:
        """Records of the right form: another epoch has taken over, and everything or nothing is published."""
        marks = [progress_record(ssp, Progress(1_000, 0)) for ssp in ssps]
        self.put(
            job_topic(name),
            fence_record(epoch + 1),
            producer_record(f"{job_topic(name)}-x", epoch - 1),
            (fence_key(epoch), None),
            *marks,
            *((key, None) for key, _ in marks),
        )


@pytest.fixture
def signed(options: KafkaOptions) -> KafkaOptions:
    return replace(options, keys=RootKeys(KEY))


@pytest.fixture
def stranger(kafka_broker: KafkaBroker) -> Stranger:
    return Stranger(kafka_broker)


def test_a_writer_goes_on_whatever_a_stranger_writes(
    signed: KafkaOptions,
    name: str,
    here: SystemStreamPartition,
    stranger: Stranger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(KafkaWriter(signed, WriterIdentity(name, 1))) as writer:
        publish(writer, {here: Progress(1, 0)}, records(0, 1))
        stranger.attack(name, 1, here)
        publish(writer, {here: Progress(1, 1)}, records(1, 1))
        stranger.attack(name, 1, here)
    assert fences.has_job_topic(signed, name)
    fences.fence(signed, WriterIdentity(name, 2))
    assert job_state(signed, name).fences == {2}
    with closing(KafkaWriter(signed, WriterIdentity(name, 2))) as writer:
        assert writer.progress([here]) == {here: Progress(1, 1)}
        publish(writer, {here: Progress(1, 2)}, records(2, 1))
    assert keys(signed, here) == [0, 1, 2]
    assert "records that are left out" in caplog.text
    with closing(KafkaWriter(signed, WriterIdentity(name, 1))) as writer, pytest.raises(FencedError):
        writer.append(here, records(3, 1))


def test_nothing_is_published_where_it_is_not_known_what_was(
    signed: KafkaOptions, name: str, here: SystemStreamPartition, stranger: Stranger
) -> None:
    fences.fence(signed, WriterIdentity(name, 1))
    stranger.attack(name, 1, here)
    with closing(KafkaWriter(signed, WriterIdentity(name, 1))) as writer:
        with pytest.raises(IncompatibleError, match="readers could get messages twice"):
            writer.progress([here])
        with pytest.raises(IncompatibleError, match="readers could get messages twice"):
            publish(writer, {here: Progress(1, 0)}, records(0, 1))
        assert writer.progress([other(here)]) == {}
    assert keys(signed, here) == []


def test_a_topic_without_a_genuine_record_is_as_good_as_none(
    signed: KafkaOptions, options: KafkaOptions, name: str, here: SystemStreamPartition
) -> None:
    fences.fence(options, WriterIdentity(name, 1))
    assert fences.has_job_topic(options, name)
    assert not fences.has_job_topic(signed, name)


def test_the_owner_of_a_changelog_stays(signed: KafkaOptions, name: str, stranger: Stranger) -> None:
    with closing(Owners(signed)) as owners:
        assert owners.own("s", f"{name}-id", "job a-1") == "job a-1"
        (claim,) = owners.read().claims[f"{name}-id"]
        key = f"owner/{name}-id/{claim}".encode()
        stranger.put(TOPIC, (key, b'{"format":1,"stream":"s","owner":"stranger"}'), (key, None))
        assert owners.own("s", f"{name}-id", "stranger") == "job a-1"
    for each in (signed, replace(signed, keys=RootKeys(KEY[::-1])), replace(signed, keys=RootKeys())):
        with closing(Owners(each)) as owners:
            assert owners.own("s", f"{name}-id", "job b-1") == "job a-1"


@pytest.mark.slow
def test_records_of_a_time_before_the_key_are_signed(
    options: KafkaOptions, signed: KafkaOptions, name: str, here: SystemStreamPartition
) -> None:
    """By `penstock job sign`, while a writer of before is paused."""
    with closing(KafkaWriter(options, WriterIdentity(name, 1))) as before:
        publish(before, {here: Progress(1, 0)}, records(0, 1))
        begun = before.begin()
        begun.append(here, records(9, 1))
        begun.mark(here, Progress(1, 1))
        for _ in range(2):
            KafkaSystem("kafka", signed).sign(WriterIdentity(name, 2), takes_unsigned=True)
        with pytest.raises(ConfigError, match=r"no `job\.root\.key`"):
            begun.commit()
        begun.abort()
    assert job_state(signed, name).fences == {2}
    with closing(KafkaWriter(replace(signed, keys=RootKeys(KEY[::-1], KEY)), WriterIdentity(name, 3))) as writer:
        assert writer.progress([here]) == {here: Progress(1, 0)}
        publish(writer, {here: Progress(1, 1)}, records(1, 1))
    assert keys(options, here) == [0, 1]


world = fixture_of(KafkaOnceWorld, using=("tmp_path", "kafka_broker"))


@pytest.mark.slow
def test_a_job_gets_a_key_and_a_stranger_changes_nothing(
    world: KafkaOnceWorld, stranger: Stranger, caplog: pytest.LogCaptureFixture
) -> None:
    world.put(*range(1, 10))
    world.finish()
    world.kill_drivers("committed")
    world.keys["job.root.key"] = KEY
    config = world.config()
    given = {"job.root": world.root, **world.keys}
    with admin.open_job(config.job.name, overrides=given) as job:
        assert admin.sign(job).signed > 0
    world.objects = open_root(world.root, config.job.root_keys)
    world.store = HookedStore(world.objects)
    world.hooked = HookedSystem(open_systems(config)["kafka"])
    world.systems["kafka"] = world.hooked
    world.kill_drivers("mark")
    driver = world.next()
    publisher, owner = driver.job.plan.publisher, CheckpointLog(world.objects, driver.job.paths).read().owner
    world.kill(driver)
    left_out = f"`{job_topic(publisher)}` of the system `kafka` has records that are left out"
    assert owner is not None
    assert left_out not in caplog.text
    with closing(open_systems(config)["kafka"].admin()) as kafka:
        every = [SystemStreamPartition("kafka", world.topic, partition) for partition in range(TASKS)]
        published = [*kafka.progress_of(publisher, every)]
    assert published
    stranger.attack(publisher, owner.epoch, *published)
    world.kill_drivers("committed")
    world.finish()
    assert left_out in caplog.text
