"""A reader of Kafka reads a range exactly: whatever was aborted, compacted, deleted, or is not committed yet."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, NotFoundError, RetryableError
from penstock.system.base import OffsetRange, RawMessage
from penstock.system.kafka.admin import KafkaAdmin
from penstock.system.kafka.cluster import Cluster
from penstock.system.kafka.reader import KafkaReader
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.processes.containers import wait_until
from tests.support.streams.kafka import QUIET, new_topic
from tests.support.streams.kafka_streams import Feed, kafka_system, read_range
from tests.support.tools.fixtures import fixture_of

pytestmark = pytest.mark.kafka


class Room:
    """A topic with one partition, and what looks at it."""

    def __init__(self, broker: KafkaBroker, **settings: str) -> None:
        self.broker = broker
        self.system = kafka_system(broker)
        config = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in settings.items()}}
        self.topic = new_topic(broker, config=config)
        self.ssp = SystemStreamPartition("kafka", self.topic, 0)
        self.admin = KafkaAdmin(self.system.options)
        self.reader = KafkaReader(self.system.options)
        self.feed = Feed(broker, self.admin, self.ssp)

    def read(self, start: int, end: int, most: int = 1000) -> list[RawMessage]:
        return read_range(self.reader, self.ssp, start, end, most)

    def offsets(self, start: int, end: int) -> list[int]:
        return [message[0] for message in self.read(start, end)]

    def close(self) -> None:
        self.reader.close()
        self.admin.close()


room = fixture_of(Room, using=("kafka_broker",))


def records(count: int, first: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(1000 + i, b"k%d" % i, b"v%d" % i) for i in range(first, first + count)]


def now_ms() -> int:
    return int(time.time() * 1000)


def test_markers_and_aborted_messages_are_no_messages(room: Room) -> None:
    feed = room.feed
    feed.append(records(2))  # 0 1
    feed.transaction(records(2))  # 2 3, marker 4
    feed.transaction(records(3), abort=True)  # 5 6 7, marker 8
    feed.transaction(records(1))  # 9, marker 10
    assert feed.upcoming == 11
    for start in range(12):
        for end in range(start, 12):
            assert room.offsets(start, end) == [o for o in (0, 1, 2, 3, 9) if start <= o < end], (start, end)


def test_an_open_transaction_ends_what_can_be_read(room: Room) -> None:
    room.feed.append(records(2))
    room.feed.begin(records(1))
    room.feed.append(records(2))
    assert room.admin.offsets(room.topic)[0].upcoming == 2
    assert {n: each.messages for n, each in room.admin.open_transactions(room.topic).items()} == {0: 3}
    assert room.offsets(0, 2) == [0, 1]
    with pytest.raises(NotFoundError, match=r"expected offset 2 of the range \[2, 5\), but the upcoming one is 2"):
        room.read(0, 5)
    room.feed.end()
    wait_until(lambda: room.feed.upcoming == 6, "the marker")
    assert room.admin.open_transactions(room.topic) == {}
    assert room.offsets(2, 6) == [2, 3, 4]


def test_tombstones_null_keys_headers_and_times(room: Room) -> None:
    room.feed.append(
        [(5, None, b"v"), (6, b"k", None), (7, None, None), (8, b"", b"")], headers=[("h", b"x"), ("h", None)]
    )
    headers = (("h", b"x"), ("h", None))
    plain = [(0, 5, None, b"v"), (1, 6, b"k", None), (2, 7, None, None), (3, 8, b"", b"")]
    assert room.read(0, 4) == [(*message, headers) for message in plain]


def test_the_time_of_the_broker(kafka_broker: KafkaBroker) -> None:
    room = Room(kafka_broker, message_timestamp_type="LogAppendTime")
    before = now_ms()
    room.feed.append([(5, None, b"v")])
    ((_, timestamp, *_),) = room.read(0, 1)
    assert before <= timestamp <= now_ms()
    room.close()


@pytest.mark.parametrize(
    "compression", ["zstd", *(pytest.param(each, marks=pytest.mark.slow) for each in ("none", "gzip", "snappy", "lz4"))]
)
def test_every_compression(room: Room, compression: str) -> None:
    feed = Feed(room.broker, room.admin, room.ssp, **{"compression.type": compression})
    feed.append([(1, b"k", b"x" * 10_000)] * 20)
    assert [(key, value) for _, _, key, value, *_ in room.read(0, 20)] == [(b"k", b"x" * 10_000)] * 20


def test_messages_of_20_mb(kafka_broker: KafkaBroker) -> None:
    room = Room(kafka_broker, max_message_bytes="30000000")
    values = [os.urandom(1000), os.urandom(20_000_000), b"small", os.urandom(20_000_000)]
    for value in values:
        room.feed.append([(1, None, value)])
    chunks = list(room.reader.read(OffsetRange(room.ssp, 0, 4), 1000))
    assert [message[3] for chunk in chunks for message in chunk] == values
    assert all(sum(len(m[3] or b"") for m in chunk[:-1]) < 8 << 20 for chunk in chunks)
    room.close()


def test_deleted_messages_are_not_skipped(room: Room) -> None:
    room.feed.append(records(10))
    cluster = Cluster(room.system.options)
    cluster.delete_records({room.ssp: 6})
    cluster.close()
    assert room.admin.offsets(room.topic)[0].oldest == 6
    for start in (0, 5):
        reader = KafkaReader(room.system.options)
        with pytest.raises(
            NotFoundError, match=rf"offset {start} of the range \[{start}, 10\), but the oldest one is 6"
        ):
            read_range(reader, room.ssp, start, 10)
        reader.close()
    assert room.offsets(6, 10) == [6, 7, 8, 9]


def test_random_ranges_of_a_random_life(kafka_broker: KafkaBroker) -> None:
    """Appends, transactions that are committed or aborted, deletions: against a list of what must be there."""
    rng = random.Random(7)
    room = Room(kafka_broker)
    there: dict[int, bytes] = {}
    oldest, number, position = 0, 0, 0
    cluster = Cluster(room.system.options)
    for _ in range(40):
        values = [b"%d" % (number + i) for i in range(rng.randrange(1, 30))]
        number += len(values)
        batch: list[tuple[int, bytes | None, bytes | None]] = [(1 + number, None, value) for value in values]
        step = rng.choice(["append", "commit", "abort"])
        if step == "append":
            there |= dict(zip(room.feed.append(batch), values, strict=True))
        else:
            offsets = room.feed.transaction(batch, abort=step == "abort")
            there |= dict(zip(offsets, values, strict=True)) if step == "commit" else {}
        upcoming = room.feed.upcoming
        if rng.random() < 0.1:
            oldest = rng.randrange(oldest, upcoming)
            cluster.delete_records({room.ssp: oldest})
            position = max(position, oldest)
        if rng.random() < 0.6:  # mostly on from the last range, with the same reader
            start, end = position, upcoming
        else:
            start = rng.randrange(oldest, upcoming + 1)
            end = rng.randrange(start, upcoming + 1)
        found = room.read(start, end, rng.choice([1, 7, 1000]))
        position = end
        assert [(m[0], m[3]) for m in found] == [(o, v) for o, v in sorted(there.items()) if start <= o < end]
    cluster.close()
    room.close()


def test_a_compacted_topic(kafka_broker: KafkaBroker) -> None:
    settings = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.01"}
    room = Room(kafka_broker, **settings)
    for i in range(4):
        room.feed.append([(now_ms(), b"%d" % (n % 5), b"%d-%d" % (i, n)) for n in range(50)])
        time.sleep(0.11)  # the age at which the broker begins another segment
    end = room.feed.append([(now_ms(), b"end", b"1")])[-1] + 1

    def compacted() -> bool:
        room.feed.append([(now_ms(), b"more", b"1")])
        return len(room.read(0, end)) < 20

    wait_until(compacted, "the broker has compacted the topic")
    found = room.read(0, end)
    assert {key: value for _, _, key, value, *_ in found} == {
        **{b"%d" % n: b"3-%d" % (45 + n) for n in range(5)},
        b"end": b"1",
    }
    assert [message[0] for message in room.read(20, end)] == [m[0] for m in found if m[0] >= 20]
    room.close()


@pytest.mark.slow
def test_nothing_grows_and_nothing_is_left(room: Room) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    room.feed.append(records(1))
    room.admin.offsets(room.topic)
    before = held()
    position = 1
    seen = set()
    for _ in range(60):
        room.feed.append(records(3))
        assert len(room.read(position, position + 3)) == 3
        position += 3
        seen.add(held()[0])
    assert max(seen) - before[0] < 12
    room.reader.close()
    wait_until(
        lambda: all(now <= then for now, then in zip(held(), before, strict=True)), "no thread or socket is left"
    )


def test_a_group_of_the_same_name_has_no_effect(room: Room) -> None:
    room.feed.append(records(5))
    options = {**room.broker.client_options(), "group.id": "penstock", "auto.offset.reset": "earliest"}
    other = Consumer(options, logger=QUIET)
    other.subscribe([room.topic])
    wait_until(lambda: other.consume(1, 0.2), "the other group's consumer has a message")
    assert room.offsets(0, 5) == [0, 1, 2, 3, 4]
    other.commit(offsets=[TopicPartition(room.topic, 0, 2)], asynchronous=False)
    assert room.offsets(0, 5) == [0, 1, 2, 3, 4]
    assert other.committed([TopicPartition(room.topic, 0)], 10)[0].offset == 2
    other.close()


@pytest.mark.parametrize("security", ["SSL", "SASL_SSL"])
def test_over_tls(kafka_broker: KafkaBroker, room: Room, security: str) -> None:
    room.feed.append(records(3))
    system = kafka_system(kafka_broker, security)  # type: ignore[arg-type]
    admin, reader = system.admin(), system.reader()
    assert admin.offsets(room.topic)[0].upcoming == 3
    assert [m[0] for m in read_range(reader, room.ssp, 0, 3)] == [0, 1, 2]
    reader.close()
    admin.close()


def test_who_is_not_let_in_is_told_why(kafka_broker: KafkaBroker) -> None:
    password = kafka_system(kafka_broker, "SASL_SSL", consumer__sasl__password="hush")
    plain = kafka_system(kafka_broker, "SSL", consumer__ssl__ca__location="")
    for system, reason in ((password, "uthentication"), (plain, "certificate|SSL|ssl")):
        with pytest.raises(ConfigError, match=reason) as caught:
            system.admin().offsets("any")
        assert "hush" not in str(caught.value)


@pytest.mark.slow
def test_a_broker_that_is_away(kafka_broker: KafkaBroker) -> None:
    """It comes back while a read waits; and where it does not, the read ends with a clear error."""
    with KafkaBroker() as broker:
        room = Room(broker)
        room.feed.append(records(3))
        assert room.offsets(0, 3) == [0, 1, 2]
        room.feed.append(records(3))
        broker.kill()
        back = threading.Thread(target=broker.start)
        back.start()
        assert room.offsets(3, 6) == [3, 4, 5]
        back.join()
        broker.kill()
        impatient = kafka_system(broker, consumer__default__api__timeout__ms="1500")
        reader, admin = impatient.reader(), impatient.admin()
        with pytest.raises(RetryableError, match=broker.bootstrap_servers):
            read_range(reader, room.ssp, 0, 3)
        with pytest.raises(RetryableError, match=broker.bootstrap_servers):
            admin.offsets(room.topic)
        reader.close()
        admin.close()
        room.close()
