"""process: a StreamTask with stores, and what it may ask of its coordinator."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

import pytest

import penstock as ps
from penstock.runtime.reports import Report, SuccessfulBatch, decide_outcome
from penstock.testing import TestRunner, UnwrittenChangeError
from tests.support.oracles.tracebacks import frames_of_penstock


class Scripted(ps.StreamTask):
    """Runs a function given to it; remembers its life."""

    life: ClassVar[list[str]] = []
    contexts: ClassVar[list[ps.TaskContext]] = []

    def __init__(self, function: Any) -> None:
        self.function = function
        self.own_life = Scripted.life  # a runner of another test may be collected, and closed, at any time
        self.own_life.append("made")

    def init(self, context: ps.TaskContext) -> None:
        self.context = context
        Scripted.contexts.append(context)
        self.own_life.append(f"init {context.partition}")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.function(self.context, envelope, collector, coordinator)

    def close(self) -> None:
        self.own_life.append(f"close {self.context.partition}")


def runner_of(
    function: Any, *, partitions: int = 1, stores: tuple[str, ...] = ("s",), side: str = "other.side"
) -> TestRunner:
    Scripted.life = []
    Scripted.contexts = []
    app = ps.StreamApplication("job")
    for store in stores:
        app.store(store)
    out = app.output("m.out")
    app.output(side)
    app.input("m.in", key=ps.String()).process(lambda: Scripted(function), stores=stores, id="task").send_to(out)
    return TestRunner(app, partitions=partitions)


@pytest.mark.parametrize("side", ["other.side", "spark.side"])  # which is a DataFrame in a query
def test_emit_goes_on_and_send_goes_to_any_output(side: str) -> None:
    def both(_: Any, envelope: Any, collector: Any, __: Any) -> None:
        collector.emit(key="e", value=envelope.value)
        collector.send("side", key="s", value=envelope.value)
        collector.send(side, value=envelope.value)
        collector.send("m.out", value="direct")

    runner = runner_of(both, side=side).input("m.in", [1]).run()
    assert {(m.key, m.value) for m in runner.output("m.out")} == {("e", 1), (None, "direct")}
    assert [(m.key, m.value) for m in runner.output(side)] == [("s", 1), (None, 1)]


def test_without_a_key_send_uses_the_tasks_own_partition() -> None:
    runner = runner_of(lambda _, e, collector, __: collector.send("side", value=e.value), partitions=3)
    runner.input("m.in", [10, 11, 12]).run()
    assert [(m.partition, m.value) for m in runner.output("other.side")] == [(0, 10), (1, 11), (2, 12)]


def test_an_undeclared_output_names_the_declared_ones() -> None:
    with pytest.raises(
        ps.UserCodeError, match=r"sends to `nowhere`, which is not a declared output; declared: .*m\.out"
    ):
        runner_of(lambda _, __, c, ___: c.send("nowhere", value=1)).input("m.in", [1]).run()


def test_the_context_and_the_envelope() -> None:
    seen: list[Any] = []
    runner = runner_of(lambda c, e, *_: seen.append((c.task_name, c.partition, c.job_name, e)), partitions=2)
    runner.input("m.in", [("k", {"a": 1})], partition=1, timestamp=99).run()
    task_name, partition, job, envelope = seen[0]
    assert (task_name, partition, job) == ("Partition 1", 1, "job")
    assert (envelope.key, envelope.value, envelope.offset, envelope.timestamp) == ("k", {"a": 1}, 0, 99)
    assert envelope.ssp == ps.SystemStreamPartition("m", "in", 1)
    assert repr(envelope).startswith("IncomingMessageEnvelope(ssp=m.in.1, offset=0, key='k', value={'a': 1}")
    with pytest.raises(ps.ConfigError, match="asks for store `t` but was given: `s`"):
        Scripted.contexts[0].store("t")


def test_one_instance_per_task_for_many_batches() -> None:
    runner = runner_of(lambda *_: None, partitions=2).input("m.in", range(10)).run(batch_messages=1)
    assert Scripted.life == ["made", "init 0", "made", "init 1"]
    runner.close()
    assert sorted(Scripted.life[4:]) == ["close 0", "close 1"], "by two threads"


def test_after_a_failed_batch_the_task_is_closed_and_made_anew() -> None:
    def fail_once(context: Any, envelope: Any, *_: Any) -> None:
        context.store("s").put("k", envelope.value)
        if envelope.value == 2 and Scripted.life.count("made") == 1:
            raise ValueError("no")

    runner = runner_of(fail_once).input("m.in", [1, 2])
    with pytest.raises(ps.UserCodeError):
        runner.run()
    assert runner.store("s") == {}
    assert Scripted.life == ["made", "init 0", "close 0"]
    runner.run()
    assert runner.store("s") == {"k": 2}


def test_stores_are_each_tasks_own() -> None:
    runner = runner_of(lambda c, e, *_: c.store("s").put(f"{c.partition}", e.value), partitions=3)
    assert runner.input("m.in", [0, 1, 2]).run().store("s") == {"0": 0, "1": 1, "2": 2}


def test_what_init_writes_is_written() -> None:
    class Initial(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            self.store = context.store("s")
            if self.store.get("count") is None:
                self.store.put("count", 100)

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            if envelope.value:
                self.store.put("count", self.store.get("count") + envelope.value)

    app = ps.StreamApplication("a")
    app.store("s")
    app.input("m.in").process(Initial, stores=["s"])
    runner = TestRunner(app, partitions=1)
    assert runner.input("m.in", [0]).run().store("s") == {"count": 100}
    assert runner.input("m.in", [5]).run().store("s") == {"count": 105}


def test_two_processes_share_a_store_of_their_stage() -> None:
    class Add(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            self.store = context.store("s")

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            self.store.put("n", (self.store.get("n") or 0) + envelope.value)
            collector.emit(value=envelope.value)

    app = ps.StreamApplication("a")
    app.store("s")
    app.input("m.in").process(Add, stores=["s"]).process(Add, stores=["s"]).map(lambda value: value)
    assert TestRunner(app, partitions=1).input("m.in", [1, 2, 3]).run().store("s") == {"n": 12}


def test_init_that_raises() -> None:
    class Bad(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            raise RuntimeError("no database")

        def process(self, *_: Any) -> None: ...

    app = ps.StreamApplication("a")
    app.input("m.in").process(Bad, id="bad")
    with pytest.raises(ps.UserCodeError, match="RuntimeError: no database") as caught:
        TestRunner(app).input("m.in", [1]).run()
    assert caught.value.failed.operator == "bad"
    assert frames_of_penstock(caught.value.failed.traceback) == []
    assert "in the constructor or `init` of operator `bad`, task 0, before any message" in str(caught.value)
    assert "none" not in str(caught.value)


def test_a_failure_after_emit_is_the_next_operators_whatever_the_task_catches() -> None:
    def swallow(_: Any, envelope: Any, collector: Any, __: Any) -> None:
        with suppress(Exception):  # the task's author means errors of their own
            collector.emit(value=object())

    with pytest.raises(ps.UserCodeError) as caught:
        runner_of(swallow).input("m.in", [1]).run()
    assert "not JSON serializable" in caught.value.failed.reason


def test_a_change_without_a_put_is_caught() -> None:
    def change(context: Any, envelope: Any, *_: Any) -> None:
        value = context.store("s").get("k")
        if value is None:
            context.store("s").put("k", {"n": 0})
        else:
            value["n"] += 1

    runner = runner_of(change).input("m.in", [1]).run()
    with pytest.raises(ps.UserCodeError, match="value of key 'k' was changed after get or put without a put") as caught:
        runner.input("m.in", [1]).run()
    assert UnwrittenChangeError.__name__ in caught.value.failed.reason
    assert runner.store("s") == {"k": {"n": 0}}


def _generator() -> Any:
    yield 1


async def _coroutine() -> None: ...


RETURNED = {
    "an object of type `int`": lambda: 5,
    "an object of type `bool`": lambda: False,
    "a generator": _generator,
    "a coroutine": _coroutine,
}


@pytest.mark.parametrize("what", RETURNED)
@pytest.mark.parametrize("keyed", [False, True], ids=["", "with state of the key"])
@pytest.mark.parametrize("after", [False, True], ids=["first", "behind another task"])
def test_what_process_returns_is_refused_with_the_messages_place(what: str, keyed: bool, after: bool) -> None:
    class Returns(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            if keyed:
                context.value_state("s")

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> Any:
            return RETURNED[what]() if envelope.value == "bad" else None

    class Emits(ps.StreamTask):
        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            collector.emit(key=envelope.key, value=envelope.value)

    app = ps.StreamApplication("job")
    app.value_state("s")
    stream: ps.MessageStream[Any] = app.input("m.in")
    (stream.process(Emits) if after else stream).process(Returns, stores=["s"], id="returns")
    runner = TestRunner(app, partitions=1).input("m.in", [("k", "good"), ("k", "bad")])
    with pytest.raises(ps.UserCodeError) as raised:
        runner.run()
    failed = raised.value.failed
    assert (failed.operator, failed.stream, failed.partition, failed.offset) == ("returns", "m.in", 0, 1)
    assert failed.reason.startswith(f"TypeError: `process` returned {what}, which nothing ")


CALLS: dict[str, Any] = {
    "init": lambda runner: runner.run(),
    "window": lambda runner: runner.run().advance_time(10),
    "on_timer": lambda runner: runner.run().advance_watermark(100),
    "on_end": lambda runner: runner.run().end_inputs(),
    "on_drain": lambda runner: runner.run().drain(),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_other_methods_return_is_refused(name: str) -> None:
    class Task(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            self.context = context

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            self.context.schedule("k", 50)

        def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None: ...

    hidden = type(
        "Hidden", (Task, ps.WindowableTask), {"window": lambda *_: None, name: lambda *_: _coroutine()}
    )  # a decorator's wrapper looks the same
    app = ps.StreamApplication("job")
    app.input("m.in").process(hidden, timers=ps.String(), id="task")
    runner = TestRunner(app, partitions=1, config={"task.window.ms": 5}).input("m.in", ["a"])
    with pytest.raises(ps.UserCodeError, match=f"`{name}` returned a coroutine, which nothing runs"):
        CALLS[name](runner)
    runner.close()


def test_what_close_returns_is_logged_as_its_errors_are(caplog: pytest.LogCaptureFixture) -> None:
    app = ps.StreamApplication("job")
    hidden = type("Hidden", (ps.StreamTask,), {"process": lambda *_: None, "close": lambda _: _coroutine()})
    app.input("m.in").process(hidden, id="task")
    TestRunner(app, partitions=1).input("m.in", ["a"]).run().close()
    assert "TypeError: `close` returned a coroutine, which nothing runs" in caplog.text


def test_a_task_that_a_function_makes_is_refused_when_it_is_made() -> None:
    def make() -> Scripted:
        task = Scripted(lambda *_: None)
        task.process = lambda *_: _generator()  # type: ignore[method-assign]
        task.close = _generator  # type: ignore[method-assign]
        return task

    app = ps.StreamApplication("job")
    app.input("m.in").process(make, id="task")
    with pytest.raises(ps.UserCodeError, match="operator `task`: `close` of Scripted has `yield`"):
        TestRunner(app, partitions=1).input("m.in", [1]).run()


class Asks(ps.StreamTask):
    """Asks for what the value says."""

    def process(self, envelope: Any, collector: Any, coordinator: ps.TaskCoordinator) -> None:
        if envelope.value in ("commit", "shutdown"):
            getattr(coordinator, envelope.value)()
        if envelope.value == "shutdown, fail":
            coordinator.shutdown()
            raise ValueError("failed")


def asking(*, dead_letter: str | None = None) -> TestRunner:
    app = ps.StreamApplication("a")
    app.input("m.in").process(Asks)
    return TestRunner(app, partitions=2, dead_letter=dead_letter)


def outcome_of(runner: TestRunner) -> SuccessfulBatch:
    driver = runner._running()
    reports: list[Report] = []
    run = driver.runner.run

    def noted(*args: Any) -> Any:
        reports.extend(run(*args))
        return reports

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver.runner, "run", noted)
        runner.run()
    outcome = decide_outcome(reports, driver.job.topology, 2)
    assert isinstance(outcome, SuccessfulBatch)
    return outcome


def test_requests_of_any_task_reach_the_driver_once() -> None:
    runner = asking()
    for value, expected in (("x", (False, False)), ("commit", (True, False)), ("shutdown", (False, True))):
        outcome = outcome_of(runner.input("m.in", [value], partition=1))
        assert (outcome.commit, outcome.shutdown) == expected
    outcome = outcome_of(runner.input("m.in", ["x"], partition=0))
    assert (outcome.commit, outcome.shutdown) == (False, False)


def test_the_job_stops_after_the_batch() -> None:
    runner = asking().input("m.in", ["x", "x", "shutdown", "x", "x", "x"], partition=0).run(batch_messages=2)
    assert sorted(runner._running().loop.boundary.positions.values()) == [0, 4]


def test_a_request_of_a_message_that_became_a_dead_letter_is_undone() -> None:
    runner = asking(dead_letter="m.dead")
    outcome = outcome_of(runner.input("m.in", ["shutdown, fail"]))
    assert (outcome.dead_letters, outcome.shutdown) == (1, False)
