"""Messages that the application's code changes in place, or hands over where nothing can take them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.application.application import Application
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


CALLS = ("process", "on_timer", "on_end", "on_drain", "window")


def emitting(call: str, headers: Any = None) -> type[ps.StreamTask]:
    """A task that emits in the one call, and in no other."""

    class Emits(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            self.context = context

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            self.context.schedule("k", envelope.timestamp + 1)
            self._in("process", collector)

        def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
            self._in("on_timer", collector)

        def on_end(self, collector: Any, coordinator: Any) -> None:
            self._in("on_end", collector)

        def on_drain(self, collector: Any, coordinator: Any) -> None:
            self._in("on_drain", collector)

        def window(self, collector: Any, coordinator: Any) -> None:
            self._in("window", collector)

        def _in(self, name: str, collector: ps.MessageCollector) -> None:
            if name == call:
                collector.emit(key="k", value=1, headers=headers)

    return Emits


def as_task(task: Any) -> Application:
    app = ps.TaskApplication("em", task, timers=ps.String())
    app.input("m.in")
    return app


def as_last_operator(task: Any) -> Application:
    app = ps.StreamApplication("em")
    app.input("m.in").process(task, timers=ps.String(), id="task")
    return app


def live_through(runner: TestRunner, call: str) -> None:
    runner.run().advance_time(10)
    if call == "on_end":
        runner.end_inputs()
    runner.drain()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("make", [as_task, as_last_operator])
def test_emit_is_refused_where_no_operator_follows(make: Callable[[Any], Application], call: str) -> None:
    app = make(emitting(call))
    app.output("m.out")
    runner = TestRunner(app, partitions=1, config={"task.window.ms": "1"}).input("m.in", [1])
    with pytest.raises(ps.UserCodeError, match=r"operator `task` emits a message, .*collector\.send") as caught:
        live_through(runner, call)
    assert "Declared outputs: `m.out`" in str(caught.value)


def test_emit_with_headers_is_refused_as_well() -> None:
    with pytest.raises(ps.UserCodeError, match="no operator follows it"):
        TestRunner(as_task(emitting("process", {"a": "b"})), partitions=1).input("m.in", [1]).run()


def test_a_function_of_a_sink_is_told_of_send_alone() -> None:
    app = ps.StreamApplication("em")
    app.input("m.in").sink(lambda envelope, collector, coordinator: collector.emit(value=1), id="s")
    with pytest.raises(ps.UserCodeError, match=r"operator `s` emits a message") as caught:
        TestRunner(app, partitions=1).input("m.in", [1]).run()
    assert "collector.send(output, key=..., value=...). " in str(caught.value)


def test_a_batch_of_columns_is_refused() -> None:
    class Passes(ps.BatchProcessor):
        def process(self, batch: ps.MessageBatch, collector: ps.BatchCollector) -> None:
            collector.emit(batch.keys, batch.values)

    app = ps.StreamApplication("em")
    app.input("m.in", value=ps.Columns(pa.schema({"x": pa.int64()}))).process_batch(Passes, id="columns")
    with pytest.raises(ps.UserCodeError, match=r"operator `columns` emits messages, .*send_to"):
        TestRunner(app, partitions=1).input("m.in", [("k", {"x": 1})]).run()


def test_a_refused_message_goes_to_the_dead_letters() -> None:
    runner = TestRunner(as_task(emitting("process")), partitions=1, dead_letter="m.dead").input("m.in", [1]).run()
    assert ["no operator follows it" in json.loads(letter.value)["reason"] for letter in runner.output("m.dead")] == [
        True
    ]


def test_a_start_names_the_operators_whose_results_nothing_takes(caplog: pytest.LogCaptureFixture) -> None:
    app = ps.StreamApplication("em")
    app.input("m.in").map(lambda value: value, id="followed").filter(bool, id="last")
    app.input("m.unread", id="unread")
    app.input("m.kept").send_to(app.output("m.out"))
    TestRunner(app, partitions=1).run()
    (note,) = [record.message for record in caplog.records if "follows" in record.message]
    assert note.startswith("no operator follows `last` and `unread`: the results are dropped.")


@pytest.mark.parametrize("last", ["reduce", "deduplicate"])
def test_operators_that_keep_their_results_need_no_follower(last: str) -> None:
    app = ps.StreamApplication("em")
    stream = app.input("m.in")
    if last == "reduce":
        stream.reduce(max, id="last")
    else:
        stream.deduplicate("1h", id="last")
    assert TestRunner(app, partitions=1).input("m.in", [("a", 1), ("a", 2)]).run().store("last")
