"""Writers of Kafka on a real broker: transactions and progress. What readers see is read with the plain client."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import psutil
import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, IncompatibleError, NotFoundError, RetryableError
from penstock.system.base import Progress, RawRecord, WriterIdentity
from penstock.system.kafka import fences
from penstock.system.kafka import writer as writing
from penstock.system.kafka.options import KafkaOptions
from penstock.system.kafka.writer import KafkaWriter
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.streams.kafka import TIMEOUT_S, new_topic
from tests.support.streams.kafka_writers import FOREVER, job_state, keys, options_of, other, publish, read, records

pytestmark = pytest.mark.kafka


def test_bytes_times_and_offsets_are_those_of_the_records(options: KafkaOptions, here: SystemStreamPartition) -> None:
    batch: list[RawRecord] = [(5, b"", b""), (7, None, None), (3, b"key", None), (-5, None, b"\0"), (0, b"k", b"v")]
    with closing(KafkaWriter(options, None)) as writer:
        with writer.begin() as begun:
            begun.append(here, batch[:3])
            begun.append(other(here), [])
            begun.append(here, iter(batch[3:]))
        assert begun.appended() == {here: ((0, 5),)}
        assert writer.append(here, records(0, 1)) > 5
    found = read(options, here)
    assert [message[0] for message in found[:5]] == [0, 1, 2, 3, 4]
    assert [message[1:] for message in found[:4]] == batch[:4]
    assert found[4][1:] == (1, b"k", b"v"), "the client cannot send the time 0, which is in a header"


def test_messages_of_many_megabytes(kafka_broker: KafkaBroker, options: KafkaOptions) -> None:
    topic = new_topic(kafka_broker, config={**FOREVER, "max.message.bytes": "30000000"})
    ssp = SystemStreamPartition("kafka", topic, 0)
    with closing(KafkaWriter(options, None)) as writer:
        writer.append(ssp, [(1, None, bytes([n]) * 20_000_000) for n in range(4)])
    assert [(value or b"")[:1] for _, _, _, value in read(options, ssp)] == [bytes([n]) for n in range(4)]


def test_a_message_too_large_names_the_settings(kafka_broker: KafkaBroker, options: KafkaOptions) -> None:
    ssp = SystemStreamPartition("kafka", new_topic(kafka_broker, config={**FOREVER, "max.message.bytes": "1000"}), 0)
    with closing(KafkaWriter(options, None)) as writer:
        with pytest.raises(
            ConfigError, match=r"`max\.message\.bytes`.*`systems\.kafka\.producer\.message\.max\.bytes`"
        ):
            writer.append(ssp, [(1, None, os.urandom(5000))])
        writer.append(ssp, records(0, 1))
    assert keys(options, ssp) == [0]


def test_places_that_do_not_exist_are_not_created(options: KafkaOptions, here: SystemStreamPartition) -> None:
    with closing(KafkaWriter(options, None)) as writer:
        with pytest.raises(NotFoundError, match="penstock stream create"):
            writer.append(SystemStreamPartition("kafka", "nowhere", 0), records(0, 1))
        with pytest.raises(NotFoundError, match="partitions 0 to 1, not 2"):
            writer.append(SystemStreamPartition("kafka", here.stream, 2), records(0, 1))
        with pytest.raises(ConfigError, match="not a partition of the system"):
            writer.append(SystemStreamPartition("other", here.stream, 0), records(0, 1))


def test_others_that_append_are_not_counted(options: KafkaOptions, name: str, here: SystemStreamPartition) -> None:
    with (
        closing(KafkaWriter(options, WriterIdentity(name, 1))) as writer,
        closing(KafkaWriter(options, None)) as somebody,
    ):

        def interrupted(begun: writing.KafkaTransaction) -> Iterator[RawRecord]:
            yield from records(0, 3)
            assert begun._producer is not None
            begun._producer.flush(TIMEOUT_S)
            somebody.append(here, records(100, 2))
            yield from records(3, 3)

        def step() -> writing.KafkaTransaction:
            with writer.begin() as begun:
                assert isinstance(begun, writing.KafkaTransaction)
                begun.append(here, interrupted(begun))
            return begun

        with pytest.raises(RetryableError, match="others appended"):
            step()
        offsets = [offset for start, end in step().appended()[here] for offset in range(start, end)]
    found = {offset: key for offset, _, key, _ in read(options, here)}
    assert [found.pop(offset) for offset in offsets] == [b"%d" % n for n in range(6)]
    assert set(found.values()) == {b"100", b"101"}


@pytest.mark.slow
def test_nothing_grows(options: KafkaOptions, name: str, here: SystemStreamPartition) -> None:
    process = psutil.Process()
    writer = KafkaWriter(options, WriterIdentity(name, 1))
    sizes = []
    for turn in range(300):
        publish(writer, {here: Progress(turn, 0), other(here): Progress(turn, 1)}, records(turn, 1))
        if turn % 50 == 0:
            assert writer.progress([here])[here] == Progress(turn, 0)
        if turn in (100, 299):
            sizes.append((process.num_threads(), process.num_fds()))
    writer.close()
    assert sizes[1][0] <= sizes[0][0]
    assert sizes[1][1] <= sizes[0][1] + 2
    for epoch in range(2, 6):
        fences.fence(options, WriterIdentity(name, epoch))
    state = job_state(options, name)
    assert (len(state.fences), len(state.producers), len(state.progress)) == (1, 0, 2)


def _killed(broker: KafkaBroker) -> None:
    broker.kill()
    broker.start()


def _frozen(broker: KafkaBroker) -> None:
    broker.freeze()
    time.sleep(2)  # the time that it is away
    broker.resume()


@pytest.mark.slow
@pytest.mark.parametrize(
    "ways",
    [[_killed], [_killed, KafkaBroker.restart, _frozen]],
    ids=["killed", "in every way"],
)
def test_a_broker_that_is_away_loses_and_doubles_nothing(name: str, ways: list[Callable[[KafkaBroker], None]]) -> None:
    """It is stopped, killed and frozen while chunks are published, in the middle of whatever is under way."""
    with KafkaBroker() as broker:
        options = options_of(broker)
        here = SystemStreamPartition("kafka", new_topic(broker, 2, FOREVER), 0)
        failed: list[BaseException] = []
        done = threading.Event()
        count = [0]

        def work() -> None:
            writer = KafkaWriter(options, WriterIdentity(name, 1))
            try:
                while not done.is_set():
                    try:
                        known = writer.progress([here]).get(here)
                        for chunk in range(0 if known is None else known.chunk + 1, 1_000_000):
                            publish(writer, {here: Progress(1, chunk)}, records(5 * chunk, 5))
                            count[0] = chunk + 1
                            if done.is_set():
                                break
                    except RetryableError:
                        continue
            except BaseException as error:
                failed.append(error)
            finally:
                writer.close()

        thread = threading.Thread(target=work)
        thread.start()

        def progressed() -> None:
            before, deadline = count[0], time.monotonic() + 3 * TIMEOUT_S
            while count[0] < before + 20:
                assert time.monotonic() < deadline
                assert not failed, failed
                done.wait(0.01)

        try:
            progressed()
            for way in ways:
                way(broker)
                progressed()
        finally:
            done.set()
            thread.join(3 * TIMEOUT_S)
        assert not thread.is_alive()
        assert failed == []
        with closing(KafkaWriter(options, WriterIdentity(name, 2))) as successor:
            chunks = successor.progress([here])[here].chunk + 1
        assert chunks >= count[0]
        assert keys(options, here) == list(range(5 * chunks))


def test_a_mark_needs_a_name_and_a_larger_number(options: KafkaOptions, name: str, here: SystemStreamPartition) -> None:
    with closing(KafkaWriter(options, WriterIdentity(name, 1))) as writer:
        publish(writer, {here: Progress(4, 4)}, records(0, 1))
    with closing(KafkaWriter(options, WriterIdentity(name, 1))) as writer:
        for wrong in (Progress(4, 4), Progress(3, 9)):
            with pytest.raises(IncompatibleError, match="already published"):
                publish(writer, {here: wrong}, records(1, 1))
        publish(writer, {here: Progress(4, 5)}, records(1, 1))
    assert keys(options, here) == [0, 1]
