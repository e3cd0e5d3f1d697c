"""Writers of Kafka on a real broker: transactions, fences, progress. What readers see is read with the plain client."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import (
    ConfigError,
    FencedError,
    IncompatibleError,
    NotFoundError,
    PenstockError,
    PenstockTimeoutError,
    RetryableError,
)
from penstock.system.base import Progress, RawRecord, WriterIdentity
from penstock.system.kafka import fences, transaction
from penstock.system.kafka.job_log import JobLog
from penstock.system.kafka.job_topic import JobTopic, job_topic
from penstock.system.kafka.options import KafkaOptions, parse_options
from penstock.system.kafka.writer import KafkaWriter
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.jobs import wait_until
from tests.support.kafka import QUIET, TIMEOUT_S, new_topic

pytestmark = pytest.mark.kafka
FOREVER = {"retention.ms": "-1"}
"""Records of these tests are of 1970."""


def options_of(broker: KafkaBroker) -> KafkaOptions:
    return parse_options("kafka", {"consumer.bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture
def options(kafka_broker: KafkaBroker) -> KafkaOptions:
    return options_of(kafka_broker)


@pytest.fixture
def name() -> str:
    return f"job-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def here(kafka_broker: KafkaBroker) -> SystemStreamPartition:
    return SystemStreamPartition("kafka", new_topic(kafka_broker, 2, FOREVER), 0)


def other(here: SystemStreamPartition) -> SystemStreamPartition:
    return SystemStreamPartition(here.system, here.stream, 1)


def records(first: int, count: int, value: bytes = b"v") -> list[RawRecord]:
    return [(1000 + n, b"%d" % n, value) for n in range(first, first + count)]


def read(options: KafkaOptions, ssp: SystemStreamPartition) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """What a read_committed reader sees, up to the stable end."""
    consumer = Consumer(
        {
            "bootstrap.servers": options.servers,
            "group.id": "oracle",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        },
        logger=QUIET,
    )
    found: list[tuple[int, int, bytes | None, bytes | None]] = []
    try:
        consumer.assign([TopicPartition(ssp.stream, ssp.partition, 0)])
        while True:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return found
                continue
            found.append((message.offset() or 0, message.timestamp()[1], message.key(), message.value()))
    finally:
        consumer.close()


def keys(options: KafkaOptions, ssp: SystemStreamPartition) -> list[int]:
    return [int(key or b"-1") for _, _, key, _ in read(options, ssp)]


def written_end(options: KafkaOptions, ssp: SystemStreamPartition) -> int:
    """Behind all that is committed, open, or aborted."""
    consumer = Consumer(
        {"bootstrap.servers": options.servers, "group.id": "oracle", "isolation.level": "read_uncommitted"},
        logger=QUIET,
    )
    try:
        at = TopicPartition(ssp.stream, ssp.partition)
        return int(consumer.get_watermark_offsets(at, TIMEOUT_S, cached=False)[1])
    finally:
        consumer.close()


def job_state(options: KafkaOptions, name: str) -> JobTopic:
    with closing(JobLog(options, job_topic(name), committed=False)) as log:
        return log.catch_up()


def publish(writer: KafkaWriter, marks: dict[SystemStreamPartition, Progress], batch: Iterable[RawRecord]) -> None:
    with writer.begin() as begun:
        for at, mark in marks.items():
            begun.append(at, batch)
            begun.mark(at, mark)


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
    assert found[4][1:] == (1, b"k", b"v"), "the client cannot send the time 0"


def test_messages_of_many_megabytes(kafka_broker: KafkaBroker, options: KafkaOptions) -> None:
    topic = new_topic(kafka_broker, config={**FOREVER, "max.message.bytes": "30000000"})
    ssp = SystemStreamPartition("kafka", topic, 0)
    with closing(KafkaWriter(options, None)) as writer:
        writer.append(ssp, [(1, None, bytes([n]) * 20_000_000) for n in range(4)])
    assert [(value or b"")[:1] for _, _, _, value in read(options, ssp)] == [bytes([n]) for n in range(4)]


def test_a_message_too_large_names_the_settings(kafka_broker: KafkaBroker, options: KafkaOptions) -> None:
    ssp = SystemStreamPartition("kafka", new_topic(kafka_broker, config={**FOREVER, "max.message.bytes": "1000"}), 0)
    with closing(KafkaWriter(options, None)) as writer:
        with pytest.raises(ConfigError, match=r"`max\.message\.bytes`.*`systems\.kafka\.producer\.max\.request\.size`"):
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


def test_that_another_epoch_has_taken_over_is_raised_and_not_logged(
    options: KafkaOptions, name: str, here: SystemStreamPartition, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(KafkaWriter(options, WriterIdentity(name, 1))) as writer:
        begun = writer.begin()
        begun.append(here, records(0, 1))
        fences.fence(options, WriterIdentity(name, 2))
        with pytest.raises(FencedError):
            begun.commit()
        begun.abort()
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


def test_a_producer_that_was_refused_is_replaced(options: KafkaOptions, name: str, here: SystemStreamPartition) -> None:
    """As when the brokers have ended a transaction that took too long: the epoch is still the newest one."""
    with closing(KafkaWriter(options, WriterIdentity(name, 3))) as writer:
        publish(writer, {here: Progress(1, 0)}, records(0, 1))
        for turn in range(1, 3):
            begun = writer.begin()
            begun.append(here, records(100, 1))
            begun.mark(here, Progress(1, turn))
            for each in job_state(options, name).producers:
                fences.initialised(options, each, here.stream)
            with pytest.raises(RetryableError, match=r"transaction\.timeout\.ms"):
                begun.commit()
            begun.abort()
            assert writer.progress([here]) == {here: Progress(1, turn - 1)}
            publish(writer, {here: Progress(1, turn)}, records(turn, 1))
        assert len(job_state(options, name).producers) == 1
    assert job_state(options, name).producers == {}
    assert keys(options, here) == list(range(3))


def test_a_producer_is_not_replaced_for_ever(options: KafkaOptions, name: str, here: SystemStreamPartition) -> None:
    def refused() -> None:
        with writer.begin() as begun:
            begun.append(here, records(0, 1))
            for each in job_state(options, name).producers:
                fences.initialised(options, each, here.stream)

    with closing(KafkaWriter(options, WriterIdentity(name, 3))) as writer:
        for _ in range(4):
            with pytest.raises(RetryableError):
                refused()
        with pytest.raises(PenstockTimeoutError, match=r"5 times in a row"):
            refused()
    assert keys(options, here) == []


def test_others_that_append_in_between_are_not_counted(
    options: KafkaOptions, name: str, here: SystemStreamPartition
) -> None:
    with (
        closing(KafkaWriter(options, WriterIdentity(name, 1))) as writer,
        closing(KafkaWriter(options, None)) as somebody,
    ):

        def interrupted(begun: transaction.KafkaTransaction) -> Iterator[RawRecord]:
            yield from records(0, 3)
            assert begun._producer is not None
            begun._producer.flush(TIMEOUT_S)
            somebody.append(here, records(100, 2))
            yield from records(3, 3)

        def step() -> transaction.KafkaTransaction:
            with writer.begin() as begun:
                assert isinstance(begun, transaction.KafkaTransaction)
                begun.append(here, interrupted(begun))
            return begun

        with pytest.raises(RetryableError, match="others appended"):
            step()
        offsets = [offset for start, end in step().appended()[here] for offset in range(start, end)]
    found = {offset: key for offset, _, key, _ in read(options, here)}
    assert [found.pop(offset) for offset in offsets] == [b"%d" % n for n in range(6)]
    assert set(found.values()) == {b"100", b"101"}


POINTS: dict[str, tuple[Any, str, bool] | None] = {
    "registration": (fences, "register", True),
    "initialisation": (fences, "initialised", True),
    "reading of the fences": (fences, "initialised", False),
    "first message": None,
    "middle": None,
    "commit": (transaction.KafkaTransaction, "_commit", True),
    "new producer": (fences, "initialised", False),
}
"""Where a writer is paused: before or after a function, or in the records that it appends."""


class Paused:
    """Stops this process once, at a point."""

    def __init__(self, point: str) -> None:
        self.point = point
        self._stopped = False

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)

    @contextmanager
    def wrapped(self) -> Iterator[None]:
        place = POINTS[self.point]
        if place is None:
            yield
            return
        module, function, before = place
        real = getattr(module, function)

        def stopping(*arguments: Any, **named: Any) -> Any:
            if before:
                self.stop()
            result = real(*arguments, **named)
            if not before:
                self.stop()
            return result

        setattr(module, function, stopping)
        yield
        setattr(module, function, real)

    def records(self) -> Iterator[RawRecord]:
        if self.point == "first message":
            self.stop()
        yield from records(1, 5000)
        if self.point == "middle":
            self.stop()
        yield from records(5001, 10)


def _write_and_stop(options: KafkaOptions, ends: Connection) -> None:
    """A process of epoch 1 that is paused at each point, and then continues as if nothing had happened."""
    while True:
        try:
            point, name, here = ends.recv()
        except EOFError:
            return
        writer, paused = KafkaWriter(options, WriterIdentity(name, 1)), Paused(point)
        if point not in ("registration", "initialisation", "reading of the fences"):
            writer.append(here, records(0, 1))
        if point == "new producer":
            writer.lose_producer()
        answers = []
        with paused.wrapped():
            for _ in range(2):
                try:
                    publish(writer, {here: Progress(9, 9)}, paused.records())
                    answers.append("committed")
                except PenstockError as error:
                    answers.append(type(error).__name__)
        ends.send(answers)
        writer.close()


@pytest.mark.parametrize(
    "points",
    [
        ["reading of the fences", "commit"],
        pytest.param(
            [point for point in POINTS if point not in ("reading of the fences", "commit")], marks=pytest.mark.slow
        ),
    ],
    ids=["two", "others"],
)
def test_a_writer_that_wakes_up_after_a_take_over_writes_nothing(
    kafka_broker: KafkaBroker, options: KafkaOptions, name: str, points: list[str]
) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_write_and_stop, args=(options, theirs))
    child.start()
    theirs.close()
    process = psutil.Process(child.pid)
    try:
        for point in points:
            job = f"{name}-{point}"
            here = SystemStreamPartition("kafka", new_topic(kafka_broker, 1, FOREVER), 0)
            ours.send((point, job, here))
            wait_until(lambda: process.status() == psutil.STATUS_STOPPED, f"a pause at: {point}")
            fences.fence(options, WriterIdentity(job, 2))
            with closing(KafkaWriter(options, WriterIdentity(job, 2))) as newer:
                assert newer.progress([here]) == {}
                publish(newer, {here: Progress(1, 0)}, records(20_000, 1))
                os.kill(process.pid, signal.SIGCONT)
                assert ours.poll(TIMEOUT_S)
                assert ours.recv() == ["FencedError", "FencedError"], point
                assert newer.progress([here]) == {here: Progress(1, 0)}
            assert keys(options, here) in ([20_000], [0, 20_000]), point
            fences.fence(options, WriterIdentity(job, 3))
            assert (job_state(options, job).producers, job_state(options, job).fences) == ({}, {3}), point
    finally:
        child.kill()
        child.join()


def _append_until_fenced(
    options: KafkaOptions, writer: WriterIdentity, here: SystemStreamPartition, begun: threading.Event
) -> None:
    with closing(KafkaWriter(options, writer)) as opened:
        for turn in range(100_000):
            try:
                opened.append(here, [(1, b"%d" % writer.epoch, b"%d" % turn)])
            except FencedError:
                break
            except RetryableError:
                continue  # others append at the same time
            begun.set()
    begun.set()


def _take_over(
    options: KafkaOptions, writer: WriterIdentity, here: SystemStreamPartition, ends: dict[int, int]
) -> None:
    with suppress(FencedError):
        fences.fence(options, writer)
        ends[writer.epoch] = written_end(options, here)


def test_drivers_that_compete(options: KafkaOptions, name: str, here: SystemStreamPartition) -> None:
    """Whatever the order: behind what a driver found when its fence was done, no older epoch has appended."""
    identities = [WriterIdentity(name, epoch) for epoch in range(1, 6)]
    begun = {each.epoch: threading.Event() for each in identities}
    ends: dict[int, int] = {}
    writers = [
        threading.Thread(target=_append_until_fenced, args=(options, each, here, begun[each.epoch]))
        for each in identities
    ]
    drivers = [
        threading.Thread(target=_take_over, args=(options, identities[epoch - 1], here, ends)) for epoch in (4, 2, 5, 3)
    ]
    for thread in writers[:3]:
        thread.start()
    assert begun[3].wait(TIMEOUT_S)
    for thread in [*drivers, *writers[3:]]:
        thread.start()
    for thread in drivers:
        thread.join(TIMEOUT_S)
    assert begun[5].wait(TIMEOUT_S)
    fences.fence(options, WriterIdentity(name, 6))
    for thread in writers:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    found = read(options, here)
    assert 5 in ends
    for epoch, end in ends.items():
        assert [key for offset, _, key, _ in found if offset >= end and int(key or b"0") < epoch] == []
    assert (job_state(options, name).fences, job_state(options, name).producers) == ({6}, {})


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


@pytest.mark.parametrize(
    "ways",
    [[_killed], pytest.param([_killed, KafkaBroker.restart, _frozen], marks=pytest.mark.slow)],
    ids=["killed", "in every way"],
)
def test_a_broker_that_goes_away_loses_and_doubles_nothing(
    name: str, ways: list[Callable[[KafkaBroker], None]]
) -> None:
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
