"""A changelog in Kafka has one owner in its cluster, and markers are for one topic, not for a later one of its name."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, NotFoundError
from penstock.job.identity import settle
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.objects.store import ObjectStore
from penstock.state.backends.base import AdminContext, StoreMarker
from penstock.state.backends.changelog_stream import ChangelogStreamAdmin, ChangelogStreamFactory
from penstock.system.kafka.fences import TOPIC, Owners
from penstock.testing.kafka_broker import KafkaBroker
from penstock.testing.state_backend_contract import BackendHarness
from tests.kafka.test_kafka_changelog import Job
from tests.support.jobs.home import wait_until
from tests.support.streams.kafka import QUIET, TIMEOUT_S, new_topic
from tests.support.streams.kafka_streams import kafka_system
from tests.support.tools.cli import call, own_home
from tests.support.tools.fixtures import fixture_of

pytestmark = pytest.mark.kafka

KEPT = {"cleanup.policy": "compact", "min.compaction.lag.ms": "14400000", "delete.retention.ms": "86400000"}


objects = fixture_of(lambda: open_store(f"memory://{uuid.uuid4().hex}"))


def admin_of(
    harness: BackendHarness, objects: ObjectStore, name: str, restorable: Sequence[StoreMarker] = (), uid: str = ""
) -> ChangelogStreamAdmin:
    """The admin of a job of this name, whose store `first` has the stream of the harness."""
    context = AdminContext(
        objects,
        JobPaths(name, "1"),
        12,
        ("first",),
        harness.config,
        harness.systems,
        uid or f"uid{name}",
        lambda: restorable,
    )
    return ChangelogStreamFactory().admin(context)


@pytest.mark.attack
def test_an_empty_topic_is_given_to_two_jobs(kafka_broker: KafkaBroker, objects: ObjectStore, tmp_path: Path) -> None:
    job = Job(kafka_broker, objects, tmp_path, KEPT)
    names = [f"j{number}" for number in range(6)]
    start = threading.Barrier(len(names))

    def begin(name: str) -> str | None:
        with closing(admin_of(job.harness, objects, name)) as admin:
            start.wait()
            try:
                admin.create_resources(1)
            except ConfigError as error:
                return str(error)
            return None

    with closing(job.harness), ThreadPoolExecutor(len(names)) as threads:
        refused = dict(zip(names, threads.map(begin, names), strict=True))
        (winner,) = [name for name, error in refused.items() if error is None]
        for name, error in refused.items():
            if name != winner:
                assert f"belongs to another owner: job {winner}-1 (uid uid{winner}), store first" in str(error)
                assert begin_alone(job, objects, name), "it stays refused"
        assert not begin_alone(job, objects, winner)


def begin_alone(job: Job, objects: ObjectStore, name: str) -> bool:
    with closing(admin_of(job.harness, objects, name)) as admin:
        try:
            admin.create_resources(2)
        except ConfigError:
            return True
        return False


def test_commands_leave_the_topic_to_its_job(
    kafka_broker: KafkaBroker, objects: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_home(tmp_path, monkeypatch)
    topic = new_topic(kafka_broker, 12, KEPT)
    Path("kafka.properties").write_text(
        "".join(f"{key}={value}\n" for key, value in kafka_broker.system_config("kafka").items())
    )
    Path("in.jsonl").write_text('{"id": "k"}\n')
    job = Job(kafka_broker, objects, tmp_path / "job", None, **{"stores.first.changelog": f"kafka.{topic}"})
    root = tmp_path / "jobs"
    with closing(job.harness), closing(open_store(str(root))) as folder:
        paths = JobPaths("shop", "1")
        uid = settle(folder, paths, str(root))
        folder.put_if_absent(paths.lease, b"")  # a job has one
        with closing(admin_of(job.harness, objects, "shop", uid=uid)) as admin:
            admin.create_resources(1)
        stream, config = f"kafka.{topic}", ("--config", "kafka.properties", "-c", f"job.root={root}")
        owner = f"job shop-1 (uid {uid})"
        publish = ("stream", "publish", stream, "--file", "in.jsonl", "--key", "id", *config)
        assert f"a changelog that only its owner writes: {owner}, store first" in call(*publish, status=2)[1]
        refused = call("stream", "delete", stream, "--yes", *config, status=2)[1]
        assert f"stream `{stream}` is the changelog" in refused
        assert owner in refused
        folder.delete(paths.lease)
        assert "which is gone" in call("stream", "delete", stream, "--yes", *config)[1]
        with closing(job.system.admin()) as streams:
            assert topic not in streams.owners()


@pytest.mark.slow
def test_a_topic_created_again_restores_nothing(
    kafka_broker: KafkaBroker, objects: ObjectStore, tmp_path: Path
) -> None:
    """Empty, and refilled beyond the marker. Another backend restores the store: the changelog gets a base."""
    job = Job(kafka_broker, objects, tmp_path, KEPT)
    kafka, content = job.system, {b"%d" % number: b"x" for number in range(5)}
    with closing(job.harness):
        with closing(job.harness.backup(1)) as task:
            markers = task.commit(first=content)
        assert job.harness.restore(markers["first"]) == content
        with closing(kafka.admin()) as streams:
            streams.delete_stream(job.stream)
            streams.create_compacted(job.stream, 12, KEPT)
        with pytest.raises(NotFoundError, match="not the stream that the checkpoint was written to"):
            job.harness.restore(markers["first"])
        with closing(kafka.writer(None)) as writer:
            writer.append(
                SystemStreamPartition("kafka", job.stream, 0), [(1000, b"%d" % n, b"other") for n in range(20)]
            )
        with pytest.raises(NotFoundError, match=r"was deleted.*restore\.factories"):
            job.harness.restore(markers["first"])
        restorable = [StoreMarker("first", 0, markers["first"])]
        refused = admin_of(job.harness, objects, "contract", restorable)
        with closing(refused), pytest.raises(ConfigError, match="name an earlier stream of this name, which was del"):
            refused.create_resources(2)
        with closing(kafka.admin()) as streams:
            streams.delete_stream(job.stream)
        with closing(job.harness.backup(2, markers, content={"first": content})) as task:
            markers = task.commit_changes({"first": {b"0": None}}, complete=True)
            assert job.harness.restore(markers["first"]) == task.content() == job.replayed()


@pytest.mark.attack
@pytest.mark.slow
def test_the_owners_were_lost(kafka_broker: KafkaBroker, objects: ObjectStore, tmp_path: Path) -> None:
    """The topic that says whose a changelog is was deleted: the job's folder knows it, others are refused."""
    job = Job(kafka_broker, objects, tmp_path, KEPT)
    with closing(job.harness), closing(open_store(f"memory://{tmp_path}")) as others:
        with closing(job.harness.backup(1)) as task:
            task.commit(first={b"a": b"1"})
        with closing(kafka_system(kafka_broker).admin()) as streams:
            streams.delete_stream(TOPIC)
            assert streams.owner(job.stream) is None
        refused = admin_of(job.harness, others, "other")
        with closing(refused), pytest.raises(ConfigError, match="has messages that this job did not write"):
            refused.create_resources(1)
        job.harness.backup(2)
        with closing(kafka_system(kafka_broker).admin()) as streams:
            assert str(streams.owner(job.stream)).endswith("store first")


@pytest.mark.attack
@pytest.mark.parametrize(
    "key",
    [pytest.param("", marks=pytest.mark.slow), "the key of this root, 32 characters or more"],
    ids=["without a key", "with a key"],
)
def test_a_claim_is_compacted_away_and_a_stranger_claims_the_topic(
    kafka_broker: KafkaBroker, objects: ObjectStore, tmp_path: Path, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The job goes on, with its state; another one gets nothing."""
    job = Job(kafka_broker, objects, tmp_path, KEPT, **({"job.root.key": key} if key else {}))
    plain = Producer(kafka_broker.client_options(), logger=QUIET)

    def put(*records: tuple[bytes, bytes | None]) -> None:
        for name, value in records:
            plain.produce(TOPIC, value, name)
        assert plain.flush(TIMEOUT_S) == 0

    with closing(job.harness), closing(open_store(f"memory://{tmp_path}")) as others:
        with closing(job.harness.backup(1)) as task:
            markers = task.commit(first={b"a": b"1"})
        with closing(Owners(job.system.options)) as owners, closing(job.system.admin()) as streams:
            identity = streams.stream_identity(job.stream)
            (claim,) = owners.read().claims[str(identity)]
            forged = b'{"format":1,"stream":"s","owner":"job other-1 (uid uidother), store first"}'
            put((f"owner/{identity}/{claim}".encode(), None), (f"owner/{identity}/x".encode(), forged))
            assert str(streams.owner(job.stream)).endswith("store first"), "it is taken back by nobody"
        change_owners_topic(kafka_broker, {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.0"})

        def is_gone() -> bool:
            put((b"others", b"a new segment"))
            with closing(Owners(job.system.options)) as owners:
                return claim not in owners.read().claims[str(identity)]

        wait_until(is_gone, "the brokers compact the claim away")
        refused = admin_of(job.harness, others, "another")
        with closing(refused), pytest.raises(ConfigError, match="another owner: job other-1"):
            refused.create_resources(1)
        with closing(job.harness.backup(2, markers)) as task:
            markers = task.commit_changes({"first": {b"b": b"2"}})
        assert job.harness.restore(markers["first"]) == {b"a": b"1", b"b": b"2"}
        assert "somebody has forged or removed" in caplog.text


def change_owners_topic(broker: KafkaBroker, settings: dict[str, str]) -> None:
    """Change settings of the topic of owners."""
    admin = AdminClient(broker.client_options(), logger=QUIET)
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=changes)
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
