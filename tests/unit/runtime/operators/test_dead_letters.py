"""Failing messages: with a dead-letter stream everything of theirs is undone; without one the run ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

import penstock as ps
from penstock.api.serdes import Serde
from penstock.testing import TestRunner
from tests.support.oracles.tracebacks import frames_of_penstock


class Ledger(ps.StreamTask):
    """Writes to two stores, one value in place, deletes and sends; then fails if told so."""

    def init(self, context: ps.TaskContext) -> None:
        self.sums, self.last = context.store("sums"), context.store("last")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        key, n, fail = envelope.value
        total = self.sums.get(key) or {"n": 0, "seen": []}
        total["n"] += n
        total["seen"].append(n)
        if fail == "before put":
            raise ValueError("before put")
        self.sums.put(key, total)
        self.last.delete(key)
        self.last.put(key, n)
        collector.emit(key=key, value=n)
        collector.send("side", value=n)
        if fail == "late":
            self.last.delete(key)
            raise ValueError("late")
        if fail == "emit":
            collector.emit(key=key, value=object())


def runner_of(*, dead_letter: str | None = "m.dead") -> TestRunner:
    app = ps.StreamApplication("a")
    app.store("sums")
    app.store("last")
    app.output("m.side")
    stream = app.input("m.in").partition_by(lambda v: v[0])
    stream.process(Ledger, stores=["sums", "last"], id="ledger").send_to(app.output("m.out"))
    return TestRunner(app, partitions=3, dead_letter=dead_letter)


def oracle(messages: list[list[Any]]) -> dict[str, dict[str, Any]]:
    totals: dict[str, dict[str, Any]] = {}
    for key, n, fail in messages:
        if not fail:
            total = totals.setdefault(key, {"n": 0, "seen": []})
            total["n"] += n
            total["seen"].append(n)
    return totals


@pytest.mark.few(4)
@pytest.mark.parametrize("batch", [1, 3, None])
@pytest.mark.parametrize("fail", ["before put", "late", "emit"])
def test_nothing_of_a_failed_message_stays(fail: str, batch: int | None) -> None:
    """Hot keys, new keys, several failures in a row, before and after good ones, over several batches."""
    messages = [[f"k{n % 4}", n, fail if n % 5 in (0, 3) else ""] for n in range(60)]
    runner = runner_of().input("m.in", messages, partition=0).run(batch_messages=batch)
    good = [n for _, n, f in messages if not f]
    assert runner.store("sums") == oracle(messages)
    assert runner.store("last") == {k: v["seen"][-1] for k, v in oracle(messages).items()}
    assert sorted(m.value for m in runner.output("m.out")) == good
    assert sorted(m.value for m in runner.output("m.side")) == good
    assert runner.dead_letters == len(runner.output("m.dead")) == 60 - len(good)


def test_a_key_that_only_failed_messages_touched_is_not_there() -> None:
    runner = runner_of().input("m.in", [["a", 1, "late"], ["a", 2, "before put"]]).run()
    assert (runner.store("sums"), runner.store("last"), runner.output("m.out")) == ({}, {}, [])


def test_what_a_dead_letter_says() -> None:
    runner = runner_of().input("m.in", [["a", 1, "late"]], partition=2).run()
    (letter,) = runner.output("m.dead")
    said = orjson.loads(letter.value)
    assert said["stream"] == "m.in"
    assert (said["partition"], said["offset"], said["operator"]) == (2, 0, "ledger")
    assert said["reason"] == "ValueError: late"
    assert frames_of_penstock(said["traceback"]) == []
    assert letter.key == b"a"
    assert said["key"] == "a"
    assert orjson.loads(said["value"]) == ["a", 1, "late"]


def test_the_log_names_the_first_and_counts_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """However many fail: at most a line each minute, and one at the end for the rest."""
    runner = runner_of().input("m.in", [["a", 1, ""], ["b", 2, "late"]], partition=2).run()
    for n in range(5):
        runner.input("m.in", [["c", n, "late"]]).run()
    lines = [record.getMessage() for record in caplog.records if "dead-letter" in record.getMessage()]
    where = "operator `ledger`, at stream `m.in` partition 2 offset 1 key b"
    assert lines == [f"1 message went to the dead-letter stream `m.dead`: ValueError: late, in {where}"]
    runner.advance_time(60_000).input("m.in", [["d", 1, "late"]]).run()
    runner.input("m.in", [["e", 1, "late"]]).run().close()
    lines = [record.getMessage() for record in caplog.records if "dead-letter" in record.getMessage()]
    assert [line.partition(" in this run")[0] for line in lines[1:]] == [
        "6 more messages went to the dead-letter stream `m.dead`, 7",
        "1 more message went to the dead-letter stream `m.dead`, 8",
    ]


def test_without_a_dead_letter_stream_the_batch_is_not_applied() -> None:
    runner = runner_of(dead_letter=None).input("m.in", [["a", 1, ""], ["b", 2, "late"], ["c", 3, ""]])
    with pytest.raises(ps.UserCodeError, match="ValueError: late") as caught:
        runner.run()
    assert (caught.value.failed.operator, caught.value.failed.key) == ("ledger", "b")
    assert (runner.store("sums"), runner.output("m.out")) == ({}, [])


class Odd(Serde[int]):
    """Decodes with `next`, as a careless author would."""

    def to_bytes(self, obj: int) -> bytes:
        return b"%d" % obj

    def from_bytes(self, data: bytes) -> int:
        return next(n for n in [int(data)] if n >= 0)


@pytest.mark.parametrize(("value", "bad", "good"), [(Odd(), -1, 1), (ps.Json(), b"{", 1), (ps.Integer(), b"123", 1)])
def test_a_value_that_does_not_decode(value: Serde[Any], bad: Any, good: Any) -> None:
    def messages() -> Iterator[Any]:
        app = ps.StreamApplication("a")
        app.input("m.in", value=value).send_to(app.output("m.out"))
        for dead_letter in (None, "m.dead"):
            runner = TestRunner(app, partitions=1, dead_letter=dead_letter).input("m.in", [good, good])
            data = bad if isinstance(bad, bytes) else value.to_bytes(bad)
            runner._home.streams.systems["m"].writer(None).append(
                ps.SystemStreamPartition("m", "in", 0), [(0, b"key", data)]
            )
            yield runner.input("m.in", [good])

    strict, lenient = messages()
    with pytest.raises(ps.UserCodeError) as caught:
        strict.run()
    failed = caught.value.failed
    assert (failed.stream, failed.partition, failed.offset, failed.key) == ("m.in", 0, 2, "key")
    assert failed.operator == "input-1"
    assert "During handling" not in failed.traceback
    assert frames_of_penstock(failed.traceback) == []
    assert [m.value for m in lenient.run().output("m.out")] == [good] * 3
    assert lenient.dead_letters == 1


@pytest.mark.parametrize("dead_letter", [None, "m.dead"])
def test_an_error_whose_text_is_not_utf8(dead_letter: str | None) -> None:
    def fail(value: Any) -> None:
        raise ValueError("file name \udcff")

    app = ps.StreamApplication("a")
    app.input("m.in").map(fail)
    runner = TestRunner(app, partitions=1, dead_letter=dead_letter).input("m.in", [1])
    if dead_letter:
        assert runner.run().dead_letters == 1
    else:
        with pytest.raises(ps.UserCodeError, match="ValueError: file name"):
            runner.run()


def test_exiting_is_a_failure_of_the_application() -> None:
    def leave(value: Any) -> None:
        raise SystemExit(3)

    app = ps.StreamApplication("a")
    app.input("m.in").map(leave)
    with pytest.raises(ps.UserCodeError, match="SystemExit"):
        TestRunner(app, partitions=1).input("m.in", [1]).run()


def test_an_operator_may_be_called_dead_letter() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").map(lambda v: 1 // v).send_to(app.output("m.out"), id="dead-letter")
    runner = TestRunner(app, partitions=1, dead_letter="m.dead").input("m.in", [1, 0]).run()
    assert [m.value for m in runner.output("m.out")] == [1]
    assert len(runner.output("m.dead")) == 1


class Refuses(ps.StreamTask):
    """Fails for what no input message led to."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        raise ValueError(f"no {envelope.offset}")


class Alarm(ps.StreamTask):
    """A timer of each key sends a message."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.context.schedule(envelope.key, envelope.value)

    def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key=timer.key, value=timer.time_ms)


def counted(stream: Any, app: Any) -> Any:
    return stream.window(ps.Windows.tumbling(10, aggregates={"n": ps.Count()}), id="made").map(
        lambda pane: pane.message
    )


def alarmed(stream: Any, app: Any) -> Any:
    return stream.process(Alarm, timers=ps.Long(), id="made")


def unpaired(stream: Any, app: Any) -> Any:
    """The left messages have no partner."""
    right = app.input("m.right").partition_by(lambda v: v, key=ps.Long())
    return stream.join(right, lambda a, b: [a, b], within_ms=10, kind="left", id="made")


@pytest.mark.parametrize("makes", [counted, alarmed, unpaired])
@pytest.mark.parametrize("order", [None, "event-time"])
@pytest.mark.parametrize("tasks", [1, 3])
def test_a_message_of_no_input_message_names_the_operator_that_it_came_from(
    makes: Callable[[Any, Any], Any], order: Any, tasks: int
) -> None:
    """A window, a timer or a join made it, and a later operator refuses it."""
    app = ps.StreamApplication("a")
    made = makes(app.input("m.in").partition_by(lambda v: v % 3, key=ps.Long()), app)
    made.partition_by(lambda v: "7", id="moved").process(Refuses, id="refuses", order=order)
    runner = TestRunner(app, partitions=tasks, dead_letter="m.dead")
    runner.input("m.in", [(None, n) for n in range(6)], timestamp=5).run().end_inputs()
    letters = [orjson.loads(each.value) for each in runner.output("m.dead")]
    assert letters
    for letter in letters:
        assert (letter["stream"], letter["offset"]) == ("none.none", -2)
        assert (letter["operator"], letter["sender"], letter["reason"]) == ("refuses", "moved", "ValueError: no -2")
        assert letter["key"] == "7"
        assert letter["partition"] < tasks
        assert "name" not in letter


def test_a_message_that_waits_for_its_time_has_the_place_of_its_input() -> None:
    """The application may have it as an input no more."""

    def app(*names: str) -> ps.StreamApplication:
        made = ps.StreamApplication("a")
        first, *others = (made.input(name, id=name[2:]) for name in names)
        merged = first.merge(*others, id="merged") if others else first.filter(lambda _: True, id="merged")
        merged.process(Refuses, order="event-time", id="refuses")
        return made

    runner = TestRunner(app("m.a", "m.b"), partitions=1, dead_letter="m.dead")
    runner.input("m.b", [("k", 7), ("k", 8)], timestamp=5).run().commit().crash()
    runner.restore(app("m.a")).end_inputs()
    letters = [orjson.loads(each.value) for each in runner.output("m.dead")]
    assert [(each["stream"], each["partition"], each["offset"]) for each in letters] == [("m.b", 0, 0), ("m.b", 0, 1)]
    assert all("sender" not in each and "name" not in each for each in letters)


@pytest.mark.parametrize("makes", [counted, alarmed, unpaired])
def test_without_a_dead_letter_stream_the_error_names_the_operator(makes: Callable[[Any, Any], Any]) -> None:
    app = ps.StreamApplication("a")
    made = makes(app.input("m.in").partition_by(lambda v: v % 3, key=ps.Long()), app)
    made.partition_by(lambda v: "7", id="moved").process(Refuses, id="refuses")
    runner = TestRunner(app, partitions=1).input("m.in", [(None, n) for n in range(6)], timestamp=5)
    with pytest.raises(ps.UserCodeError, match="at a message from operator `moved` that a timer, a window or the end"):
        runner.run().end_inputs()
