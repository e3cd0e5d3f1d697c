"""Timers of tasks: when they fire, in which order, and what becomes of what they do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import pytest

import penstock as ps
from penstock.api.time.firing import AtDrain
from penstock.graph.specs import ProcessSpec
from penstock.runtime.operators import task_timers
from penstock.testing import TestRunner


class Scripted(ps.StreamTask):
    """A message is a list of calls: `[method, *arguments]`. A timer emits itself and then does what `script` has for
    its name."""

    script: dict[str, Callable[[ps.TaskContext, ps.ExpiredTimer], None]] = {}

    def init(self, context: ps.TaskContext) -> None:
        self.context = context

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        for method, *arguments in envelope.value:
            getattr(self.context, method)(*arguments)
        collector.emit(key=envelope.key, value="message")

    def on_timer(self, timer: ps.ExpiredTimer, collector: Any, coordinator: Any) -> None:
        collector.emit(value=[*timer[:4]])
        if timer.name in self.script:
            self.script[timer.name](self.context, timer)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[ps.TaskContext, ps.ExpiredTimer], None]]:
    found: dict[str, Callable[[ps.TaskContext, ps.ExpiredTimer], None]] = {}
    monkeypatch.setattr(Scripted, "script", found)
    return found


def runner_of(
    task: Any = Scripted, timers: ps.Serde[Any] | None = None, timers_at_drain: AtDrain = "fire", **options: Any
) -> TestRunner:
    app = ps.StreamApplication("a")
    stream = app.input("m.in").process(task, timers=timers or ps.String(), timers_at_drain=timers_at_drain, id="t")
    stream.send_to(app.output("m.out"))
    return TestRunner(app, partitions=1, **options)


def fired(runner: TestRunner) -> list[Any]:
    """[key, time, name, domain] of all timers that have fired, in order."""
    return [message.value for message in runner.output("m.out") if message.value != "message"]


def schedule(runner: TestRunner, *timers: list[Any]) -> TestRunner:
    """Schedules in one message: [key, time, name, domain]."""
    return runner.input("m.in", [[["schedule", *timer] for timer in timers]]).run()


def now_of(runner: TestRunner) -> int:
    return runner._clock.now_ms()


def test_timers_fire_by_time_then_key_then_name() -> None:
    timers = [["b", 20, "y"], ["a", 30, "z"], ["c", 10, "x"], ["c", 10], ["b", 10]]
    timers += [["a", 20], [None, 20], ["a\x00", 20], ["", 20]]
    runner = schedule(runner_of(), *timers)
    assert fired(runner) == []
    runner.advance_watermark(25)
    assert [timer[:3] for timer in fired(runner)] == [
        ["b", 10, ""], ["c", 10, ""], ["c", 10, "x"],
        [None, 20, ""], ["", 20, ""], ["a", 20, ""], ["a\x00", 20, ""], ["b", 20, "y"],
    ]  # fmt: skip
    runner.advance_watermark(30)
    assert fired(runner)[-1] == ["a", 30, "z", "event"]
    assert runner.store("t.timers") == {}


def test_a_number_as_the_key_sorts_as_a_number() -> None:
    runner = schedule(runner_of(timers=ps.Long()), [-5, 9], [3, 9], [100, 9], [20, 9]).advance_watermark(9)
    assert [timer[0] for timer in fired(runner)] == [-5, 3, 20, 100]


def test_a_timer_of_the_same_key_and_name_is_replaced_and_cancelled() -> None:
    runner = schedule(runner_of(), ["a", 10], ["a", 10, "x"], ["b", 10], ["c", 10], ["a", 10, "", "processing"])
    schedule(runner, ["a", 40], ["c", 10])
    runner.input("m.in", [[["cancel", "b"], ["cancel", "b"], ["cancel", "never"], ["cancel", "a", "x"]]]).run()
    runner.advance_watermark(30)
    assert fired(runner) == [["a", 10, "", "processing"], ["c", 10, "", "event"]]
    assert fired(runner.advance_watermark(40))[-1] == ["a", 40, "", "event"]


def test_what_a_timer_emits_has_its_time_and_in_processing_time_that_of_the_batch() -> None:
    runner = runner_of()
    now = now_of(runner)
    schedule(runner, ["a", 10], ["a", now + 500, "p", "processing"]).advance_watermark(10).advance_time(700)
    (event, processing) = [message for message in runner.output("m.out") if message.value != "message"]
    assert (event.timestamp, processing.timestamp) == (10, now + 700)
    assert processing.value == ["a", now + 500, "p", "processing"]


def test_processing_time_comes_before_the_messages_and_event_time_behind_them() -> None:
    runner = runner_of()
    schedule(runner, ["a", now_of(runner) + 5, "", "processing"], ["a", 50])
    runner._job.feed.watermark = 50
    runner.input("m.in", [[]]).advance_time(5)
    assert [m.value if m.value == "message" else m.value[3] for m in runner.output("m.out")] == [
        "message", "processing", "message", "event",
    ]  # fmt: skip


def test_a_timer_in_processing_time_that_is_due_at_once_fires_in_the_next_batch() -> None:
    runner = schedule(runner_of(), ["a", 10, "", "processing"])
    assert fired(runner) == [["a", 10, "", "processing"]]
    assert runner._running().loop.boundary.batch == 2


def test_what_a_timer_schedules_for_a_time_that_has_come_fires_in_order(script: Any) -> None:
    """In the same batch: earlier than others that wait, between them, and behind them."""

    def first(context: ps.TaskContext, timer: ps.ExpiredTimer) -> None:
        for key, time_ms in (("past", 5), ("same", timer.time_ms), ("between", 15), ("last", 40), ("later", 41)):
            context.schedule(key, time_ms)
        context.cancel("cancelled")
        context.schedule("moved", 35)

    script["first"] = first
    runner = schedule(runner_of(), ["a", 10, "first"], ["b", 20], ["cancelled", 20], ["moved", 20], ["d", 30])
    batches = runner._running().loop.boundary.batch
    runner.advance_watermark(40)
    order = [("a", 10), ("past", 5), ("same", 10), ("between", 15), ("b", 20), ("d", 30), ("moved", 35), ("last", 40)]
    assert [(key, time) for key, time, *_ in fired(runner)] == order
    assert runner._running().loop.boundary.batch == batches + 1
    assert [key for key, *_ in fired(runner.advance_watermark(41))][-1] == "later"


def test_what_a_timer_in_processing_time_schedules_and_cancels(script: Any) -> None:
    """A timer due at once waits for the next batch; a cancelled timer does not fire."""

    def first(context: ps.TaskContext, timer: ps.ExpiredTimer) -> None:
        context.schedule("again", 1, "", "processing")
        context.schedule("later", 10**15, "", "processing")
        context.cancel("cancelled", domain="processing")

    script["first"] = first
    runner = runner_of()
    due = [["a", 10, "first"], ["b", 20, ""], ["cancelled", 20, ""], ["d", 30, ""]]
    schedule(runner, *([*timer, "processing"] for timer in due))
    assert [key for key, *_ in fired(runner)] == ["a", "b", "d", "again"]
    assert runner._running().loop.boundary.batch == 3


def test_many_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch fires only some of them, and the next one begins at once."""
    monkeypatch.setattr(task_timers, "AT_MOST", 7)
    domains = ("event", "processing")
    runner = schedule(runner_of(), *([f"k{n:03}", 10 + n % 5, "", each] for n in range(50) for each in domains))
    in_processing_time = runner._running().loop.boundary.batch
    assert 50 / 7 <= in_processing_time <= 50 / 7 + 3
    assert fired(runner) == sorted(fired(runner), key=lambda timer: timer[1])
    assert len(fired(runner)) == 50
    runner._clock.advance(1)
    runner.input("m.in", [[]], timestamp=100).run()
    for _ in range(3):
        runner.input("m.in", [[]], timestamp=100)
    runner.run()
    events = fired(runner)[50:]
    assert [(time, key) for key, time, *_ in events] == sorted((10 + n % 5, f"k{n:03}") for n in range(50))
    assert runner._running().loop.boundary.batch >= in_processing_time + 50 / 7


# The clocks of a task.


class Clocks(ps.StreamTask):
    """Emits its clocks at each call. A message `[key, ms]` schedules in processing time."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self._emit("process", collector)
        key, wait_ms = envelope.value
        self.context.schedule(key, self.context.batch_time_ms + wait_ms, domain="processing")

    def on_timer(self, timer: ps.ExpiredTimer, collector: Any, coordinator: Any) -> None:
        self._emit("timer", collector)

    def on_end(self, collector: Any, coordinator: Any) -> None:
        self._emit("end", collector)

    def _emit(self, where: str, collector: Any) -> None:
        collector.emit(value=[where, self.context.batch_time_ms, self.context.watermark_ms])


def test_a_task_learns_the_batch_time_and_the_watermark() -> None:
    runner = runner_of(Clocks)
    start = now_of(runner)
    runner.input("m.in", [["a", 500]]).run().advance_time(499)
    assert fired(runner) == [["process", start, None]], "no watermark yet, and the timer is not due"
    runner.advance_time(1).advance_watermark(70).input("m.in", [["a", 9], ["b", 9]], timestamp=80).run()
    assert fired(runner)[1:] == [["timer", start + 500, None], *[["process", start + 500, 70]] * 2]
    runner.advance_time(10).end_inputs()
    assert fired(runner)[4:] == [*[["timer", start + 510, 70]] * 2, ["end", start + 510, 80]]


def test_a_message_replaces_the_timer_of_the_one_before() -> None:
    """After a crash as well."""
    runner = runner_of(Clocks)
    start = now_of(runner)
    runner.input("m.in", [["a", 500]]).run().advance_watermark(70).commit()
    runner.advance_time(400).input("m.in", [["a", 500]]).run().crash().restore().run()
    assert fired(runner)[-1] == ["process", start + 400, 70]
    runner.advance_time(499)
    assert "timer" not in [where for where, *_ in fired(runner)]
    assert fired(runner.advance_time(1))[-1] == ["timer", start + 900, 70]


@pytest.mark.parametrize("name", ["batch_time_ms", "watermark_ms"])
def test_before_the_first_batch_a_task_has_no_clocks(name: str) -> None:
    class Hasty(Clocks):
        def init(self, context: ps.TaskContext) -> None:
            getattr(context, name)

    with pytest.raises(ps.UserCodeError, match=rf"operator `t` asks for `{name}` before its first batch: keep the"):
        runner_of(Hasty).input("m.in", [["a", 1]]).run()


# What fails.


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (["schedule", "a", "soon"], "operator `t` schedules a timer for 'soon': give epoch milliseconds, an int"),
        (["schedule", "a", 1.5], "schedules a timer for 1.5: give epoch"),
        (["schedule", "a", 2**62 + 1], "which is not a time: give epoch milliseconds"),
        (["schedule", "a", 1, 7], "a timer's name is text, not 7"),
        (["schedule", "a", 1, "", "wall"], 'domain="wall": expected "event" or "processing"'),
        (["schedule", 5, 1], "timers of operator `t`: the key 5 is an int, but keys are declared as ps.String()"),
        (["cancel", 5], "for this key, declare .process(..., timers=ps.Long())"),
    ],
)
def test_a_call_that_is_wrong(call: list[Any], said: str) -> None:
    runner = runner_of().input("m.in", [[call]])
    with pytest.raises(ps.UserCodeError) as raised:
        runner.run()
    assert said in str(raised.value)


def test_a_task_without_timers_says_what_to_declare() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").process(Scripted, id="t").send_to(app.output("m.out"))
    runner = TestRunner(app).input("m.in", [[["schedule", "a", 1]]])
    with pytest.raises(ps.UserCodeError, match=r"operator `t` has no timers: .* process\(\.\.\., timers=ps\.String"):
        runner.run()


class Deaf(ps.StreamTask):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None: ...


def test_a_task_with_timers_defines_on_timer() -> None:
    """A class is known when the application is built, a function when it has made a task."""
    for known in (Deaf, partial(Deaf), partial(partial(Deaf))):
        with pytest.raises(ps.ConfigError, match="its task does not define on_timer"):
            runner_of(known)
        with pytest.raises(ps.ConfigError, match="its task does not define on_timer"):
            ps.TaskApplication("b", known, timers=ps.String())
    runner = runner_of(lambda: Deaf())
    with pytest.raises(ps.UserCodeError, match="its task does not define on_timer"):
        runner.input("m.in", [1]).run()
    app = ps.StreamApplication("a")
    app.input("m.in").process(Deaf, id="t")


def test_timers_take_a_serde() -> None:
    app = ps.StreamApplication("a")
    with pytest.raises(ps.ConfigError, match=r"timers of operator `t`: the serde of the keys is <class 'str'>"):
        app.input("m.in").process(Scripted, timers=str, id="t")  # type: ignore[arg-type]
    with pytest.raises(ps.ConfigError, match=r"ps\.TaskApplication\(\.\.\., timers="):
        ps.TaskApplication("b", Scripted, timers=ps.String)  # type: ignore[arg-type]


@pytest.mark.parametrize("domain", ["event", "processing"])
def test_a_timer_that_fails_goes_to_the_dead_letters_and_fires_no_more(script: Any, domain: Any) -> None:
    def fail(context: ps.TaskContext, timer: ps.ExpiredTimer) -> None:
        context.schedule("undone", 10, "", domain)
        context.cancel("c", domain=domain)
        raise ValueError("five")

    script["bad"] = fail
    runner = runner_of(dead_letter="m.dead")
    schedule(runner, ["a", 10, "", domain], ["b", 10, "bad", domain], ["c", 10, "", domain]).advance_watermark(20)
    assert [key for key, *_ in fired(runner)] == ["a", "c"]
    assert runner.store("t.timers") == {}
    (letter,) = runner.output("m.dead")
    said = orjson.loads(letter.value)
    assert {name: said[name] for name in ("operator", "key", "name", "timestamp", "reason", "value")} == {
        "operator": "t", "key": "b", "name": "bad", "timestamp": 10, "reason": "ValueError: five", "value": None,
    }  # fmt: skip
    assert runner.dead_letters == 1


def test_a_timer_that_fails_ends_the_run_and_is_named(script: Any) -> None:
    script["bad"] = lambda context, timer: 1 // 0
    runner = schedule(runner_of(), ["b", 10, "bad"])
    with pytest.raises(ps.UserCodeError) as raised:
        runner.advance_watermark(20)
    assert "in operator `t`, at timer `bad` of event time 10 of task 0, key b" in str(raised.value)
    assert len(runner.store("t.timers")) == 2, "the batch was not applied"


def test_timers_that_schedule_each_other_for_ever(script: Any) -> None:
    """They end the run, or go to the dead letters."""
    script["loop"] = lambda context, timer: context.schedule(timer.key, timer.time_ms, timer.name)
    runner = schedule(runner_of(), ["b", 10, "loop"])
    with pytest.raises(ps.UserCodeError, match="1000 timers have scheduled each other without time passing"):
        runner.advance_watermark(20)


def test_a_timer_that_schedules_itself_for_later_times_fires_up_to_the_watermark(script: Any) -> None:
    script["tick"] = lambda context, timer: context.schedule(timer.key, timer.time_ms + 10, timer.name)
    runner = schedule(runner_of(), ["b", 10, "tick"]).advance_watermark(20_005)
    assert [time for _, time, *_ in fired(runner)] == list(range(10, 20_001, 10))


# Late.


def test_a_timer_for_a_time_before_the_watermark_is_not_late_behind_its_operator() -> None:
    app = ps.StreamApplication("a")
    timers = app.input("m.in").process(Scripted, timers=ps.String(), id="t").filter(lambda value: value != "message")
    late = app.output("m.late")
    window = ps.Windows.tumbling(10, late_to=late)
    timers.window(window).map(lambda pane: [pane.window.start_ms, pane.message]).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1).input("m.in", [[]]).run().advance_watermark(105)
    schedule(runner, ["a", 7], ["a", 110, "y"]).advance_watermark(200)
    assert runner.output("m.late") == []
    assert [message.value for message in runner.output("m.out")] == [
        [100, [["a", 7, "", "event"]]], [110, [["a", 110, "y", "event"]]],
    ]  # fmt: skip


# The end of the stream.


class Ending(Scripted):
    def on_end(self, collector: Any, coordinator: Any) -> None:
        collector.emit(value="end")
        if "end" in self.script:
            self.script["end"](self.context, ps.ExpiredTimer(None, 0, "end", "event"))


def test_at_the_end_all_timers_fire_and_then_on_end() -> None:
    """Event time first, then processing time; then the next operator."""
    runner = runner_of(Ending)
    far = now_of(runner) + 10**9
    schedule(runner, ["a", 30], ["b", 20], ["a", far, "", "processing"], [None, far - 1, "", "processing"])
    runner.end_inputs()
    assert fired(runner) == [
        ["b", 20, "", "event"], ["a", 30, "", "event"],
        [None, far - 1, "", "processing"], ["a", far, "", "processing"], "end",
    ]  # fmt: skip
    times = [message.timestamp for message in runner.output("m.out") if message.value != "message"]
    assert times == [20, 30, *[now_of(runner)] * 3]
    assert runner.store("t.timers") == {}


class Why(Scripted):
    def on_timer(self, timer: ps.ExpiredTimer, collector: Any, coordinator: Any) -> None:
        collector.emit(value=[timer.key, timer.firing])
        if timer.name in self.script:
            self.script[timer.name](self.context, timer)


@pytest.mark.parametrize("control", ["end-of-stream", "drain"])
def test_a_timer_says_why_it_fires(script: Any, control: str) -> None:
    """A timer that a due timer schedules for a time that has come is due too."""

    def more(context: ps.TaskContext, timer: ps.ExpiredTimer) -> None:
        context.schedule("past", 60)
        context.schedule("past, by the clock", 5, "", "processing")
        context.schedule("next", 200)

    script["more"] = more
    runner = runner_of(Why)
    now = now_of(runner)
    timers: list[list[Any]] = [["event", 60], ["clock", now + 9, "", "processing"], [None, 150], ["more", 101, "more"]]
    schedule(runner, *timers, ["far", now + 1_000, "", "processing"]).advance_watermark(100).advance_time(9)
    assert fired(runner) == [["event", "due"], ["clock", "due"]]
    if control == "drain":
        runner.drain()
    else:
        runner.end_inputs()
    assert fired(runner)[2:] == [
        ["more", control], ["past", "due"], [None, control], ["next", control],
        ["past, by the clock", "due"], ["far", control],
    ]  # fmt: skip


class TestDiscard:
    """`timers_at_drain="discard"`."""

    def test_a_drain_fires_what_is_due_and_drops_the_rest(self, script: Any) -> None:
        script["more"] = lambda context, timer: [context.schedule("past", 60), context.schedule("next", 200)]
        runner = runner_of(Why, timers_at_drain="discard")
        now = now_of(runner)
        schedule(runner, ["event", 60], ["more", 90, "more"]).advance_watermark(100)
        assert fired(runner) == [["event", "due"], ["more", "due"], ["past", "due"]]
        metrics = runner._running().board.metrics
        schedule(runner, [None, 150], ["far", now + 1_000, "", "processing"], ["event", 300]).drain()
        assert len(fired(runner)) == 3
        assert metrics.snapshot().total("timers-dropped", group="operator.t") == 4

    def test_the_end_of_a_stream_fires_them(self, script: Any) -> None:
        runner = schedule(runner_of(Why, timers_at_drain="discard"), ["event", 60]).end_inputs()
        assert fired(runner) == [["event", "end-of-stream"]]

    @pytest.mark.parametrize(("given", "timers"), [("drop", ps.String()), ("discard", None)])
    def test_wrong_arguments(self, given: Any, timers: Any) -> None:
        app = ps.StreamApplication("a")
        with pytest.raises(ps.ConfigError, match="operator `t`: timers_at_drain"):
            app.input("m.in").process(Why, timers=timers, timers_at_drain=given, id="t")
        with pytest.raises(ps.ConfigError, match=r"ps.TaskApplication\(...\): timers_at_drain"):
            ps.TaskApplication("a", Why, timers=timers, timers_at_drain=given)

    def test_a_task_application(self) -> None:
        app = ps.TaskApplication("a", Why, timers=ps.String(), timers_at_drain="discard")
        app.input("m.in")
        (spec,) = [op for op in app.graph().operators if isinstance(op, ProcessSpec)]
        assert spec.discards_timers


def test_what_is_scheduled_at_the_end_fires_but_not_for_ever(script: Any) -> None:
    """A timer that schedules itself again, as one that looks whether it is really due, fires once more."""

    def chain(context: ps.TaskContext, timer: ps.ExpiredTimer) -> None:
        if timer.time_ms < 10_000:
            context.schedule("other", timer.time_ms * 2, "chain" + "'" * timer.time_ms.bit_length())
            context.schedule("clock", timer.time_ms * 2, "", "processing")

    script["tick"] = lambda context, timer: context.schedule(timer.key, timer.time_ms + 10, "tick")
    script["chain"] = chain
    runner = schedule(runner_of(Ending), ["b", 10, "tick"], ["c", 7, "chain"]).end_inputs()
    assert fired(runner) == [
        ["c", 7, "chain", "event"], ["b", 10, "tick", "event"], ["other", 14, "chain'''", "event"],
        ["b", 20, "tick", "event"], ["clock", 14, "", "processing"], "end",
    ]  # fmt: skip
    assert runner.store("t.timers") == {}
    assert runner._running().board.metrics.snapshot().total("timers-dropped", group="operator.t") == 1
    assert runner._running().board.metrics.snapshot().total("timers-fired", group="operator.t") == 5


def test_on_end_schedules_no_timers(script: Any) -> None:
    script["end"] = lambda context, timer: context.schedule("a", 1)
    with pytest.raises(ps.UserCodeError, match="no timer fires after `on_end` or `on_drain`") as raised:
        runner_of(Ending).end_inputs()
    assert "at `on_end` of task 0" in str(raised.value)


def test_an_on_end_that_fails_is_no_dead_letter(script: Any) -> None:
    """The stream has not ended, so no message has what the task keeps."""

    def fails(context: Any, timer: Any) -> None:
        raise ValueError("poisoned")

    script["end"] = fails
    with pytest.raises(ps.UserCodeError, match="poisoned"):
        runner_of(Ending, dead_letter="local.dead").end_inputs()


@pytest.mark.parametrize("apart", [False, True])
def test_operators_end_one_after_the_other(apart: bool) -> None:
    """Through any number of exchanges: what one emits at its end comes before the end of the next one."""

    class Total(ps.StreamTask):
        def init(self, context: ps.TaskContext) -> None:
            self.total = context.store(self.store)

        store = "first"

        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
            self.total["all"] = self.total.get("all", 0) + envelope.value

        def on_end(self, collector: Any, coordinator: Any) -> None:
            collector.emit(key="all", value=self.total.get("all", 0))

    class Second(Total):
        store = "second"

    app = ps.StreamApplication("a")
    app.store("first")
    app.store("second")
    first = app.input("m.in").process(Total, stores=["first"])
    between = first.partition_by(lambda total: "all") if apart else first
    between.process(lambda: Second(), stores=["second"]).send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=3).input("m.in", [1, 2, 3, 4])
    runner.run()
    assert runner.output("m.out") == []
    totals = sorted(message.value for message in runner.end_inputs().output("m.out"))
    assert totals == ([0, 0, 10] if apart else [0, 3, 7]) or sum(totals) == 10
    assert len(totals) == 3


# Tasks that are called once a period.


class Ticking(ps.WindowableTask):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(value="message")

    def window(self, collector: Any, coordinator: Any) -> None:
        collector.emit(value="window")


def ticking(config: dict[str, object], task: Any = Ticking) -> TestRunner:
    app = ps.StreamApplication("a")
    app.input("m.in").process(task, id="t").send_to(app.output("m.out"))
    return TestRunner(app, partitions=1, config=config)


def emitted(runner: TestRunner) -> list[Any]:
    return [message.value for message in runner.output("m.out")]


def test_a_task_is_called_once_a_period_before_the_messages() -> None:
    runner = ticking({"task.window.ms": 1_000}).input("m.in", [1]).run()
    assert emitted(runner) == ["message"], "there was no batch before"
    runner._clock.advance((1_000 - now_of(runner) % 1_000) / 1_000)
    runner.input("m.in", [1]).run().input("m.in", [1]).run()
    assert emitted(runner) == ["message", "window", "message", "message"]
    runner.advance_time(999)
    assert emitted(runner)[4:] == []
    assert emitted(runner.advance_time(1))[4:] == ["window"]
    assert emitted(runner.advance_time(10_000))[5:] == ["window"], "once after a long pause"
    assert runner.output("m.out")[-1].timestamp == now_of(runner)


def test_after_a_stop_it_is_called_once() -> None:
    runner = ticking({"task.window.ms": 1_000}).input("m.in", [1]).run().commit().crash()
    runner._clock.advance(100)
    runner.restore().run()
    assert emitted(runner) == ["message", "window"]


def test_without_a_period_or_a_window_nothing_is_called() -> None:
    assert emitted(ticking({}).input("m.in", [1]).run().advance_time(10**9)) == ["message"]
    runner = ticking({"task.window.ms": 10}, Deaf).input("m.in", [1]).run().advance_time(10)
    assert emitted(runner) == []
