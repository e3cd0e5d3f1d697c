"""Whatever the application raises is a failure of one message: reported with its place, or a dead letter."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import orjson
import pytest

import penstock as ps
from penstock.api.serdes import Serde
from penstock.state.engines.memory import MemoryEngine
from penstock.testing import TestRunner


class Panic(BaseException):
    """As an extension's panic is."""


class MuteError(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class MuteBase(BaseException):
    """Has no text either."""

    def __str__(self) -> str:
        raise Panic

    __repr__ = __str__


RAISED = [
    asyncio.CancelledError,
    KeyboardInterrupt,
    GeneratorExit,
    SystemExit,
    Panic,
    MuteError,
    MuteBase,
    StopIteration,
]


class Careful(ps.StreamTask):
    """Puts, then raises; `except Exception` does not hold it."""

    def __init__(self, kind: type[BaseException]) -> None:
        self._kind = kind

    def init(self, context: Any) -> None:
        self.store = context.store("s")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.store.put("seen", envelope.value)
        collector.emit(key="k", value=envelope.value)
        fail(self._kind, envelope.value)


class Raising(Serde[Any]):
    """Cannot write 1."""

    def __init__(self, kind: type[BaseException]) -> None:
        self._kind = kind

    def to_bytes(self, obj: Any) -> bytes:
        fail(self._kind, obj)
        return b"%d" % obj

    def from_bytes(self, data: bytes) -> Any:
        return int(data)


class Puts(ps.StreamTask):
    """Puts what does not serialise."""

    def init(self, context: Any) -> None:
        self.store = context.store("s")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.store.put("before", 0)
        self.store.put("seen", envelope.value)
        collector.emit(key="k", value=envelope.value)


def fail(kind: type[BaseException], value: Any) -> Any:
    if value == 1:
        raise kind
    return value


def app_of(where: str, kind: type[BaseException]) -> ps.StreamApplication:
    app = ps.StreamApplication("a")
    if where in {"process", "put"}:
        app.store("s", value=Raising(kind) if where == "put" else ps.Json())
    out = app.output("m.out", value=Raising(kind) if where == "output" else ps.Json())
    stream = app.input("m.in")
    match where:
        case "map":
            stream = stream.map(lambda v: fail(kind, v), id="here")
        case "filter":
            stream = stream.filter(lambda v: fail(kind, v) != 1, id="here")
        case "flat_map":
            stream = stream.flat_map(lambda v: (fail(kind, each) for each in [v]), id="here")
        case "partition_by":
            stream = stream.partition_by(lambda v: str(fail(kind, v)), id="here")
        case "output":
            stream = stream.map(lambda v: v)
        case "process":
            stream = stream.partition_by(lambda _: "k").process(lambda: Careful(kind), stores=["s"], id="here")
        case "put":
            stream = stream.partition_by(lambda _: "k").process(Puts, stores=["s"], id="here")
    stream.send_to(out, id="here" if where == "output" else None)
    return app


def said_of(where: str, kind: type[BaseException]) -> str:
    """The beginning of the reason. An error of a serde is part of the text about its store or output."""
    if issubclass(kind, Exception) and where in {"put", "output"}:
        place = "store `s`: the value 1 of key 'seen'" if where == "put" else "output `m.out`: the value 1"
        return f"SerdeError: {place} cannot be written by Raising: {kind.__name__}"
    return kind.__name__


PLACES = ["map", "filter", "flat_map", "partition_by", "output", "process", "put"]


@pytest.mark.few(18)
@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("where", PLACES)
def test_it_becomes_a_dead_letter(where: str, kind: type[BaseException]) -> None:
    runner = TestRunner(app_of(where, kind), partitions=1, dead_letter="m.dead").input("m.in", [0, 1, 2]).run()
    assert [message.value for message in runner.output("m.out")] == [0, 2]
    (letter,) = runner.output("m.dead")
    said = orjson.loads(letter.value)
    assert (said["stream"], said["partition"], said["offset"], said["operator"]) == ("m.in", 0, 1, "here")
    if where != "flat_map":  # Python makes a RuntimeError of a generator's StopIteration
        assert said["reason"].startswith(said_of(where, kind))
    if where in {"process", "put"}:
        assert runner.store("s")["seen"] == 2


@pytest.mark.few(18)
@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("where", PLACES)
def test_it_ends_the_run_and_names_the_message(where: str, kind: type[BaseException]) -> None:
    runner = TestRunner(app_of(where, kind), partitions=1).input("m.in", [0, 1, 2])
    with pytest.raises(ps.UserCodeError) as caught:
        runner.run()
    failed = caught.value.failed
    assert (failed.stream, failed.partition, failed.offset, failed.operator) == ("m.in", 0, 1, "here")
    assert runner.output("m.out") == []
    if where in {"process", "put"}:
        assert runner.store("s") == {}


class Starting(ps.StreamTask):
    """Fails where it is told to."""

    def __init__(self, kind: type[BaseException], where: str) -> None:
        self._kind, self._where = kind, where
        if where == "constructor":
            raise kind

    def init(self, context: Any) -> None:
        if self._where == "init":
            raise self._kind

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(value=envelope.value)

    def close(self) -> None:
        raise self._kind


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("where", ["constructor", "init"])
def test_it_may_happen_before_the_first_message(where: str, kind: type[BaseException]) -> None:
    app = ps.StreamApplication("a")
    stream = app.input("m.in").partition_by(lambda _: "k").process(lambda: Starting(kind, "nowhere"), id="other")
    stream.process(lambda: Starting(kind, where), id="here")
    with pytest.raises(ps.UserCodeError) as caught:
        TestRunner(app, partitions=1).input("m.in", [1]).run()
    assert caught.value.failed.operator == "here"
    assert caught.value.failed.reason.startswith(said_of(where, kind))


def test_ctrl_c_is_no_failure_of_the_application() -> None:
    def interrupted(value: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return value

    app = ps.StreamApplication("a")
    app.input("m.in").map(interrupted).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1, dead_letter="m.dead").input("m.in", [1])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in background commands
    try:
        with pytest.raises(KeyboardInterrupt):
            runner.run()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert runner.output("m.dead") == []


# Engines.


class Broken(MemoryEngine):
    """An engine that fails as RocksDB does, once it is told to."""

    failing = False

    def get(self, key: bytes) -> bytes | None:
        self._fail()
        return super().get(key)

    def scan(self, start: bytes | None, end: bytes | None) -> Any:
        self._fail()
        return super().scan(start, end)

    def _fail(self) -> None:
        if self.failing:
            raise Exception("Corruption: block checksum mismatch")  # noqa: TRY002 - what the binding raises


def calls(store: Any, n: int) -> None:
    match n % 3:
        case 0:
            store.get(f"k{n}")
        case 1:
            list(store.all())
        case _:
            store.snapshot("a", "z")


class Trusting(ps.StreamTask):
    """Reads, and passes the failure on."""

    def init(self, context: Any) -> None:
        self.store = context.store("s")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        calls(self.store, envelope.value)


class Wrapping(Trusting):
    """Makes an error of its own of any other."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        try:
            calls(self.store, envelope.value)
        except BaseException as error:
            raise ValueError("no rate for this currency") from error


class Swallowing(Trusting):
    """Goes on as if the key were absent."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        try:
            calls(self.store, envelope.value)
        except BaseException:
            self.store.put("absent", 1)


class AtTheStart(Trusting):
    """Reads in `init`."""

    def init(self, context: Any) -> None:
        context.store("s").get("k")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        """Nothing."""


@pytest.mark.parametrize("dead_letter", [None, "m.dead"])
@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("task", [Trusting, Wrapping, Swallowing, AtTheStart])
def test_an_error_of_an_engine_is_never_the_applications(
    task: type[ps.StreamTask], n: int, dead_letter: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.state.engines.open.MemoryEngine", Broken)
    app = ps.StreamApplication("a")
    app.store("s")
    app.input("m.in").partition_by(lambda _: "k").process(task, stores=["s"])
    runner = TestRunner(app, partitions=1, dead_letter=dead_letter).input("m.in", [n])
    monkeypatch.setattr(Broken, "failing", True)
    with pytest.raises(ps.PenstockError, match="store `s` cannot be read: Exception: Corruption") as caught:
        runner.run()
    assert not isinstance(caught.value, ps.UserCodeError)
    monkeypatch.setattr(Broken, "failing", False)
    assert runner.store("s") == {}
    if dead_letter:
        assert runner.output("m.dead") == []
