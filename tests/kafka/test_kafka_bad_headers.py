"""A header whose name is not UTF-8, from somebody who may write to a topic: it ends no job, and loses nothing."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import pytest

from penstock.api.messages import UNREADABLE
from penstock.api.ssp import SystemStreamPartition
from penstock.base.secrets import RootKeys
from penstock.errors import IncompatibleError
from penstock.system.base import OffsetRange, Progress, WriterIdentity
from penstock.system.kafka.fences import TOPIC, Owners
from penstock.system.kafka.job_topic import fence_key, fence_record, job_topic, progress_record
from penstock.system.kafka.options import KafkaOptions
from penstock.system.kafka.reader import KafkaReader
from penstock.system.kafka.writer import KafkaWriter
from penstock.testing.kafka_broker import KafkaBroker
from tests.kafka.test_kafka_intermediate import ThroughWorld
from tests.support.streams.kafka import new_name
from tests.support.streams.kafka_stranger import send_bad_header
from tests.support.streams.kafka_writers import job_state, keys, publish, records, written_end
from tests.support.tools.fixtures import fixture_of

pytestmark = [pytest.mark.attack, pytest.mark.kafka]

KEY = "the key of this root, 32 characters or more"


@pytest.fixture(params=["", KEY], ids=["unsigned", "signed"])
def either(request: pytest.FixtureRequest, options: KafkaOptions) -> KafkaOptions:
    return replace(options, keys=RootKeys(request.param))


def test_a_reader_gives_every_message_around_it(
    kafka_broker: KafkaBroker, options: KafkaOptions, here: SystemStreamPartition
) -> None:
    """It comes first, last, and twice in a row, among messages with headers and without."""
    for first in (0, 2):
        send_bad_header(kafka_broker, here.stream, 0, b"bad", b"%d" % first)
        send_bad_header(kafka_broker, here.stream, 0, b"bad", None)
        with closing(KafkaWriter(options, None)) as writer:
            writer.append(here, [(1000, b"k", b"v", (("trace", b"7"),)), (1001, b"k", b"w")])
    send_bad_header(kafka_broker, here.stream, 0, b"bad", b"9")
    with closing(KafkaReader(options)) as reader:
        end = written_end(options, here)
        found = [message for chunk in reader.read(OffsetRange(here, 0, end), 100) for message in chunk]
    around = [(b"k", b"v", (("trace", b"7"),)), (b"k", b"w")]
    bad = [(b"bad", value, UNREADABLE) for value in (b"0", None, b"2", None, b"9")]
    assert all(before[0] < after[0] for before, after in pairwise(found))
    assert [message[2:] for message in found] == [*bad[:2], *around, *bad[2:4], *around, bad[4]]


def test_the_topic_that_all_jobs_share(
    kafka_broker: KafkaBroker, either: KafkaOptions, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Owners(either)) as owners:
        assert owners.own("s", f"{name}-id", "job a-1") == "job a-1"
        (claim,) = owners.read().claims[f"{name}-id"]
        key = f"owner/{name}-id/{claim}".encode()
        for value in (b'{"format":1,"stream":"s","owner":"stranger"}', None):
            send_bad_header(kafka_broker, TOPIC, 0, key, value)
        assert owners.own("s", f"{name}-id", "stranger") == "job a-1"
    with closing(Owners(either)) as another_start:
        assert another_start.own("s", f"{name}-id", "job b-1") == "job a-1"
    assert "records that are left out" in caplog.text


def test_a_job_topic(kafka_broker: KafkaBroker, either: KafkaOptions, name: str, here: SystemStreamPartition) -> None:
    """Fences and progress of a stranger do not count. A start that cannot know the progress publishes nothing."""
    mark_key, mark = progress_record(here, Progress(1_000, 0))
    with closing(KafkaWriter(either, WriterIdentity(name, 1))) as writer:
        publish(writer, {here: Progress(1, 0)}, records(0, 1))
    topic = job_topic(name)
    send_bad_header(kafka_broker, topic, 0, *fence_record(9))
    send_bad_header(kafka_broker, topic, 0, fence_key(1), None)
    send_bad_header(kafka_broker, topic, 0, mark_key, mark)
    send_bad_header(kafka_broker, topic, 0, progress_record(replace(here, partition=1), Progress(1, 0))[0], None)
    assert job_state(either, name).fences == {1}
    with closing(KafkaWriter(either, WriterIdentity(name, 1))) as writer:
        assert writer.progress([here]) == {here: Progress(1, 0)}
        publish(writer, {here: Progress(1, 1)}, records(1, 1))
        with pytest.raises(IncompatibleError, match="readers could get messages twice"):
            writer.progress([replace(here, partition=1)])
    assert keys(either, here) == [0, 1]


world = fixture_of(lambda tmp_path, kafka_broker: ThroughWorld(tmp_path, kafka_broker, new_name("between")))


def test_an_intermediate_stream(world: ThroughWorld, kafka_broker: KafkaBroker) -> None:
    """The message has the right form but for its header, and is left out: the sums are those without it."""
    world.put(1, 2, 3)
    world.finish()
    send_bad_header(kafka_broker, world.topic, 0, b"0", b"\x00100")
    world.put(4, 5, 6)
    world.finish()
