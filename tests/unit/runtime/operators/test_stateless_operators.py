"""map, filter, flat_map, send_to and sink: operators that keep nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock as ps
from penstock.system.partitioner import partition_of
from penstock.testing import TestRunner
from tests.support.oracles.tracebacks import frames_of_penstock


def test_each_value_is_replaced_and_key_and_timestamp_travel_along() -> None:
    app = ps.StreamApplication("a")
    out = app.output("m.out")
    app.input("m.in", key=ps.String()).map(lambda v: v * 2).map(str).send_to(out)
    runner = TestRunner(app, partitions=3).input("m.in", [("k", 1), ("k", 2)], timestamp=77).run()
    assert [(m.key, m.value, m.timestamp) for m in runner.output("m.out")] == [("k", "2", 77), ("k", "4", 77)]


def test_none_is_a_value_on_both_sides() -> None:
    app = ps.StreamApplication("a")
    out = app.output("m.out")
    app.input("m.in").map(lambda v: {None: 0, 0: None}.get(v, v)).send_to(out)
    runner = TestRunner(app, partitions=1).input("m.in", [None, 0, 1]).run()
    assert [m.value for m in runner.output("m.out")] == [0, None, 1]


def test_an_exception_names_message_and_operator() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in", key=ps.String()).map(lambda v: 1 // v, id="invert")
    runner = TestRunner(app, partitions=1).input("m.in", [("a", 1), ("b", 0), ("c", 1)])
    with pytest.raises(ps.UserCodeError) as caught:
        runner.run()
    failed = caught.value.failed
    assert (failed.stream, failed.partition, failed.offset, failed.key) == ("m.in", 0, 1, "b")
    assert (failed.operator, failed.reason) == ("invert", "ZeroDivisionError: integer division or modulo by zero")
    assert str(caught.value).startswith("Traceback (most recent call last):\n")
    assert "1 // v" in failed.traceback
    assert frames_of_penstock(failed.traceback) == []


def test_truth_decides() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").filter(lambda v: v).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", [0, 1, "", "x", [], [0], None]).run()
    assert [m.value for m in runner.output("m.out")] == [1, "x", [0]]


def test_two_filters_of_one_stream_see_the_same_messages() -> None:
    app = ps.StreamApplication("a")
    source = app.input("m.in")
    source.filter(lambda v: v % 2).send_to(app.output("m.odd"))
    source.filter(lambda v: not v % 2).send_to(app.output("m.even"))
    runner = TestRunner(app, partitions=2).input("m.in", range(10)).run()
    assert sorted(m.value for m in runner.output("m.odd")) == [1, 3, 5, 7, 9]
    assert sorted(m.value for m in runner.output("m.even")) == [0, 2, 4, 6, 8]


def test_an_exception_names_the_operator() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").filter(lambda v: v["missing"], id="only-good")
    with pytest.raises(ps.UserCodeError, match=r"KeyError: 'missing'(.|\n)*`only-good`"):
        TestRunner(app, partitions=1).input("m.in", [{}]).run()


@pytest.mark.parametrize("after", [False, True], ids=["a column", "emitted"])
def test_a_result_that_has_not_run_is_not_true(after: bool) -> None:
    async def asked() -> bool:
        return False

    class Emits(ps.StreamTask):
        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            collector.emit(key=envelope.key, value=envelope.value)

    app = ps.StreamApplication("job")
    stream: ps.MessageStream[Any] = app.input("m.in")
    (stream.process(Emits) if after else stream).filter(lambda value: value or asked(), id="keep")
    with pytest.raises(ps.UserCodeError) as raised:
        TestRunner(app, partitions=1).input("m.in", [5, 0]).run()
    assert (raised.value.failed.operator, raised.value.failed.offset) == ("keep", 1)
    assert "the function of the filter returned a coroutine" in raised.value.failed.reason


def application() -> ps.StreamApplication:
    app = ps.StreamApplication("a")

    def count(value: int) -> Iterator[int]:
        yield from range(abs(value))
        if value < 0:
            raise ValueError("half-way")

    app.input("m.in").flat_map(count, id="count").send_to(app.output("m.out"))
    return app


def test_none_one_or_many() -> None:
    runner = TestRunner(application(), partitions=1).input("m.in", [3, 0, 1]).run()
    assert [m.value for m in runner.output("m.out")] == [0, 1, 2, 0]


def test_any_iterable_will_do() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").flat_map(lambda v: v and list(v.items())).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", [{"a": 1, "b": 2}, []]).run()
    assert [m.value for m in runner.output("m.out")] == [["a", 1], ["b", 2]]


def test_many_more_than_a_packet_holds() -> None:
    runner = TestRunner(application(), partitions=2).input("m.in", [20_000, 5, 20_000]).run()
    values = [m.value for m in runner.output("m.out")]
    assert sorted(values) == sorted([*range(20_000), *range(5), *range(20_000)])


def test_a_generator_that_fails_half_way() -> None:
    with pytest.raises(ps.UserCodeError) as caught:
        TestRunner(application(), partitions=1).input("m.in", [2, -2]).run()
    assert (caught.value.failed.operator, caught.value.failed.offset) == ("count", 1)


def test_what_is_not_iterable() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").flat_map(lambda v: v, id="bad")
    with pytest.raises(ps.UserCodeError, match="'int' object is not iterable"):
        TestRunner(app, partitions=1).input("m.in", [1]).run()


def test_a_dead_letter_takes_back_what_was_emitted() -> None:
    runner = TestRunner(application(), partitions=1, dead_letter="m.dead").input("m.in", [2, -2, 1]).run()
    assert [m.value for m in runner.output("m.out")] == [0, 1, 0]
    assert runner.dead_letters == 1


def test_placed_by_key_and_by_task_without_one() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in", key=ps.String()).send_to(app.output("m.out"))
    keys = [f"k{n}" for n in range(40)]
    runner = TestRunner(app, partitions=4).input("m.in", [(key, 1) for key in keys]).run()
    assert {m.key: m.partition for m in runner.output("m.out")} == {k: partition_of(k.encode(), 4) for k in keys}
    runner = TestRunner(app, partitions=4).input("m.in", range(4)).run()
    assert [(m.key, m.value, m.partition) for m in runner.output("m.out")] == [(None, n, n) for n in range(4)]


def test_the_stream_goes_on_and_two_outputs_get_the_same() -> None:
    app = ps.StreamApplication("a")
    first, second = app.output("m.first"), app.output("m.second", value=ps.Integer())
    app.input("m.in").send_to(first).map(lambda v: v + 1).send_to(second)
    runner = TestRunner(app, partitions=1).input("m.in", [1, 2]).run()
    assert [m.value for m in runner.output("m.first")] == [1, 2]
    assert [m.value for m in runner.output("m.second")] == [2, 3]


def test_a_value_the_output_cannot_take() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").send_to(app.output("m.out", value=ps.Integer()), id="write")
    with pytest.raises(ps.UserCodeError) as caught:
        TestRunner(app, partitions=1).input("m.in", [1, "x"]).run()
    assert (caught.value.failed.operator, caught.value.failed.offset) == ("write", 1)


def test_an_output_of_nowhere() -> None:
    app = ps.StreamApplication("a")
    with pytest.raises(ps.ConfigError, match=r"output `m.out` is not declared: use `app.output"):
        app.input("m.in").send_to(ps.SystemStream("m", "out"))


def test_it_gets_every_envelope_and_may_send() -> None:
    app = ps.StreamApplication("a")
    app.output("m.out")
    seen = []

    def sink(envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, _: ps.TaskCoordinator) -> None:
        seen.append((str(envelope.ssp), envelope.offset, envelope.value))
        collector.send("out", key="k", value=envelope.value + 1)

    app.input("m.in").sink(sink)
    runner = TestRunner(app, partitions=2).input("m.in", [1, 2, 3]).run()
    assert sorted(seen) == [("m.in.0", 0, 1), ("m.in.0", 1, 3), ("m.in.1", 0, 2)]
    assert sorted(m.value for m in runner.output("m.out")) == [2, 3, 4]


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_value_that_does_not_serialise_is_the_users_error(shuffled: bool) -> None:
    app = ps.StreamApplication("a")
    app.output("m.out")
    stream = app.input("m.in").partition_by(str) if shuffled else app.input("m.in")
    stream.sink(lambda _, collector, __: collector.send("out", value=object()), id="write")
    with pytest.raises(ps.UserCodeError) as caught:
        TestRunner(app, partitions=1).input("m.in", [1]).run()
    reason = caught.value.failed.reason
    assert reason.startswith("SerdeError: output `m.out`: the value <object object at ")
    assert "cannot be written by ps.Json(): TypeError: Type is not JSON serializable: object. ps.Json() takes" in reason
    assert caught.value.failed.operator == "write"


def test_an_exception() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").sink(lambda e, *_: e.value.missing, id="write")
    with pytest.raises(ps.UserCodeError, match=r"AttributeError(.|\n)*`write`") as caught:
        TestRunner(app, partitions=1).input("m.in", [1]).run()
    assert frames_of_penstock(caught.value.failed.traceback) == []
