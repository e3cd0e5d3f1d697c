"""Serdes with a schema registry that others wrote."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastavro
import pytest

import penstock as ps
from penstock.base.secrets import RootKeys
from penstock.config import load_config
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.schemas.client import open_registry
from penstock.schemas.registry import Reference, Schema
from penstock.schemas.serde import Connection, KnownSchemas
from penstock.start.part import connect
from penstock.testing import TestRunner
from tests.support.jobs.home import wait_until
from tests.support.processes.apicurio import apicurio
from tests.support.tools.fixtures import fixture_of
from tests.unit.schemas.test_avro import MORE, TRIP, record
from tests.unit.schemas.test_protobuf_and_json_schema import CLASSES
from tests.unit.schemas.test_protobuf_and_json_schema import TRIP as JSON_TRIP

pytestmark = pytest.mark.slow
REGISTRY = ps.SchemaRegistry()


url = fixture_of(apicurio, using=(), scope="module")


def schema(given: Any) -> Schema:
    return Schema("AVRO", json.dumps(given))


def passing(topic: str, value: ps.Serde[Any]) -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    trips = app.input(f"kafka.{topic}", value=value).partition_by(lambda _: "key").filter(lambda _: True)
    trips.send_to(app.output(f"kafka.{topic}-out", value=value))
    return app


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ps.Avro(TRIP, registry=REGISTRY), {"tail": "N1", "miles": 5}),
        # Made by the test: what it imports takes seconds, which every process would need that collects this test.
        (lambda: ps.JsonSchema(JSON_TRIP, registry=REGISTRY), {"tail": "N1", "miles": 5}),
        (
            lambda: ps.Protobuf(CLASSES["air.Trip"], registry=REGISTRY),
            CLASSES["air.Trip"](plane=CLASSES["air.Plane"](tail="N1"), miles=5),
        ),
    ],
    ids=["avro", "json-schema", "protobuf"],
)
def test_outputs_are_registered_messages_carry_ids(url: str, make: Callable[[], ps.Serde[Any]], message: Any) -> None:
    serde = make()
    topic = type(serde).__name__.lower()
    runner = TestRunner(passing(topic, serde), config={"schema.registry.url": url})
    (found,) = runner.input(f"kafka.{topic}", [message]).run().output(f"kafka.{topic}-out")
    assert found.value == message
    registry = open_registry({"url": url})
    own = registry.latest(f"{topic}-out-value")
    assert own is not None
    assert own.kind == serde.kind  # type: ignore[attr-defined]


def test_a_schema_that_the_registry_refuses_ends_the_start_with_subject_and_versions(url: str) -> None:
    registry = open_registry({"url": url})
    registry.register("refused-out-value", schema(TRIP))
    registry._client.set_compatibility("refused-out-value", "BACKWARD")  # type: ignore[attr-defined]
    other = ps.Avro(record("Trip", tail="string", miles="int", carrier="string"), registry=REGISTRY)
    with pytest.raises(ps.IncompatibleError, match=r"subject `refused-out-value` \(its versions: 1\): .*carrier"):
        TestRunner(passing("refused", other), config={"schema.registry.url": url})


def test_without_the_right_to_register_the_schema_has_to_be_there(url: str) -> None:
    serde = ps.Avro(TRIP, registry=ps.SchemaRegistry(register=False))
    with pytest.raises(ps.NotFoundError, match="does not have this schema of subject `unregistered-out-value`"):
        TestRunner(passing("unregistered", serde), config={"schema.registry.url": url})
    open_registry({"url": url}).register("unregistered-out-value", schema(TRIP))
    TestRunner(passing("unregistered", serde), config={"schema.registry.url": url}).run()


def test_a_shadow_adds_no_schema(url: str) -> None:
    keys = {"job.name": "held", "schema.registry.url": url, "systems.kafka.samza.factory": "memory"}
    graph = passing("held", ps.Avro(TRIP, registry=REGISTRY)).graph()
    with pytest.raises(ps.NotFoundError, match="does not have this schema of subject `held-out-value`"):
        connect(graph, load_config(overrides={**keys, "job.shadow.enabled": True}))
    connect(graph, load_config(overrides=keys))
    connect(graph, load_config(overrides={**keys, "job.shadow.enabled": True}))


@pytest.mark.parametrize(
    ("subjects", "subject"), [("topic", "by-out-value"), ("record", "Trip"), ("topic-record", "by-out-Trip")]
)
def test_subjects_are_named_by_topic_or_record(url: str, subjects: Any, subject: str) -> None:
    serde = ps.Avro(TRIP, registry=ps.SchemaRegistry(subjects=subjects))
    TestRunner(passing("by", serde), config={"schema.registry.url": url}).run()
    assert open_registry({"url": url}).latest(subject) == Schema("AVRO", json.dumps(TRIP, separators=(",", ":")))


def test_a_schema_may_refer_to_others(url: str) -> None:
    """Several kinds of events in one topic: a union of schemas that have subjects of their own."""
    registry = open_registry({"url": url})
    place = {"type": "record", "name": "air.Place", "fields": [{"name": "city", "type": "string"}]}
    trip = record("air.Trip", origin="air.Place", stops={"type": "array", "items": "air.Place"})
    delay = record("air.Delay", minutes="int", at=["null", "air.Place"])
    registry.register("place", schema(place))
    refers = (Reference("air.Place", "place", 1, schema(place)),)
    events = Schema(
        "AVRO",
        json.dumps(["air.Trip", "air.Delay"]),
        tuple(
            Reference(name, subject, 1, Schema("AVRO", json.dumps(given), refers))
            for name, subject, given in (("air.Trip", "trip", trip), ("air.Delay", "delay", delay))
        ),
    )
    for each in events.references:
        registry.register(each.subject, each.schema)
    head = b"\0" + registry.register("union-value", events).to_bytes(4, "big")
    app = ps.StreamApplication("a")
    app.input("kafka.union", value=ps.Avro(registry=REGISTRY)).send_to(app.output("kafka.union-out"))
    messages = [{"origin": {"city": "Rome"}, "stops": [{"city": "Oslo"}]}, {"minutes": 5, "at": {"city": "Rome"}}]
    in_one = fastavro.parse_schema([place, trip, delay])
    data = []
    for message in messages:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, in_one, message)
        number, body = stream.getvalue()[:1], stream.getvalue()[1:]
        data.append(head + bytes([number[0] - 2]) + body)  # a union of two, without the place
    runner = TestRunner(app, config={"schema.registry.url": url}).input("kafka.union", data, raw=True).run()
    assert [found.value for found in runner.output("kafka.union-out")] == messages


def test_what_was_met_once_needs_no_registry(url: str, tmp_path: Path) -> None:
    registry = open_registry({"url": url})
    number = registry.register("kept-value", schema(MORE))
    connection = Connection.of({"url": url}, str(tmp_path), RootKeys(), JobPaths("job", "1"))
    known = KnownSchemas(connection, open_store(str(tmp_path)))
    assert known.schema(number) == schema(MORE)
    assert known.registered("kept-value", schema(MORE), register=True) == number
    later = KnownSchemas(connection, open_store(str(tmp_path)))
    later._ask = lambda: pytest.fail("the registry was asked")  # type: ignore[method-assign]
    assert later.schema(number) == schema(MORE)
    assert later.registered("kept-value", schema(MORE), register=True) == number


def test_a_job_waits_for_its_registry_and_buries_no_message(url: str, caplog: pytest.LogCaptureFixture) -> None:
    number = open_registry({"url": url}).register("away-value", schema(TRIP))
    place = urlsplit(url)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = {"schema.registry.url": f"http://127.0.0.1:{port}{place.path}", "schema.registry.max.retries": "0"}
    app = ps.StreamApplication("a")
    app.input("kafka.away", value=ps.Avro(TRIP, registry=REGISTRY)).map(len).send_to(app.output("kafka.out"))
    runner = TestRunner(app, config=config, dead_letter="kafka.dead")
    data = b"\x00" + number.to_bytes(4, "big") + ps.Avro(TRIP).to_bytes({"tail": "N1", "miles": 5})
    writer = runner._home.streams.systems["kafka"].writer(None)
    writer.append(ps.SystemStreamPartition("kafka", "away", 0), [(0, None, data)])
    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(runner.run)
        wait_until(lambda: f"request for schema {number}" in caplog.text, "the job to wait for its registry")
        assert not ran.done()
        with forwarded(port, place.port or 0):
            ran.result(60)
    assert [message.value for message in runner.output("kafka.out")] == [2]
    assert runner.output("kafka.dead") == []


@contextlib.contextmanager
def forwarded(port: int, target: int) -> Iterator[None]:
    """Passes on what comes to a port."""

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", target)) as there:
                back = threading.Thread(target=copy, args=(there, self.request))
                back.start()
                copy(self.request, there)
                there.shutdown(socket.SHUT_WR)
                back.join()

    socketserver.ThreadingTCPServer.allow_reuse_address = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", port), Forward) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def copy(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
