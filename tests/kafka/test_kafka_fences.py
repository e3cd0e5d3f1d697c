"""Fences of Kafka on a real broker: what writers of older epochs do once another epoch has taken over."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import (
    FencedError,
    PenstockError,
    PenstockTimeoutError,
    RetryableError,
    SystemAwayError,
    SystemRefusedError,
)
from penstock.system.base import Progress, RawRecord, WriterIdentity
from penstock.system.kafka import fences, job_log
from penstock.system.kafka import writer as writing
from penstock.system.kafka.admin import KafkaAdmin
from penstock.system.kafka.errors import ClientErrors
from penstock.system.kafka.fences import TOPIC, Owners
from penstock.system.kafka.job_topic import job_topic
from penstock.system.kafka.options import KafkaOptions, parse_options
from penstock.system.kafka.writer import KafkaWriter
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.jobs.home import wait_until
from tests.support.streams.kafka import QUIET, TIMEOUT_S, new_topic
from tests.support.streams.kafka_writers import FOREVER, job_state, keys, publish, read, records, written_end

pytestmark = pytest.mark.kafka


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


def test_a_record_that_no_broker_takes_is_an_error() -> None:
    """A job that took such a fence for granted would let an older epoch go on."""
    options = parse_options("kafka", {"consumer.bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(SystemAwayError, match=r"within 0\.1 s"):
        job_log.put(options, "topic", [(b"fence", b"v")], within_s=0.1)


@pytest.mark.parametrize("large", [[1], [0, 2], [0, 1, 2]])
def test_a_record_that_the_brokers_refuse_is_an_error(
    options: KafkaOptions, kafka_broker: KafkaBroker, large: list[int]
) -> None:
    topic = new_topic(kafka_broker, 1, {**FOREVER, "max.message.bytes": "1000"})
    put = [(b"%d" % n, os.urandom(5000 if n in large else 5)) for n in range(3)]
    with pytest.raises(SystemRefusedError, match="MSG_SIZE_TOO_LARGE"):
        job_log.put(options, topic, put)


@pytest.mark.slow
def test_a_transaction_that_a_dead_driver_has_left_open_is_waited_for(
    options: KafkaOptions,
    kafka_broker: KafkaBroker,
    name: str,
    here: SystemStreamPartition,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Brokers end it later than a call may take."""
    with closing(KafkaWriter(options, WriterIdentity(name, 1))) as writer:
        publish(writer, {here: Progress(1, 0)}, records(0, 1))
    client = {**kafka_broker.client_options(), "transactional.id": f"{name}-left", "transaction.timeout.ms": 5000}
    left = Producer(client, logger=QUIET)
    left.init_transactions(TIMEOUT_S)
    left.begin_transaction()
    left.produce(job_topic(name), b"", b"left", 0)
    assert left.flush(TIMEOUT_S) == 0
    with closing(KafkaAdmin(replace(options, timeout_ms=1500))) as admin:
        assert admin.progress_of(name, [here]) == {here: Progress(1, 0)}
    assert "a transaction is open, which a process that died may have left" in caplog.text


@pytest.mark.attack
def test_forged_records_in_the_topics_of_penstock_stop_no_job(
    options: KafkaOptions, name: str, here: SystemStreamPartition, caplog: pytest.LogCaptureFixture
) -> None:
    forged: list[tuple[bytes, bytes | None]] = [(b"fence/999999999999", b'{"format":1}'), (b"fence/x", b"no json")]
    with closing(KafkaWriter(options, WriterIdentity(name, 1))) as writer:
        publish(writer, {here: Progress(1, 0)}, records(0, 1))
        job_log.put(options, job_topic(name), forged)
        publish(writer, {here: Progress(1, 1)}, records(1, 1))
    fences.fence(options, WriterIdentity(name, 2))
    assert "no job comes to epoch 999999999999" in caplog.text
    with closing(KafkaWriter(options, WriterIdentity(name, 2))) as writer:
        publish(writer, {here: Progress(1, 2)}, records(2, 1))
    assert keys(options, here) == [0, 1, 2]
    with closing(Owners(options)) as owners:
        assert owners.own("s", f"{name}-id", "job a-1") == "job a-1"
        job_log.put(options, TOPIC, [(b"owner/any/1", b"no json"), (f"owner/{name}-id/2".encode(), b"{}")])
        assert owners.own("s", f"{name}-id", "job b-1") == "job a-1"
    with closing(Owners(options)) as owners:
        assert owners.own("s", f"{name}-id", "job b-1") == "job a-1"
    assert f"the topic `{TOPIC}` of the system `kafka` has records that are left out" in caplog.text


@pytest.mark.slow
def test_a_producer_that_was_refused_is_replaced(options: KafkaOptions, name: str, here: SystemStreamPartition) -> None:
    """As when the brokers have ended a transaction that took too long: the epoch is still the newest one."""
    with closing(KafkaWriter(options, WriterIdentity(name, 3))) as writer:
        publish(writer, {here: Progress(1, 0)}, records(0, 1))
        for turn in range(1, 3):
            begun = writer.begin()
            begun.append(here, records(100, 1))
            begun.mark(here, Progress(1, turn))
            for each in job_state(options, name).producers:
                fences.initialised(options, each, here.stream, ClientErrors())
            with pytest.raises(RetryableError, match=r"transaction\.timeout\.ms"):
                begun.commit()
            begun.abort()
            assert writer.progress([here]) == {here: Progress(1, turn - 1)}
            publish(writer, {here: Progress(1, turn)}, records(turn, 1))
        assert len(job_state(options, name).producers) == 1
    assert job_state(options, name).producers == {}
    assert keys(options, here) == list(range(3))


@pytest.mark.slow
def test_a_producer_is_not_replaced_for_ever(options: KafkaOptions, name: str, here: SystemStreamPartition) -> None:
    def refused() -> None:
        with writer.begin() as begun:
            begun.append(here, records(0, 1))
            for each in job_state(options, name).producers:
                fences.initialised(options, each, here.stream, ClientErrors())

    with closing(KafkaWriter(options, WriterIdentity(name, 3))) as writer:
        for _ in range(4):
            with pytest.raises(RetryableError):
                refused()
        with pytest.raises(PenstockTimeoutError, match=r"5 times in a row"):
            refused()
    assert keys(options, here) == []


POINTS: dict[str, tuple[Any, str, bool] | None] = {
    "registration": (fences, "register", True),
    "initialisation": (fences, "initialised", True),
    "reading of the fences": (fences, "initialised", False),
    "first message": None,
    "middle": None,
    "commit": (writing.KafkaTransaction, "_commit", True),
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
            writer.session.lose_producer()
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
        ["commit"],
        pytest.param([point for point in POINTS if point != "commit"], marks=pytest.mark.slow),
    ],
    ids=["one", "others"],
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
