"""A broker that is away: how soon, and in which words, calls say so; and that a job waits for it."""

from __future__ import annotations

import gc
import logging
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import interruptible
from penstock.errors import ConfigError, RetryableError, SystemAwayError
from penstock.system.base import OffsetRange, Progress, System, SystemWriter, WriterIdentity
from penstock.system.kafka import cluster
from penstock.system.kafka import writer as writing
from penstock.system.kafka.client import open_admin
from penstock.system.kafka.errors import ClientErrors
from penstock.system.kafka.options import KafkaOptions
from penstock.system.kafka.system import KafkaSystem
from penstock.system.kafka.writer import KafkaWriter
from penstock.testing.kafka_broker import KafkaBroker
from tests.support.jobs.home import wait_until
from tests.support.streams.kafka import new_topic
from tests.support.streams.kafka_writers import options_of
from tests.support.tools.fixtures import fixture_of
from tests.support.world.kafka_world import KafkaWorld

pytestmark = pytest.mark.kafka


broker = fixture_of(KafkaBroker, using=(), scope="module")
"""A broker of this file, which comes and goes."""


def system_at(servers: str, timeout_ms: int = 2000, **options: str) -> System:
    return KafkaSystem.configured(
        "kafka",
        {
            "consumer.bootstrap.servers": servers,
            "consumer.default.api.timeout.ms": str(timeout_ms),
            **{f"consumer.{key}": value for key, value in options.items()},
        },
    )


def test_a_wrong_port_is_named_in_the_log_and_in_the_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "SAY_S", 0.5)
    with closing(system_at("127.0.0.1:9").admin()) as admin, pytest.raises(SystemAwayError) as failed:
        admin.offsets("flights")
    assert "`kafka.flights` could not be read" in str(failed.value)
    assert "127.0.0.1:9" in str(failed.value)
    assert "Connection refused" in str(failed.value)
    (line,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert "127.0.0.1:9" in line
    assert "`kafka.flights`" in line
    assert "Connection refused" in line
    assert capfd.readouterr().err == ""


late_broker = fixture_of(
    lambda: KafkaBroker(settings={"broker.session.timeout.ms": 1500, "broker.heartbeat.interval.ms": 4000})
)
"""A broker whose heartbeats come too late: every few seconds the cluster has no broker, and then a new leader."""


@pytest.mark.slow
def test_clients_get_answers_of_a_restless_broker(late_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that saw no broker, or that knows the leader of before, looks again by itself. They look often here: the
    process ends if one asks a broker about the cluster that knows of no broker."""
    for name in ("_LOOK_S", "_ASK_AGAIN_S"):
        monkeypatch.setattr(cluster, name, 0.05)
    system, stream = system_at(late_broker.bootstrap_servers, 60_000), ""
    while not stream:
        with suppress(KafkaException, TimeoutError):
            stream = new_topic(late_broker, 2)

    def begin(number: int) -> int:
        time.sleep(number * 0.4)
        with closing(system.admin()) as admin:
            return admin.partition_count(stream)

    def stay(_: int) -> int:
        with closing(system.admin()) as admin:
            until = time.monotonic() + 10
            while time.monotonic() < until:
                admin.offsets(stream)
                time.sleep(0.1)
            return 2

    with ThreadPoolExecutor(14) as clients:
        begun, stayed = clients.map(begin, range(12)), clients.map(stay, range(2))
        assert [*begun, *stayed] == [2] * 14


def clients(kind: type = Producer) -> int:
    """The number of clients of this process that are open, or could be."""
    gc.collect()
    return sum(isinstance(each, kind) for each in gc.get_objects())


@pytest.mark.slow
def test_a_client_that_does_not_answer_is_replaced(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka's may not see for good that a broker is back. A change is asked for once, by a client that answers."""
    if not broker.running:
        broker.start()
    opened = []

    def opening(options: KafkaOptions, reported: ClientErrors) -> AdminClient:
        opened.append(options)
        return open_admin(options, reported)

    monkeypatch.setattr(cluster, "open_admin", opening)
    monkeypatch.setattr(cluster, "_FIRST_TRY_S", 0.2)
    system, stream, other = system_at(broker.bootstrap_servers, 60_000), new_topic(broker), new_topic(broker)
    with closing(system.admin()) as admin, ThreadPoolExecutor(2) as callers:
        assert admin.partition_count(stream) == 1
        before = clients(AdminClient)
        broker.freeze()
        try:
            counted = callers.submit(admin.partition_count, stream)
            deleted = callers.submit(admin.delete_stream, other)
            wait_until(lambda: len(opened) >= 3, "other clients are asked")
        finally:
            broker.resume()
        assert counted.result(60) == 1
        deleted.result(60)
        assert clients(AdminClient) == before, "those that did not answer are closed"


def test_a_wrong_password_fails_at_once(kafka_broker: KafkaBroker, capfd: pytest.CaptureFixture[str]) -> None:
    options = kafka_broker.system_config("kafka", "SASL_SSL")
    prefix = "systems.kafka."
    given = {key.removeprefix(prefix): value for key, value in options.items() if key.startswith(prefix)}
    given.pop("samza.factory")
    system = KafkaSystem.configured("kafka", {**given, "consumer.sasl.password": "wrong"})
    began = time.monotonic()
    with closing(system.admin()) as admin, pytest.raises(ConfigError, match="do not let the client in"):
        admin.offsets("flights")
    identity = WriterIdentity(uuid.uuid4().hex, 1)
    with closing(system.writer(identity)) as writer, pytest.raises(ConfigError, match="do not let the client in"):
        writer.append(SystemStreamPartition("kafka", "flights", 0), [(1, None, b"x")])
    assert time.monotonic() - began < 30, "that is the time limit of each"
    assert capfd.readouterr().err == ""


def publish(writer: SystemWriter, here: SystemStreamPartition, mark: Progress, value: bytes) -> None:
    with writer.begin() as begun:
        begun.append(here, [(time.time_ns() // 1_000_000, b"a", value)])
        begun.mark(here, mark)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["frozen", "killed"])
def test_a_publication_is_interrupted(broker: KafkaBroker, fault: str, capfd: pytest.CaptureFixture[str]) -> None:
    if not broker.running:
        broker.start()
    topic = new_topic(broker)
    here, name = SystemStreamPartition("kafka", topic, 0), uuid.uuid4().hex
    system = system_at(broker.bootstrap_servers, timeout_ms=30_000)
    stopping = threading.Event()
    with closing(system.admin()) as admin:
        admin.fence(topic, WriterIdentity(name, 1))
        writer = system.writer(WriterIdentity(name, 1))
        publish(writer, here, Progress(1, 0), b"1")
        (broker.freeze if fault == "frozen" else broker.kill)()
        threading.Timer(1.0, stopping.set).start()
        began = time.monotonic()
        with interruptible(stopping), pytest.raises(RetryableError):
            publish(writer, here, Progress(1, 1), b"2")
        writer.close()
        assert time.monotonic() - began < 30, "that is the time limit of a call"
        (broker.resume if fault == "frozen" else broker.start)()
        wait_until(lambda: admin.offsets(topic)[0].upcoming > 0, "the broker")
        admin.fence(topic, WriterIdentity(name, 2))  # the next epoch continues with what is not published
        with closing(system.writer(WriterIdentity(name, 2))) as later:
            assert later.progress([here]) == {here: Progress(1, 0)}
        reader = system.reader()
        end = admin.offsets(topic)[0].upcoming
        assert [m[3] for chunk in reader.read(OffsetRange(here, 0, end), 10) for m in chunk] == [b"1"]
        reader.close()
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_writer_leaves_no_producer_open(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the first one of a job, which makes the job's topic, nor one whose broker was away when it was to send
    and to abort."""
    if not broker.running:
        broker.start()
    monkeypatch.setattr(writing, "_ABORT_SECONDS", 0.5)
    here, before = SystemStreamPartition("kafka", new_topic(broker), 0), clients()
    options = replace(options_of(broker), timeout_ms=5000)
    with closing(KafkaWriter(options, WriterIdentity(uuid.uuid4().hex, 1))) as writer:
        publish(writer, here, Progress(1, 0), b"1")
    assert clients() == before
    with closing(KafkaWriter(options, WriterIdentity(uuid.uuid4().hex, 1))) as writer:
        publish(writer, here, Progress(1, 0), b"1")
        broker.freeze()
        try:
            with pytest.raises(RetryableError):
                publish(writer, here, Progress(2, 0), b"2")
        finally:
            broker.resume()
    assert clients() == before


def test_what_a_client_says_is_logged_and_never_written_to_standard_error(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same if the configuration asks for more of it. A connection that is tried again is no error."""
    caplog.set_level(logging.DEBUG, "penstock.system.kafka")
    system = system_at("127.0.0.1:9", 1000, log_level="7")
    with closing(system.admin()) as admin, pytest.raises(SystemAwayError):
        admin.offsets("flights")
    here = SystemStreamPartition("kafka", "flights", 0)
    with closing(system.writer(WriterIdentity("w", 1))) as writer, pytest.raises(SystemAwayError):
        writer.append(here, [(1, None, b"x")])
    said = [record for record in caplog.records if "Connection refused" in record.message and "FAIL" in record.message]
    assert {record.levelno for record in said} == {logging.WARNING}
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_job_waits_for_its_broker(broker: KafkaBroker, tmp_path: Path) -> None:
    """For longer than all time limits together, which would be failures otherwise."""
    if not broker.running:
        broker.start()
    world = KafkaWorld(broker, tmp_path, "exactly-once")
    try:
        world.more |= {"job.retry.max": 0, "systems.kafka.consumer.default.api.timeout.ms": 1000}
        world.put(60)
        driver = world.driver()
        back = threading.Event()

        def leave() -> None:
            broker.kill()
            threading.Thread(target=come_back).start()

        def come_back() -> None:
            try:
                wait_until(lambda: driver.board.outage is not None, "the job waits")
                shown = str(driver.board.outage)
                assert broker.bootstrap_servers in shown
                assert world.source in shown
                first = driver.board.outage
                wait_until(lambda: driver.board.outage != first, "it was tried again")
            finally:
                broker.start()
                back.set()

        world.at(driver, "source", leave, nth=3)
        world.run(driver)
        assert back.is_set()
        assert driver.board.outage is None
        world.check()
    finally:
        world.close()
