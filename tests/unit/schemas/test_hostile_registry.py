"""From the side of somebody who may write to a schema registry, or answers in its place."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import pytest

import penstock as ps
from penstock.errors import ConfigError, NotFoundError, SystemAwayError
from penstock.schemas import client
from penstock.schemas.client import open_registry, plain_credentials
from penstock.schemas.registry import Registry
from penstock.testing import TestRunner
from tests.support.faults.damaged_bytes import memory_budget

pytestmark = pytest.mark.attack

QUICK = {"max.retries": "0", "timeout": "5"}
TOKEN = {
    "bearer.auth.credentials.source": "STATIC_TOKEN",
    "bearer.auth.token": "t",
    "bearer.auth.logical.cluster": "c",
}
Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    answer: Answer
    paths: list[str]
    port: int
    ended: Event

    def do_GET(self) -> None:
        self.paths.append(self.path)
        type(self).answer(self)

    def log_message(self, *args: Any) -> None:
        """Says nothing."""

    def send(self, found: Any, status: int = 200, **headers: str) -> None:
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_response(status)
        for name, value in {"content-length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def answering(answer: Answer, **options: str) -> Iterator[tuple[Registry, type[Handler]]]:
    handler: Any = type("Answering", (Handler,), {"answer": staticmethod(answer), "paths": [], "ended": Event()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        handler.port = server.server_port
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield open_registry({"url": f"http://127.0.0.1:{server.server_port}", **QUICK, **options}), handler
        finally:
            handler.ended.set()
            server.shutdown()


def schema(*references: tuple[str, int], text: str = '"string"') -> dict[str, Any]:
    return {
        "subject": "s",
        "version": 1,
        "id": 1,
        "schema": text,
        "references": [{"name": name, "subject": name, "version": version} for name, version in references],
    }


def number_in(path: str) -> int:
    return int(path.split("/subjects/s", 1)[1].split("/")[0])


REFERENCES: dict[str, tuple[Callable[[str], Any], str]] = {
    "cycle": (lambda path: schema(("s0", 1)), "schema 1 of subject `s0` refers to itself"),
    "chain": (
        lambda path: schema((f"s{number_in(path) + 1 if '/subjects' in path else 0}", 1)),
        "over more than 32 levels",
    ),
    "breadth": (
        lambda path: schema() if "/subjects" in path else schema(*((f"s{n}", 1) for n in range(9000))),
        "it refers to more than 500 schemas",
    ),
    "twice each": (
        lambda path: (
            schema(*[(f"s{number_in(path) + 1 if '/subjects' in path else 0}", 1)] * 2)
            if "s25" not in path
            else schema()
        ),
        "have more than 16,777,216 bytes together",
    ),
}


@pytest.mark.parametrize("kind", REFERENCES)
def test_endless_references_are_refused(kind: str) -> None:
    make, why = REFERENCES[kind]
    with answering(lambda handler: handler.send(make(handler.path))) as (registry, handler):
        with pytest.raises(ConfigError, match=f"asked for schema 1: .*{why}"):
            registry.schema(1)
        assert len(handler.paths) <= client._MOST + 1


def test_references_are_read_once_each() -> None:
    def answer(handler: Handler) -> None:
        last = "/subjects/s2/" in handler.path
        first = "/schemas/ids" in handler.path
        handler.send(schema() if last else schema(("s1", 1), ("s2", 1)) if first else schema(("s2", 1)))

    with answering(answer) as (registry, handler):
        found = registry.schema(1)
        assert [each.subject for each in found.references] == ["s1", "s2"]
        assert found.references[0].schema.references[0].schema is found.references[1].schema
        assert len(handler.paths) == 3


def endless(handler: Handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    with suppress(OSError):
        while not handler.ended.is_set():
            handler.wfile.write(b" " * (1 << 16))


ANSWERS: dict[str, tuple[Answer, str]] = {
    "large": (lambda handler: handler.send(b'{"schema":"' + b"x" * (9 << 20) + b'"}'), "more than 8,388,608 bytes"),
    "endless": (endless, "more than 8,388,608 bytes"),
    "compressed": (
        lambda handler: handler.send(gzip.compress(b" " * (20 << 20)), content_encoding="gzip"),
        "the answer is compressed",
    ),
    "deep": (lambda handler: handler.send(b"[" * 100_000), "recursion"),
    "another kind": (lambda handler: handler.send({**schema(), "schemaType": "XML"}), "kind 'XML'"),
    "no schema": (lambda handler: handler.send([1, 2]), ""),
    "no JSON": (lambda handler: handler.send(b"<html>"), ""),
    "a status": (lambda handler: handler.send({"message": "x" * 100_000}, 501), "xxx"),
    "a redirection": (
        lambda handler: handler.send({}, 302, location=handler.path + "/again"),
        "",
    ),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_that_is_no_schema_fails_what_asked(kind: str) -> None:
    answer, why = ANSWERS[kind]
    with answering(answer) as (registry, handler), memory_budget(64 << 20):
        with pytest.raises(ConfigError, match=f"(?s)asked for schema 1: .*{why}") as caught:
            registry.schema(1)
        assert len(str(caught.value)) < 1000
        assert len(handler.paths) == 1  # a redirection is not followed: it would take the password with it


@pytest.mark.parametrize("in_head", [False, True])
def test_a_slow_answer_is_none(monkeypatch: pytest.MonkeyPatch, in_head: bool) -> None:
    monkeypatch.setattr(client, "SLOWEST_S", -0.8 - 10)

    def slow(handler: Handler) -> None:
        handler.send_response(200)
        if not in_head:
            handler.end_headers()
            handler.wfile.flush()
        with suppress(OSError):
            while not handler.ended.wait(0.05):
                handler.wfile.write(b"a")

    with answering(slow, **{"retries.max.wait.ms": "1000"}) as (registry, _):
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(SystemAwayError, match="its answer is not complete after 0 s"):
                registry.schema(1)
            assert time.monotonic() - began < 5


def test_an_error_is_waited_for_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = [503]
    with answering(lambda handler: handler.send({"message": "no"}, statuses[0])) as (registry, _):
        for _ in range(2):
            with pytest.raises(SystemAwayError, match="does not answer a request for schema 1: no"):
                registry.schema(1)
        monkeypatch.setattr(client, "PATIENCE_S", 0)
        with pytest.raises(ConfigError, match="asked for schema 1: no"):
            registry.schema(1)
        statuses[0] = 404
        with pytest.raises(NotFoundError):
            registry.schema(1)
        monkeypatch.setattr(client, "PATIENCE_S", 60)
        statuses[0] = 500
        with pytest.raises(SystemAwayError):
            registry.schema(1)


def test_a_message_whose_schema_is_hostile_is_one_failed_message() -> None:
    make, why = REFERENCES["cycle"]
    with answering(lambda handler: handler.send(make(handler.path))) as (_, handler):
        app = ps.StreamApplication("a")
        value = ps.Avro({"type": "record", "name": "T", "fields": []}, registry=ps.SchemaRegistry())
        app.input("kafka.in", value=value).send_to(app.output("kafka.out", value=ps.Json()))
        config = {"schema.registry.url": f"http://127.0.0.1:{handler.port}"}
        runner = TestRunner(app, config=config, dead_letter="kafka.dead")
        runner.input("kafka.in", [b"\x00\x00\x00\x00\x07", b"\x00\x00\x00\x00\x00"], raw=True).run()
        assert [message.value for message in runner.output("kafka.out")] == [{}]
        (letter,) = runner.output("kafka.dead")
        assert why in letter.value.decode()


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({"url": "http://registry:8081", "basic.auth.user.info": "u:p"}, "registry:8081"),
        ({"url": "http://u:p@registry:8081"}, "registry:8081"),
        ({"url": "https://a,http://b:1", **TOKEN}, "b:1"),
        ({"url": "http://registry:8081"}, None),
        ({"url": "https://registry:8081", "basic.auth.user.info": "u:p"}, None),
        ({"url": "http://localhost:8081", "basic.auth.user.info": "u:p"}, None),
        ({"url": "http://[::1]:8081", "basic.auth.user.info": "u:p"}, None),
        ({"url": "http://127.0.0.1.evil.example", "basic.auth.user.info": "u:p"}, "127.0.0.1.evil.example"),
    ],
)
def test_a_password_without_encryption_is_warned_of(
    options: dict[str, str], address: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert plain_credentials(options) == address
    open_registry({**options, "cache.capacity": "7"})
    said = [record.getMessage() for record in caplog.records if "schema.registry.url" in record.getMessage()]
    assert len(said) == (address is not None)
    assert all(str(address) in each and "u:p" not in each for each in said)
