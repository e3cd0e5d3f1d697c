"""Changelogs on a broker that compacts all it may: a checkpoint is restored exactly, or it is refused."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, FencedError, NotFoundError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.state.backends.changelog_partition import ChangelogRange
from penstock.state.backends.changelog_stream import ChangelogStreamFactory
from penstock.system.kafka.system import KafkaSystem
from penstock.system.registry import open_system
from penstock.testing.kafka_broker import KafkaBroker
from penstock.testing.state_backend_contract import BackendHarness, Content, random_changes
from tests.support.jobs.home import wait_until
from tests.support.streams.kafka import QUIET, TIMEOUT_S, new_topic
from tests.support.tools.fixtures import fixture_of
from tests.support.world.kafka_once_world import KafkaOnceWorld

pytestmark = pytest.mark.kafka

LAG_MS = 2000
SHORT = {"stores.default.changelog.min.compaction.lag.ms": LAG_MS}
EAGER = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": str(LAG_MS),
    "delete.retention.ms": "86400000",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.0",
}
"""A topic of which the brokers compact everything but the last segment, as soon as it is older than the lag."""


class Job:
    """A job with two stores on a broker; the first one's changelog has the settings that a test wants."""

    def __init__(
        self, broker: KafkaBroker, objects: ObjectStore, folder: Path, topic: Mapping[str, str] | None, **more: object
    ) -> None:
        name = uuid.uuid4().hex[:8]
        self._broker = broker
        self.stream = f"first-{name}" if topic is None else new_topic(broker, 12, topic, "first")
        streams = {"stores.first.changelog": f"kafka.{self.stream}", "stores.second.changelog": f"kafka.second-{name}"}
        given = {**broker.system_config("kafka"), **streams, **more}
        self.harness = BackendHarness(ChangelogStreamFactory(), objects, folder, "memory", {}, given)
        system = open_system(self.harness.config.system("kafka"))
        assert isinstance(system, KafkaSystem)
        self.harness.systems["kafka"] = self.system = system
        self.harness.paths = JobPaths(f"changelog-{name}", "1")  # the brokers remember epochs by it
        if topic is not None:
            wait_until(self._is_there, "the topic is known")

    def _is_there(self) -> bool:
        with closing(self.system.admin()) as admin, suppress(NotFoundError):
            return admin.partition_count(self.stream) > 0
        return False

    def messages(self) -> dict[int, tuple[bytes | None, bytes | None]]:
        """The messages that a plain consumer of Kafka finds in the partition of task 0, by offset."""
        options = {
            "group.id": "plain",
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "isolation.level": "read_committed",
        }
        consumer = Consumer({**self._broker.client_options(), **options}, logger=QUIET)
        found: dict[int, tuple[bytes | None, bytes | None]] = {}
        try:
            consumer.assign([TopicPartition(self.stream, 0, 0)])
            while True:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF
                    return found
                found[message.offset() or 0] = (message.key(), message.value())
        finally:
            consumer.close()

    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values of the messages."""
        return list(self.messages().values())

    def replayed(self) -> Content:
        """The store as Samza restores it: every record that is there, in order."""
        content: Content = {}
        for key, value in self.records():
            assert key is not None
            if value is None:
                content.pop(key, None)
            else:
                content[key] = value
        return content

    def wait_until_old(self, offset: int) -> None:
        """Wait until records from an offset on may be compacted."""
        with closing(self.system.admin()) as admin:
            wait_until(lambda: admin.compaction(self.stream).untouched_from[0] > offset, "what is written is old")

    def wait_until_compacted(self, seen: set[int]) -> None:
        """Wait until messages at some of these offsets have gone."""
        wait_until(lambda: seen - self.messages().keys(), "the brokers compact")

    def settings(self) -> dict[str, str | None]:
        admin = AdminClient(self._broker.client_options(), logger=QUIET)
        resource = ConfigResource(ResourceType.TOPIC, self.stream)
        found = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
        return {key: entry.value for key, entry in found.items()}


def documented() -> dict[str, object]:
    """The example of the page, for the first store."""
    page = (Path(__file__).parents[2] / "docs" / "state-backends.md").read_text(encoding="utf-8")
    block = page.partition("## A changelog in Kafka")[2].partition("```yaml")[2].partition("```")[0]
    given: dict[str, object] = yaml.safe_load(block.replace("stores.counts.", "stores.first."))
    return {**given, "stores.default.changelog.replication.factor": 1}  # the broker of the tests is alone


objects = fixture_of(lambda: open_store(f"memory://{uuid.uuid4().hex}"))


def end_of(markers: Mapping[str, str]) -> int:
    return ChangelogRange.parse(markers["first"]).range.end


@pytest.mark.slow
def test_checkpoints_are_exact_or_refused(kafka_broker: KafkaBroker, objects: ObjectStore, tmp_path: Path) -> None:
    """Epochs that begin at older checkpoints or write what no checkpoint has, while the brokers compact."""
    job = Job(kafka_broker, objects, tmp_path, EAGER, **SHORT)
    rng = random.Random(3)
    log: list[tuple[dict[str, str], Content]] = []
    outcomes = {"exact": 0, "refused": 0}

    def restore_all() -> None:
        for markers, content in log:
            try:
                assert job.harness.restore(markers["first"]) == content
                outcomes["exact"] += 1
            except NotFoundError as error:
                assert f"`min.compaction.lag.ms` = {LAG_MS}" in str(error)  # noqa: PT017
                outcomes["refused"] += 1

    with closing(job.harness):
        seen: set[int] = set()
        for epoch in range(1, 5):
            last, content = log[-1] if log else (None, {})
            # Another backend restores: if the changelog cannot be continued, it gets a base.
            with closing(job.harness.backup(epoch, last, content={"first": content} if log else None)) as task:
                for _ in range(3):
                    changes = random_changes(rng)
                    log.append((task.commit_changes({"first": changes}, complete=True), task.content()))
                    seen |= job.messages().keys()
                restore_all()
                if epoch < 4:  # an upload that never gets into a checkpoint
                    task.commit_changes({"first": random_changes(rng)}, clean_up=False)
            if epoch % 2:
                job.wait_until_old(end_of(log[0][0]) + 1)
        job.wait_until_compacted(seen)
        restore_all()
        assert job.harness.restore(log[-1][0]["first"]) == log[-1][1] == job.replayed()
    assert outcomes["exact"] >= 5, outcomes
    assert outcomes["refused"] >= 3, outcomes


@pytest.mark.slow
def test_a_stop_of_any_length_if_nothing_was_written_behind_the_checkpoint(
    kafka_broker: KafkaBroker, objects: ObjectStore, tmp_path: Path
) -> None:
    lag = {"min.compaction.lag.ms": "5000"}
    job = Job(kafka_broker, objects, tmp_path, {**EAGER, **lag}, **{f"stores.first.changelog.{k}": lag[k] for k in lag})
    with closing(job.harness):
        with closing(job.harness.backup(1)) as task:
            for number in range(5):
                stopped = task.commit(first={b"k": b"%d" % number, b"gone": None if number else b"1"})
            content = task.content()
        seen = set(job.messages())
        job.wait_until_old(end_of(stopped) - 1)
        assert job.harness.restore(stopped["first"]) == content
        with closing(job.harness.backup(2, stopped)) as task:
            assert task.content() == content
            assert task.commit() == stopped, "its start writes nothing"
            began = time.monotonic()
            markers = task.commit(first={b"k": b"new", b"gone": b"new"})  # the brokers may compact what is before it
            expected = task.content()
        job.wait_until_compacted(seen)
        try:
            assert job.harness.restore(stopped["first"]) == content, "what is behind is young"
        except NotFoundError:  # on a slow machine it is no longer young
            assert time.monotonic() - began > 4
        assert job.harness.restore(markers["first"]) == expected == job.replayed()


@pytest.mark.slow
def test_a_stop_longer_than_the_lag_with_something_behind_the_checkpoint_is_refused(
    kafka_broker: KafkaBroker, objects: ObjectStore, tmp_path: Path
) -> None:
    job = Job(kafka_broker, objects, tmp_path, EAGER, **SHORT)
    with closing(job.harness):
        with closing(job.harness.backup(1)) as task:
            markers = task.commit(first={b"k": b"1", b"other": b"1"})
            content = task.content()
            task.commit_changes({"first": {b"k": b"behind", b"new": b"behind"}}, clean_up=False)
        job.wait_until_old(end_of(markers) + 1)
        with pytest.raises(NotFoundError, match=rf"kafka\.{job.stream}.*min\.compaction\.lag\.ms` = {LAG_MS}.*`blob`"):
            job.harness.restore(markers["first"])
        # Another backend restores it: the changelog gets a base, and a plain reader finds nothing else.
        with closing(job.harness.backup(2, markers, content={"first": content})) as task:
            markers = task.commit_changes({"first": {b"last": b"1"}}, complete=True)
            content = task.content()
        assert job.harness.restore(markers["first"]) == content == job.replayed()


@pytest.mark.slow
def test_an_interrupted_base_leaves_nothing(kafka_broker: KafkaBroker, objects: ObjectStore, tmp_path: Path) -> None:
    """The driver dies after the base, before its marker is in a checkpoint; the store has changed since."""
    job = Job(kafka_broker, objects, tmp_path, None)
    with closing(job.harness):
        content = {b"%d" % number: b"x" for number in range(50)}
        with closing(job.harness.backup(1, {}, content={"first": content})) as task:
            task.commit_changes({"first": {b"1": b"dead"}}, complete=True, clean_up=False)
        del content[b"7"]
        with closing(job.harness.backup(2, {}, content={"first": content})) as task:
            markers = task.commit_changes({"first": {b"2": None}}, complete=True)
            expected = task.content()
        assert job.harness.restore(markers["first"]) == expected == job.replayed()


@pytest.mark.slow
def test_a_new_store_deletes_what_the_log_has(kafka_broker: KafkaBroker, objects: ObjectStore, tmp_path: Path) -> None:
    job = Job(kafka_broker, objects, tmp_path, None)
    with closing(job.harness):
        with closing(job.harness.backup(1)) as task:
            before = task.commit(first={b"a": b"1", b"b": b"1"})
        with closing(job.harness.backup(2)) as task:
            markers = task.commit(first={b"b": b"2"})
        assert job.harness.restore(markers["first"]) == {b"b": b"2"} == job.replayed()
        assert job.harness.restore(before["first"]) == {b"a": b"1", b"b": b"1"}, "the older checkpoint is retained"


def test_an_older_epoch_writes_nothing_more(kafka_broker: KafkaBroker, objects: ObjectStore, tmp_path: Path) -> None:
    job = Job(kafka_broker, objects, tmp_path, None)
    with closing(job.harness):
        old = job.harness.backup(1)
        markers = old.commit(first={b"a": b"1"})
        new = job.harness.backup(2, markers)
        with suppress(FencedError):
            old.commit(first={b"dead": b"1"})
            pytest.fail("it is fenced")
        markers = new.commit(first={b"b": b"1"})
        assert job.harness.restore(markers["first"]) == {b"a": b"1", b"b": b"1"} == job.replayed()


def test_topics_are_made_as_samza_makes_them(kafka_broker: KafkaBroker, objects: ObjectStore, tmp_path: Path) -> None:
    broker, example = kafka_broker.system_config("kafka"), documented()
    own = {key: value for key, value in example.items() if key not in broker and key != "stores.first.changelog"}
    job = Job(kafka_broker, objects, tmp_path, None, **own, **{"stores.first.changelog.max.message.bytes": 2_000_000})
    with closing(job.harness):
        job.harness.backup(1)
        found = job.settings()
        wanted = {
            "cleanup.policy": "compact",
            "segment.bytes": "536870912",
            "min.compaction.lag.ms": "14400000",
            "delete.retention.ms": "86400000",
            "max.message.bytes": "2000000",
        }
        assert {key: found[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("key", "value"),
    [("min.compaction.lag.ms", "14399999"), ("cleanup.policy", "delete"), ("delete.retention.ms", "1")],
)
def test_a_topic_that_loses_records_is_refused(
    kafka_broker: KafkaBroker, objects: ObjectStore, tmp_path: Path, key: str, value: str
) -> None:
    job = Job(kafka_broker, objects, tmp_path, {**EAGER, "min.compaction.lag.ms": "14400000", key: value})
    with closing(job.harness), pytest.raises(ConfigError, match=rf"kafka\.{job.stream}` has `{key}={value}`"):
        job.harness.backup(1)


def test_messages_of_somebody_else_are_refused(kafka_broker: KafkaBroker, objects: ObjectStore, tmp_path: Path) -> None:
    job = Job(kafka_broker, objects, tmp_path, {**EAGER, "min.compaction.lag.ms": "14400000"})
    with closing(job.harness):
        with closing(job.system.writer(None)) as writer:
            writer.append(SystemStreamPartition("kafka", job.stream, 3), [(1000, b"key", b"value")])
        with pytest.raises(ConfigError, match="has messages that this job did not write"):
            job.harness.backup(1)


@pytest.mark.slow
def test_a_job_that_died_early_starts_again(kafka_broker: KafkaBroker, objects: ObjectStore, tmp_path: Path) -> None:
    job = Job(kafka_broker, objects, tmp_path, None)
    with closing(job.harness):
        with closing(job.harness.backup(1)) as task:
            task.commit_changes({"first": {b"a": b"1"}}, clean_up=False)
        with closing(job.harness.backup(2)) as task:
            markers = task.commit(first={b"b": b"1"})
        assert job.harness.restore(markers["first"]) == {b"b": b"1"} == job.replayed()


@pytest.mark.slow
def test_drivers_are_killed_whose_state_and_output_are_in_kafka(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    world = KafkaOnceWorld(tmp_path, kafka_broker)
    world.keys |= {
        "stores.sums.backup.factories": "changelog-stream",
        "stores.sums.changelog": f"kafka.{world.topic}-sums-changelog",
    }
    world.kill_drivers("before the record", "after the record", "committed")
    world.finish()
    world.close()
