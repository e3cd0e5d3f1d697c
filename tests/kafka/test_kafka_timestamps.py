"""Times that brokers refuse or replace: a message is sent with another one, and Penstock's reader finds its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import RetryableError
from penstock.system.base import OffsetRange, Progress, RawRecord, WriterIdentity
from penstock.system.kafka import writer as writing
from penstock.system.kafka.cluster import Cluster
from penstock.system.kafka.options import KafkaOptions
from penstock.system.kafka.reader import KafkaReader
from penstock.system.kafka.writer import KafkaWriter
from penstock.testing.clock import SettableClock
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.streams.kafka import QUIET, TIMEOUT_S, new_topic
from tests.support.streams.kafka_writers import FOREVER, publish, read, written_end

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}


def now_ms() -> int:
    return int(time.time() * 1000)


def there(broker: KafkaBroker, config: Mapping[str, str] | None = None) -> SystemStreamPartition:
    return SystemStreamPartition("kafka", new_topic(broker, config={**FOREVER, **(config or {})}), 0)


def change(options: KafkaOptions, ssp: SystemStreamPartition, settings: Mapping[str, str]) -> None:
    with closing(Cluster(options)) as cluster:
        cluster.set(ssp.stream, settings)
        cluster.wait_until("the topic was changed", lambda: settings.items() <= cluster.settings(ssp.stream).items())


def times(options: KafkaOptions, ssp: SystemStreamPartition) -> list[int]:
    """The timestamps that Penstock's reader finds, once everything can be read."""
    end = read(options, ssp)[-1][0] + 1
    with closing(KafkaReader(options)) as reader:
        return [message[1] for chunk in reader.read(OffsetRange(ssp, 0, end), 100) for message in chunk]


def sent(options: KafkaOptions, ssp: SystemStreamPartition) -> list[int]:
    """The timestamps that others find."""
    return [message[1] for message in read(options, ssp)]


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({}, [False, False, True, True, True]),
        ({"message.timestamp.after.max.ms": str(3 * DAY_MS)}, [True, True, True, True, True]),
        ({"message.timestamp.before.max.ms": str(HOUR_MS)}, [False, False, True, False, False]),
        (APPEND_TIME, [False] * 5),
    ],
    ids=["default", "far ahead allowed", "old ones refused", "append time"],
)
def test_the_reader_finds_every_time(
    kafka_broker: KafkaBroker, options: KafkaOptions, config: dict[str, str], kept: list[bool]
) -> None:
    """Ahead by a day and by two hours, a minute ago, long ago, and before 1970; and 0, which the client cannot send."""
    here, began = there(kafka_broker, config), now_ms()
    given = [began + DAY_MS, began + 2 * HOUR_MS, began - 60_000, 1_000_000, -5]
    batch: list[RawRecord] = [(timestamp, b"%d" % n, b"v") for n, timestamp in enumerate([*given, 0, given[0]])]
    with closing(KafkaWriter(options, None)) as writer:
        assert writer.append(here, batch) == 0
    assert times(options, here) == [*given, 0, given[0]]
    found = read(options, here)
    assert [(key, value) for _, _, key, value in found] == [record[1:] for record in batch]
    for (_, timestamp, _, _), own, is_kept in zip(found, given, kept, strict=False):
        assert (timestamp == own) if is_kept else (began - 60_000 < timestamp < now_ms() + 60_000)


def test_the_header_is_plain_text_and_others_have_none(kafka_broker: KafkaBroker, options: KafkaOptions) -> None:
    here, ahead = there(kafka_broker), now_ms() + DAY_MS
    with closing(KafkaWriter(options, None)) as writer:
        writer.append(here, [(now_ms(), None, b"now"), (ahead, None, b"ahead")])
    written_end(options, here)
    consumer = Consumer({"bootstrap.servers": options.servers, "group.id": "oracle"}, logger=QUIET)
    with closing(consumer):
        consumer.assign([TopicPartition(here.stream, 0, 0)])
        messages = consumer.consume(2, TIMEOUT_S)
    assert [message.headers() for message in messages] == [None, [("penstock.timestamp", b"%d" % ahead)]]


@pytest.mark.few(1)
@pytest.mark.parametrize("settings", [{"message.timestamp.after.max.ms": str(HOUR_MS)}, APPEND_TIME])
def test_a_topic_that_is_changed_while_a_writer_knows_it(
    kafka_broker: KafkaBroker, options: KafkaOptions, name: str, settings: dict[str, str]
) -> None:
    """Messages that were ready to be sent are sent by the next transaction, once, with their mark."""
    here, ahead = there(kafka_broker, {"message.timestamp.after.max.ms": str(30 * DAY_MS)}), now_ms() + DAY_MS
    batch: list[RawRecord] = [(ahead + n, b"%d" % n, b"v") for n in range(5)]
    with closing(KafkaWriter(options, WriterIdentity(name, 1))) as writer:
        writer.append(here, batch[:1])
        change(options, here, settings)
        with pytest.raises(RetryableError, match=r"Invalid timestamp|LogAppendTime"):
            publish(writer, {here: Progress(3, 0)}, batch[1:])
        assert writer.progress([here]) == {}
        publish(writer, {here: Progress(3, 0)}, batch[1:])
        assert writer.progress([here]) == {here: Progress(3, 0)}
    assert times(options, here) == [record[0] for record in batch]


def test_clocks_that_differ_by_more_than_a_topic_allows(
    kafka_broker: KafkaBroker,
    options: KafkaOptions,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This machine's clock is ten minutes ahead, so each time that it takes for good is refused, and none is sent. Only
    the topic that refuses is held for wrong: messages for another one keep their times."""
    narrow = there(kafka_broker, {f"message.timestamp.{side}.max.ms": "60000" for side in ("before", "after")})
    wide, now = there(kafka_broker), now_ms() + 600_000
    monkeypatch.setattr(writing, "SYSTEM_CLOCK", SettableClock(now))
    given = [now, now - DAY_MS, now + DAY_MS]
    batch: list[RawRecord] = [(timestamp, None, b"v" * 50_000) for timestamp in given for _ in range(50)]
    refusals = 0
    with closing(KafkaWriter(options, None)) as writer:
        while refusals < 4:
            try:
                with writer.begin() as begun:
                    for ssp in (wide, narrow):
                        begun.append(ssp, batch)
                break
            except RetryableError:
                refusals += 1
        writer.append(narrow, [(now, None, b"v")])
    assert 0 < refusals < 4
    assert times(options, narrow) == [record[0] for record in batch] + [now]
    assert set(sent(options, narrow)) == {-1}
    assert sent(options, wide) == [now] * 50 + [now - DAY_MS] * 50 + [now] * 50
    assert caplog.text.count("Compare the clocks") == 1
