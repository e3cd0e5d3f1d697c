"""Refusals of containers, and the way back of errors, with real processes."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pyarrow.flight as flight
import pytest

from penstock.errors import (
    ConfigError,
    ContainerLostError,
    CorruptError,
    FencedError,
    IncompatibleError,
    NotFoundError,
    PenstockError,
    PenstockTimeoutError,
    RetryableError,
)
from penstock.runtime.messages.packet import NO_PACKETS, PACKET_SCHEMA
from penstock.wire.client import ContainerClient
from penstock.wire.protocol import CLOSE, END_OF_INPUT, OPEN, NoArguments, OpenEpoch, carried_error
from penstock.wire.security import call_options
from tests.support.apps.container_app import RAISES, messages, oracle
from tests.support.oracles.tracebacks import frames_of_penstock
from tests.support.processes.containers import DEADLINE_S, SECRET, ContainerProcess, Job, stored


@pytest.fixture
def container(shared_container: ContainerProcess) -> ContainerProcess:
    return shared_container


@pytest.fixture
def job(tmp_path: Path, container: ContainerProcess) -> Job:
    job = Job(tmp_path, [container], tasks=1, config={"task.shutdown.ms": 3000})
    job.open()
    return job


def _read_one(client: flight.FlightClient, options: flight.FlightCallOptions) -> flight.FlightStreamChunk:
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"garbage"), options)
    writer.begin(PACKET_SCHEMA)
    writer.write_with_metadata(NO_PACKETS, END_OF_INPUT)
    return reader.read_chunk()


@pytest.mark.attack
def test_calls_without_the_right_token_are_refused_and_logged_once(container: ContainerProcess, job: Job) -> None:
    address = container.address
    me = address.incarnation
    nothing = flight.FlightCallOptions(timeout=DEADLINE_S)
    twice = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {SECRET}".encode())] * 2)
    tokens = [("wrong", me), ("", me), (SECRET + "x", me), (SECRET, "another"), (SECRET, "")]
    wrong = [call_options(*token) for token in tokens]
    close = flight.Action(CLOSE.name, CLOSE.encode(container.client.identity(1), NoArguments()))
    for uri in (address.socket_uri, address.tcp_uri):
        client = flight.connect(uri)
        for options in (nothing, *wrong, twice):
            with pytest.raises(flight.FlightUnauthenticatedError, match="does not carry the container's token"):
                list(client.do_action(close, options))
            with pytest.raises(flight.FlightUnauthenticatedError):
                list(client.list_flights(options=options))
            with pytest.raises(flight.FlightUnauthenticatedError):
                _read_one(client, options)
        client.close()
    with pytest.raises(ContainerLostError, match="token"):
        ContainerClient(address, "wrong").ask(OPEN, 1, OpenEpoch(b"", 0, None, {}, (), (0,)), 5)
    job.run_batch(1, messages(10))
    assert container.log.count("without this container's token") == 1
    assert SECRET not in container.log
    assert SECRET not in " ".join(psutil.Process(address.pid).cmdline())


@pytest.mark.attack
def test_a_stranger_on_a_freed_port_gets_nothing_of_use(tmp_path: Path, container: ContainerProcess) -> None:
    gone = ContainerProcess(tmp_path)
    gone.client.disconnect()
    gone.kill()
    stranger = Stranger(gone.address.tcp_uri)
    try:
        late = ContainerClient(replace(gone.address, machine="another"), SECRET)
        with pytest.raises(PenstockError):
            late.ask(CLOSE, 1, NoArguments(), DEADLINE_S)
        late.disconnect()
    finally:
        stranger.shutdown()
    (heard,) = stranger.heard
    assert SECRET not in str(heard)
    headers = [(name.encode(), value.encode()) for name, values in heard.items() for value in values]
    again = [each for each in headers if each[0] == b"authorization"]
    assert again
    client = flight.connect(container.address.tcp_uri)
    close = flight.Action(CLOSE.name, CLOSE.encode(container.client.identity(1), NoArguments()))
    with pytest.raises(flight.FlightUnauthenticatedError):
        list(client.do_action(close, flight.FlightCallOptions(timeout=DEADLINE_S, headers=again)))
    client.close()


class Stranger(flight.FlightServerBase):  # type: ignore[misc]
    """Listens on a port that a container had, and keeps the headers of calls."""

    def __init__(self, uri: str) -> None:
        self.heard: list[dict[str, list[str]]] = []
        super().__init__(uri, middleware={"ears": _Ears(self.heard)})


class _Ears(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, heard: list[dict[str, list[str]]]) -> None:
        super().__init__()
        self._heard = heard

    def start_call(self, info: object, headers: dict[str, list[str]]) -> None:
        self._heard.append(headers)


@pytest.mark.attack
def test_garbage_bytes_on_the_port(container: ContainerProcess, job: Job) -> None:
    port = urlsplit(container.address.tcp_uri).port
    assert port is not None
    for garbage in (
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(4096),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 500,
        b"",
    ):
        with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
            connection.settimeout(DEADLINE_S)
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            try:
                while connection.recv(4096):
                    pass
            except ConnectionError:
                pass
    job.run_batch(1, messages(10))


@pytest.mark.attack
def test_malformed_calls_are_errors_and_the_container_goes_on(container: ContainerProcess, job: Job) -> None:
    address = container.address
    client, options = flight.connect(address.tcp_uri), call_options(SECRET, address.incarnation, DEADLINE_S)
    for action, body in (("open", b""), ("end", b"{"), ("end", b"{}"), ("snapshot", b"[]")):
        (answer,) = client.do_action(flight.Action(action, body), options)
        assert str(carried_error(answer.body.to_pybytes())).startswith("CorruptError: ")
    with pytest.raises(flight.FlightError):
        list(client.do_action(flight.Action("no-such", b""), options))
    assert "is damaged" in str(carried_error(_read_one(client, options).app_metadata.to_pybytes()))
    client.close()
    job.run_batch(1, messages(10))


def test_what_goes_wrong_inside_keeps_its_kind(container: ContainerProcess, tmp_path: Path) -> None:
    job = Job(tmp_path, [container])
    with pytest.raises(CorruptError, match=r"no marker for store `totals` of task [01] from changelog-files"):
        job.open(markers={"0": {}, "1": {}})
    job.objects.delete("probe")
    with pytest.raises(NotFoundError, match="a job root must be shared by all hosts"):
        job.open()
    for kind in (ConfigError, IncompatibleError, FencedError, RetryableError, PenstockTimeoutError):
        assert type(container.client._error("upload", f"{kind.__name__}: why")) is kind


def test_the_application_fails_in_a_container(container: ContainerProcess, job: Job) -> None:
    run = job.start(1, [{"key": "a", "n": 1}, {"key": "b", "n": 2, "raise": "no such flight"}])
    _, report = job.attempt(run, 0)
    assert report.failed is not None
    assert (report.failed.offset, report.failed.key, report.failed.operator) == (1, "b", "add")
    assert report.failed.reason == "ValueError: no such flight"
    assert frames_of_penstock(report.failed.traceback) == []
    job.run_batch(1, messages(10), run=2)
    assert (job.folder / "close-0").exists()


def test_nothing_that_the_application_raises_ends_a_container(container: ContainerProcess, job: Job) -> None:
    good = [{"key": "a", "n": 1}, {"key": "a", "n": 2}]
    for number, what in enumerate(RAISES, 1):
        run = job.start(1, [*good, {"key": "a", "n": 4, "raise": what}], run=number)
        reports = [job.attempt(run, task)[1] for task in range(job.tasks)]
        assert all(report.error is None for report in reports)
        failed = next(report.failed for report in reports if report.failed is not None)
        assert (failed.stream, failed.partition, failed.key) == ("local.events", 0, "a")
        assert failed.reason.startswith(RAISES[what].__name__)
    job.run_batch(1, messages(10), run=9)


def test_whatever_the_application_raises_may_be_a_dead_letter(container: ContainerProcess, tmp_path: Path) -> None:
    job = Job(tmp_path, [container], dead_letter="local.dead")
    job.open()
    good = [{"key": "a", "n": 1}, {"key": "a", "n": 2}]
    bad = [{"key": "a", "n": 4, "raise": what} for what in RAISES]
    assert job.run_batch(1, [good[0], *bad, good[1]]).dead_letters == len(RAISES)
    assert stored(job, job.commit()) == oracle(good)
