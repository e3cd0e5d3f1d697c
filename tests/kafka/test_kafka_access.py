"""A broker that checks access rights: what docs/kafka.md asks for is enough, and errors name what is missing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, PenstockError, RetryableError
from penstock.system.base import OffsetRange, System, SystemAdmin, WriterIdentity
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.jobs.home import wait_until
from tests.support.streams.kafka import QUIET, TIMEOUT_S, new_name, new_topic, skip_without_kafka
from tests.support.streams.kafka_streams import kafka_system
from tests.support.world.kafka_once_world import KafkaOnceWorld
from tests.support.world.sums_job import TASKS

pytestmark = pytest.mark.kafka

PREFIX = "__penstock_"
TOPIC, IDS = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
_ANY: Any = None
ANY_ACL = AclBindingFilter(
    ResourceType.ANY, _ANY, ResourcePatternType.ANY, _ANY, _ANY, AclOperation.ANY, AclPermissionType.ANY
)
OPTIONAL = "; Create if they do not exist"
CHANGELOG = {"cleanup.policy": "compact", "min.compaction.lag.ms": "14400000", "delete.retention.ms": "86400000"}


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    """Whoever comes without a password may do everything; the user `penstock` what was granted."""
    skip_without_kafka()
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with KafkaBroker(security=["PLAINTEXT", "SASL_PLAINTEXT"], settings=settings) as broker:
        yield broker


@pytest.fixture
def admin(broker: KafkaBroker) -> Iterator[AdminClient]:
    admin = AdminClient(broker.client_options("PLAINTEXT"), logger=QUIET)
    yield admin
    admin.delete_acls([ANY_ACL])[ANY_ACL].result(TIMEOUT_S)


@pytest.fixture
def kafka(broker: KafkaBroker) -> System:
    return kafka_system(broker, "SASL_PLAINTEXT")


def grant(admin: AdminClient, kind: ResourceType, name: str, *operations: str) -> None:
    """Let the user `penstock` do this. A name that ends with `_` is a prefix."""
    pattern = ResourcePatternType.PREFIXED if name.endswith("_") else ResourcePatternType.LITERAL
    for operation in operations:
        which = AclOperation[re.sub(r"(?<=.)(?=[A-Z])", "_", operation).upper()]
        acl = AclBinding(kind, name, pattern, "User:penstock", "*", which, AclPermissionType.ALLOW)
        admin.create_acls([acl])[acl].result(TIMEOUT_S)
        wait_until(partial(_is_known, admin, acl), "the right is known")


def _is_known(admin: AdminClient, acl: AclBinding) -> bool:
    return acl in admin.describe_acls(ANY_ACL).result(TIMEOUT_S)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as refused:
        call()
    return str(refused.value)


def check(text: str, broker: KafkaBroker, operation: str, kind: str, name: str, *more: str) -> None:
    """The error names user, operation and resource, and has the command."""
    servers = broker.client_options("SASL_PLAINTEXT")["bootstrap.servers"]
    assert f"The user `User:penstock` has no right to {operation} on {kind} `{name}`" in text
    command = [
        f"`kafka-acls.sh --bootstrap-server {servers} --add --allow-principal User:penstock --operation {operation}",
        *more,
        f"--{kind} {name}`",
    ]
    assert " ".join(command) in text


def read(kafka: System, topic: str) -> list[object]:
    with closing(kafka.reader()) as reader:
        return list(reader.read(OffsetRange(SystemStreamPartition("kafka", topic, 0), 0, 1), 10))


def write(kafka: System, topic: str, identity: WriterIdentity | None = None) -> None:
    with closing(kafka.writer(identity)) as writer:
        writer.append(SystemStreamPartition("kafka", topic, 0), [(1000, b"k", b"v")])


def test_errors_name_what_is_missing(broker: KafkaBroker, admin: AdminClient, kafka: System) -> None:
    topic, new = new_topic(broker, 1, {"retention.ms": "-1"}), new_name()
    write(kafka_system(broker), topic)
    with closing(kafka.admin()) as streams:
        check(refusal(lambda: streams.partition_count(topic)), broker, "Describe", "topic", topic)
        grant(admin, TOPIC, new, "Describe")
        check(refusal(lambda: streams.create_stream(new, 1)), broker, "Create", "topic", new)
        grant(admin, TOPIC, topic, "Describe")
        check(refusal(lambda: streams.retention(topic)), broker, "DescribeConfigs", "topic", topic)
        check(refusal(lambda: streams.delete_stream(topic)), broker, "Delete", "topic", topic)
    check(refusal(lambda: read(kafka, topic)), broker, "Read", "topic", topic)
    prefixed = "--resource-pattern-type prefixed"
    check(refusal(lambda: write(kafka, topic)), broker, "Write", "transactional-id", PREFIX, prefixed)
    grant(admin, IDS, PREFIX, "Write")
    check(refusal(lambda: write(kafka, topic)), broker, "Write", "topic", topic)
    text = refusal(lambda: write(kafka, topic, WriterIdentity("sums", 1)))
    assert f"on topic `{PREFIX}sums-" in text
    assert f"{prefixed} --topic {PREFIX}`" in text


def documented() -> dict[str, list[str]]:
    """The operations of each row of the page, by its resource."""
    page = (Path(__file__).parents[2] / "docs" / "kafka.md").read_text(encoding="utf-8")
    rows = page.partition("## Access rights")[2].partition("|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {resource: re.findall(r"[A-Z]\w+", operations.replace(OPTIONAL, "")) for resource, _, operations in cells}


@pytest.mark.slow
def test_what_the_page_asks_for_is_enough(
    broker: KafkaBroker, admin: AdminClient, kafka: System, tmp_path: Path
) -> None:
    """A job with exactly-once output and a changelog in Kafka, killed and started again; and what inputs need."""
    rights = documented()
    source, changelog = new_topic(broker, 1, {"retention.ms": "-1"}), new_topic(broker, TASKS, CHANGELOG)
    write(kafka_system(broker), source)
    world = KafkaOnceWorld(tmp_path, broker, "SASL_PLAINTEXT")
    world.kafka = kafka_system(broker)  # what reads the output
    world.keys |= {
        "stores.sums.backup.factories": "changelog-stream",
        "stores.sums.changelog": f"kafka.{changelog}",
    }
    for resource, kind, name in (
        ("topics of inputs", TOPIC, source),
        ("topics of outputs", TOPIC, world.topic),
        ("topics of changelogs", TOPIC, changelog),
        ("topics of Penstock", TOPIC, PREFIX),
        ("transactional ids", IDS, PREFIX),
    ):
        grant(admin, kind, name, *rights.pop(resource))
    assert not rights
    with closing(kafka.admin()) as streams:
        streams.offsets(source)
        streams.open_transactions(source)
        streams.stream_identity(source)
        streams.retention(source)
        streams.offset_at_time(SystemStreamPartition("kafka", source, 0), 0)
    assert read(kafka, source)
    world.kill_drivers("after the record", "committed")
    world.finish()
    world.close()


def test_each_right_of_a_job_is_needed(broker: KafkaBroker, admin: AdminClient, kafka: System) -> None:
    """Without the topics of Penstock nothing is fenced."""
    topic = new_topic(broker)
    grant(admin, TOPIC, topic, "Describe", "Write")
    grant(admin, IDS, PREFIX, "Describe", "Write")
    with closing(kafka.admin()) as streams, pytest.raises(PenstockError, match=f"--topic {PREFIX}"):
        streams.fence(topic, WriterIdentity("sums", 1))


def test_times_ahead_for_a_topic_whose_settings_nobody_may_read(
    broker: KafkaBroker, admin: AdminClient, kafka: System, caplog: pytest.LogCaptureFixture
) -> None:
    """They are kept, and the log says once what is missing; so are those that the brokers replace."""
    topic, replacing = new_topic(broker), new_topic(broker, config={"message.timestamp.type": "LogAppendTime"})
    ahead = int(time.time() * 1000) + 86_400_000
    grant(admin, IDS, PREFIX, "Describe", "Write")
    for each in (topic, replacing):
        grant(admin, TOPIC, each, "Describe", "Read", "Write")
    with closing(kafka.writer(None)) as writer:
        for _ in range(2):
            writer.append(SystemStreamPartition("kafka", topic, 0), [(ahead, b"k", b"v")])
        with pytest.raises(RetryableError, match="LogAppendTime"):
            writer.append(SystemStreamPartition("kafka", replacing, 0), [(1000, b"k", b"v")])
        writer.append(SystemStreamPartition("kafka", replacing, 0), [(1000, b"k", b"v")])
    with closing(kafka.admin()) as streams, closing(kafka.reader()) as reader:
        for each, right in ((topic, [ahead, ahead]), (replacing, [1000])):
            wait_until(partial(_is_complete, streams, each), "the transactions have ended")
            end = streams.offsets(each)[0].upcoming
            chunks = list(reader.read(OffsetRange(SystemStreamPartition("kafka", each, 0), 0, end), 10))
            assert [message[1] for chunk in chunks for message in chunk] == right
    assert caplog.text.count(f"has no right to DescribeConfigs on topic `{topic}`") == 1


def _is_complete(streams: SystemAdmin, topic: str) -> bool:
    return streams.offsets(topic)[0].upcoming > 0 and not streams.open_transactions(topic)
