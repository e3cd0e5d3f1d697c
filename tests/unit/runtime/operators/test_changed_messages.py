"""The TestRunner finds operators that change a message's value in place, which others see as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps
from penstock.testing import ChangedMessageError, TestRunner


def change(value: Any) -> Any:
    value["n"] += 1
    return value


def change_deep(value: Any) -> Any:
    value["list"][0]["x"] = 2
    return {"n": 0, "list": []}


def copy(value: Any) -> Any:
    return {**value, "n": value["n"] + 1}


class Changes(ps.StreamTask):
    """Changes what it gets, then emits it."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key="k", value=change(envelope.value))


class Copies(ps.StreamTask):
    """Emits a changed copy."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key="k", value=copy(envelope.value))


def sink(function: Callable[[Any], Any]) -> Callable[[Any, Any, Any], None]:
    def call(envelope: Any, _collector: Any, _coordinator: Any) -> None:
        function(envelope.value)

    return call


CHANGING: dict[str, Callable[[ps.MessageStream[Any]], Any]] = {
    "map": lambda stream: stream.map(change, id="here"),
    "map deep inside": lambda stream: stream.map(change_deep, id="here"),
    "filter": lambda stream: stream.filter(change, id="here"),
    "flat_map": lambda stream: stream.flat_map(lambda value: (change(value) for _ in range(2)), id="here"),
    "partition_by": lambda stream: stream.partition_by(lambda value: str(change(value)), id="here"),
    "process": lambda stream: stream.process(Changes, id="here").map(copy),
    "sink": lambda stream: stream.sink(sink(change), id="here"),
}


@pytest.mark.few(14)
@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize("what", CHANGING)
@pytest.mark.parametrize("dead_letter", [None, "m.dead"])
def test_a_value_changed_in_place_is_found(what: str, branches: int, dead_letter: str | None) -> None:
    app = ps.StreamApplication("a")
    stream = app.input("m.in")
    CHANGING[what](stream)
    if branches == 2:
        stream.send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1, dead_letter=dead_letter).input("m.in", [{"n": 1, "list": [{"x": 1}]}])
    expected = ps.UserCodeError if dead_letter is None else ChangedMessageError
    with pytest.raises(expected, match="operator `here` changed the value of a message in place"):
        runner.run()


def test_values_that_are_replaced_are_no_mistake() -> None:
    app = ps.StreamApplication("a")
    stream = app.input("m.in")
    changed = stream.map(copy).filter(lambda value: value["n"]).flat_map(lambda value: [copy(value)])
    changed = changed.partition_by(lambda value: str(value["n"])).process(Copies)
    changed.send_to(app.output("m.changed"))
    changed.sink(sink(copy))
    stream.send_to(app.output("m.out"))
    runner = TestRunner(app).input("m.in", [{"n": 1, "list": [{"x": 1}]}]).run()
    assert [message.value["n"] for message in runner.output("m.changed")] == [4]
    assert [message.value["n"] for message in runner.output("m.out")] == [1]


def test_a_value_that_cannot_be_looked_into_is_let_pass() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").map(lambda value: lambda: value).map(lambda value: value()).send_to(app.output("m.out"))
    assert [message.value for message in TestRunner(app).input("m.in", [1]).run().output("m.out")] == [1]
