"""The table of calls: one line is all that a call needs beside its request and its handler."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import END_OF_TIME, NO_WATERMARK, Batch
from penstock.container.container import Container
from penstock.container.handlers import HANDLERS, serve
from penstock.container.server import ContainerServer
from penstock.errors import ConfigError, ContainerLostError, CorruptError, NotFoundError, PenstockError, SystemAwayError
from penstock.host.posix import machine_id
from penstock.outbox.wing import OutboxObject, OutputPart, Publish
from penstock.side.wing import Bootstrap
from penstock.standby.wing import Follow
from penstock.tables.wing import LoadTable
from penstock.wing import calls
from penstock.wire.client import ContainerClient, exchange
from penstock.wire.containers import ContainerAddress
from penstock.wire.protocol import (
    BEAT,
    CALLS,
    CLOSE,
    CLOSE_SECONDS,
    LONGEST_ERROR,
    OPEN,
    AttemptCall,
    Beat,
    Call,
    CleanUp,
    EndBatch,
    Identity,
    NoArguments,
    OpenEpoch,
    OpenProgress,
    RenewPort,
    Request,
    StartRun,
    TakeSnapshot,
    UploadSnapshot,
    WindDown,
    dump,
)
from penstock.wire.security import TokenCheck
from tests.support.processes.containers import DEADLINE_S, wait_until

SECRET = "a-secret"
BATCH = Batch(7, 2, 1_700_000_000_000, "drain", {"w": NO_WATERMARK, "x": -5}, {"w": END_OF_TIME, "x": 7})
SSP = SystemStreamPartition("m", "out.x", 2)
MARKERS = {"0": {"blob": {"totals": "m0"}}, "1": {"blob": {"totals": "m1"}}, "2": {}}
REQUESTS: dict[str, Request] = {
    "open": OpenEpoch(b"\x00\xff", 6, "5-0", MARKERS, ("totals",)),
    "bootstrap": Bootstrap(),
    "start-run": StartRun(BATCH),
    "end": EndBatch(BATCH, {0: {1: "a", 2: "b"}, 1: {1: "c"}, 2: {}}),
    "snapshot": TakeSnapshot("5-0", last=True),
    "upload": UploadSnapshot("5-0"),
    "load-table": LoadTable("planes", 6, b"\x00\xff"),
    "tables": NoArguments(),
    "clean-up": CleanUp("5-0", MARKERS),
    "publish": Publish(9, (OutboxObject("a/outbox/1-5-0-2-0", 2, 7, "f" * 64, {SSP: OutputPart(1, 3)}),), 8),
    "follow": Follow("5-0", MARKERS),
    "wind-down": WindDown(),
    "close": NoArguments(),
    "beat": NoArguments(),
    "renew-port": RenewPort("PEM"),
}


@dataclass(frozen=True, slots=True)
class Count(Request):
    """Asks a container to count."""

    up_to: int


@dataclass(frozen=True, slots=True)
class Counted:
    """The progress of a call."""

    by: str
    number: int


FAILURES: list[BaseException] = []
"""The error that the call raises next, if any."""


def _count(container: Container, identity: Identity, request: Count) -> Iterator[Counted]:
    container.check_incarnation(identity)
    if FAILURES:
        raise FAILURES.pop()
    if request.up_to < 0:
        raise NotFoundError(f"there is no way to {request.up_to}")
    for number in range(request.up_to):
        yield Counted(container.container, number)


COUNT = Call("count", Count, Counted)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ContainerClient]:
    """A client of a container in this process, which knows one call more."""
    monkeypatch.setattr("penstock.container.server.calls", lambda: {**calls(), COUNT.name: COUNT})
    monkeypatch.setitem(HANDLERS, COUNT.name, _count)
    uri = f"grpc+unix://{tmp_path}/s"
    with ContainerServer(uri, Container("c1", "me"), TokenCheck(SECRET, "me")):
        pid = os.getpid()
        client = ContainerClient(
            ContainerAddress("c1", "me", machine_id(), pid, pid, uri, uri, "no log", (), "driver"), SECRET
        )
        yield client
        client.disconnect()


def test_a_new_call_is_a_request_a_line_and_a_handler(client: ContainerClient) -> None:
    seen: list[Counted] = []
    assert client.ask(COUNT, 1, Count(3), 10, seen.append) == Counted("c1", 2)
    assert seen == [Counted("c1", n) for n in range(3)]


def test_a_handlers_error_keeps_its_kind(client: ContainerClient) -> None:
    with pytest.raises(NotFoundError, match=r"there is no way to -1  \(in container c1"):
        client.ask(COUNT, 1, Count(-1), 10)


def test_a_host_with_broken_wings_answers_the_kernel(client: ContainerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its heartbeats would break off otherwise, and the run would take it for lost instead of saying what is wrong."""

    def broken() -> Any:
        raise ConfigError("a distribution is broken")

    monkeypatch.setattr("penstock.container.server.calls", broken)
    assert next(client.stream(BEAT, 1, NoArguments(), 10)).container == "c1"


TEXTS = {
    "short": "no",
    "long": "x" * 100_000,
    "another script": "дом " * 20_000,
    "with what only gRPC escapes": "% \r\n\x00\x7f\ud800 " * 5_000,
    "with a detail": "ERROR: duplicate key. Detail: Key (id)=(1) already exists.",
    "with another kind": "CorruptError: NotFoundError: no",
}


@pytest.fixture
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Reports of tests cannot carry lone surrogates, so nothing that has one is logged."""
    caplog.set_level(logging.CRITICAL, "penstock.container")


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.parametrize("kind", [NotFoundError, SystemAwayError, PenstockError])
def test_an_error_arrives_as_it_is_however_long(client: ContainerClient, text: str, kind: type[PenstockError]) -> None:
    FAILURES.append(kind(text))
    with pytest.raises(kind) as caught:
        client.ask(COUNT, 1, Count(1), 10)
    assert type(caught.value) is kind
    shown = text.encode(errors="backslashreplace").decode()
    assert str(caught.value) == f"{shown}  (in container c1 (process {os.getpid()}))"


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_what_nobody_foresaw_arrives_with_its_type(client: ContainerClient, text: str) -> None:
    FAILURES.append(ZeroDivisionError(text))
    with pytest.raises(PenstockError) as caught:
        client.ask(COUNT, 1, Count(1), 10)
    shown = text.encode(errors="backslashreplace").decode()
    assert str(caught.value).startswith(f"`count` failed in container c1 (process {os.getpid()}): ZeroDivisionError: ")
    assert f"ZeroDivisionError: {shown}. Its log: no log" in str(caught.value)


def test_of_an_endless_error_the_beginning_and_the_end_arrive(client: ContainerClient) -> None:
    FAILURES.append(NotFoundError(f"begin{'x' * 50_000_000}end"))
    with pytest.raises(
        NotFoundError, match=r"^beginx+ \.\.\. \(49,\d+,\d+ characters left out\) \.\.\. x+end  \(in "
    ) as caught:
        client.ask(COUNT, 1, Count(1), 10)
    assert len(str(caught.value)) < LONGEST_ERROR + 100


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.parametrize("kind", [ContainerLostError, ZeroDivisionError])
def test_the_error_of_attempts_arrives_as_it_is(
    client: ContainerClient, monkeypatch: pytest.MonkeyPatch, text: str, kind: type[Exception]
) -> None:
    def refuse(*_: object) -> None:
        raise kind(text)

    monkeypatch.setattr(Container, "epoch", refuse)
    call = AttemptCall(Identity("me", 1), BATCH, 1, [0])
    with pytest.raises(ContainerLostError) as caught:
        list(exchange(client.address, SECRET, call, iter(()), lambda batch: (batch, batch.slice(0, 0))))
    shown = text.encode(errors="backslashreplace").decode()
    named = "" if kind is ContainerLostError else "ZeroDivisionError: "
    assert str(caught.value) == (
        f"container c1 (process {os.getpid()}) did not finish stage 1 of batch 7 for tasks [0]: {named}{shown}. "
        "Its log: no log"
    )


def test_a_log_that_takes_no_lines_is_told_once(client: ContainerClient, caplog: pytest.LogCaptureFixture) -> None:
    beat = Beat("c1", "me", 0, 0, 0, lines_dropped="3 lines could not be written and were dropped: no room")
    for each in (replace(beat, lines_dropped=""), beat, beat):
        client.note_lines(each)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "penstock.wire.client"]
    assert line == (
        "container c1 goes on without a part of its log: 3 lines could not be written and were dropped: no room. "
        "The log: no log"
    )


def test_a_call_without_an_answer_is_a_lost_container(client: ContainerClient) -> None:
    with pytest.raises(ContainerLostError, match="ended too soon"):
        client.ask(COUNT, 1, Count(0), 10)


def test_a_call_that_the_container_does_not_know(client: ContainerClient) -> None:
    with pytest.raises(PenstockError, match="a container has no action `other`"):
        client.ask(Call("other", Count, Counted), 1, Count(1), 10)


def test_beats_end_when_the_container_is_closed(client: ContainerClient) -> None:
    """No thread is left in Arrow when the program ends."""
    ended: list[ContainerClient] = []
    client.listen(ended.append)
    wait_until(lambda: client.last_beat is not None, "a beat")
    client.ask(CLOSE, 1, NoArguments(), CLOSE_SECONDS)
    client.await_end(DEADLINE_S)
    assert (client.lost, ended) == ("its heartbeats ended", [client])
    assert not [thread for thread in threading.enumerate() if thread.name == "beats-c1"]


def test_every_call_is_in_the_table_under_its_name_and_has_a_handler() -> None:
    assert CALLS.keys() == HANDLERS.keys()
    assert calls().keys() == REQUESTS.keys()
    assert all(call.name == name and type(REQUESTS[name]) is call.request for name, call in calls().items())


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_a_request_arrives_as_it_was_made(name: str) -> None:
    call = calls()[name]
    for request in (REQUESTS[name], REQUESTS[name].for_tasks([0, 2])):
        assert call.parse(call.encode(Identity("me", 3), request)) == (Identity("me", 3), request)


def test_what_waits_in_the_stores_comes_back_as_it_was_found() -> None:
    found = OpenProgress(5, ("a note",), {0: {}, 12: {"w": (-5, None), "t": (END_OF_TIME - 1, 1_700_000_000_000)}})
    assert OPEN.decode(dump(found)) == found


def test_each_container_gets_what_concerns_its_tasks() -> None:
    assert REQUESTS["end"].for_tasks([2, 1]) == EndBatch(BATCH, {2: {}, 1: {1: "c"}})
    assert REQUESTS["clean-up"].for_tasks([1]) == CleanUp("5-0", {"1": {"blob": {"totals": "m1"}}})
    markers = {"0": {"blob": {"totals": "m0"}}, "1": {"blob": {"totals": "m1"}}, "4": {}}
    own = OpenEpoch(b"\x00\xff", 6, "5-0", markers, ("totals",), (1, 4), (0,))
    assert REQUESTS["open"].for_container([1, 4], [0]) == own
    assert REQUESTS["follow"].for_container([4], [1]) == Follow("5-0", {"1": {"blob": {"totals": "m1"}}})
    assert REQUESTS["snapshot"].for_tasks([1]) is REQUESTS["snapshot"]


@pytest.mark.attack
@pytest.mark.parametrize("name", sorted(REQUESTS.keys() - {"open"}))
def test_a_call_for_another_process_is_refused(name: str) -> None:
    call = calls()[name]
    with pytest.raises(ContainerLostError, match="meant for incarnation another, this process is me"):
        next(serve(call, Container("c1", "me"), call.encode(Identity("another", 1), REQUESTS[name])))


@pytest.mark.attack
@pytest.mark.parametrize("name", sorted(REQUESTS.keys() - {"open", "close", "beat", "renew-port"}))
def test_a_call_of_an_epoch_is_refused_outside_of_it(name: str) -> None:
    call = calls()[name]
    with pytest.raises(ContainerLostError, match="the call is of epoch 1, this container is in -1"):
        next(serve(call, Container("c1", "me"), call.encode(Identity("me", 1), REQUESTS[name])))


@pytest.mark.attack
@pytest.mark.parametrize("body", [b"", b"{", b"\x92", b"\xc1", b"\x80"])
@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_a_malformed_call_is_refused(name: str, body: bytes) -> None:
    with pytest.raises(CorruptError, match="a message between driver and container is damaged"):
        next(serve(calls()[name], Container("c1", "me"), body))
