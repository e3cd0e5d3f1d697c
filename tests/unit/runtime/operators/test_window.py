"""window: what fires when, and what a pane has."""

from __future__ import annotations

from datetime import timedelta
from itertools import permutations
from math import inf, nan
from typing import Any, cast

import orjson
import pytest

import penstock as ps
from penstock.batch.batch import END_OF_TIME
from penstock.runtime.operators.window import WindowNode
from penstock.runtime.windows import fixed
from penstock.runtime.windows.contents import MessageContent
from penstock.testing import TestRunner
from tests.support.oracles.metrics_page import OF_OPERATORS, exported
from tests.support.oracles.stage_batches import LATE, OUT, Message, StageBatches

windows, triggers = cast("Any", ps.Windows), cast("Any", ps.Triggers)
tumbling = windows.tumbling


def stage(window: ps.Window) -> StageBatches:
    app = ps.StreamApplication("a")
    app.output(LATE)
    app.input("m.in").window(window, id="w").map(shown).send_to(app.output(OUT))
    return StageBatches(app, "w")


def shown(pane: ps.WindowPane[Any, Any]) -> list[Any]:
    return [pane.message, pane.firing, pane.number]


def panes(sent: dict[str, list[tuple[Any, Any, int]]]) -> list[Any]:
    return [value for _, value, _ in sent.get(OUT, [])]


def some(*values: int) -> list[Message]:
    return [Message("k", value, 5) for value in values]


@pytest.mark.parametrize("accumulating", [True, False])
def test_a_trigger_that_repeats_fires_after_each_batch_that_brings_enough(accumulating: bool) -> None:
    early = ps.Triggers.repeat(ps.Triggers.count(2))
    job = stage(ps.Windows.tumbling(10, early=early, accumulating=accumulating))
    found = [panes(job.run(some(*values))) for values in ([1], [2], [3], [4, 5, 6], [])]

    def all_or_new(every: list[int], new: list[int]) -> list[int]:
        return every if accumulating else new

    assert found == [
        [],
        [[[1, 2], "early", 0]],
        [],
        [[all_or_new([1, 2, 3, 4, 5, 6], [3, 4, 5, 6]), "early", 1]],
        [],
    ]
    job.restart()
    assert panes(job.run(some(7), 10)) == [[all_or_new([1, 2, 3, 4, 5, 6, 7], [7]), "on-time", 2]]
    assert job.entries("w.window") == {}
    job.close()


def test_a_trigger_that_does_not_repeat_fires_once() -> None:
    job = stage(ps.Windows.tumbling(10, early=ps.Triggers.count(2), fold=(0, lambda total, n: total + n)))
    found = [panes(job.run(some(*values))) for values in ([1, 1], [1, 1], [1, 1])]
    assert found == [[[2, "early", 0]], [], []]
    assert panes(job.run([], 10)) == [[6, "on-time", 1]]
    job.close()


@pytest.mark.parametrize("restart", [False, True])
def test_triggers_of_time_fire_without_a_message(restart: bool) -> None:
    early = ps.Triggers.repeat(ps.Triggers.any(ps.Triggers.since_first(100), ps.Triggers.since_last(30)))
    job = stage(ps.Windows.tumbling(10, early=early))
    assert panes(job.run(some(1), time_ms=1000)) == []
    found = []
    for time, values in ((1020, [2]), (1049, []), (1050, []), (1200, []), (1300, [3])):
        found.append(panes(job.run(some(*values), time_ms=time)))
        if restart:
            job.restart()
    assert found == [[], [], [[[1, 2], "early", 0]], [], []], "30 ms after the last one"
    for step in range(1320, 1400, 20):
        assert panes(job.run(some(step), time_ms=step)) == [], "since the last message too little time has passed"
    assert panes(job.run(some(0), time_ms=1400)) == [[[1, 2, 3, 1320, 1340, 1360, 1380, 0], "early", 1]]
    job.close()


def test_all_of_several_triggers() -> None:
    job = stage(ps.Windows.tumbling(10, early=ps.Triggers.all(ps.Triggers.count(2), ps.Triggers.since_first(50))))
    times: list[tuple[int, list[int]]] = [(1000, [1]), (1060, []), (1070, [2]), (1080, [])]
    assert [panes(job.run(some(*values), time_ms=time)) for time, values in times] == [
        [],
        [],
        [[[1, 2], "early", 0]],
        [],
    ]
    job.close()


def test_windows_of_processing_time_go_by_the_batch() -> None:
    job = stage(ps.Windows.tumbling(100, time="processing"))
    batches: list[tuple[int, list[int]]] = [(1001, [1]), (1050, [2]), (1099, [3]), (1100, [4]), (1250, [])]
    found = [panes(job.run(some(*values), time_ms=time)) for time, values in batches]
    assert found == [[], [], [], [[[1, 2, 3], "on-time", 0]], [[[4], "on-time", 0]]]
    assert job.entries("w.window") == {}
    job.close()


@pytest.mark.parametrize(
    "window",
    [
        ps.Windows.tumbling(100, time="processing"),
        ps.Windows.tumbling(100, time="processing", aggregates={"n": ps.Count()}),
        ps.Windows.sliding(100, time="processing"),
        ps.Windows.session(100, time="processing", early=ps.Triggers.repeat(ps.Triggers.count(1))),
        ps.Windows.count(9),
    ],
)
def test_panes_of_batch_time_are_late_nowhere_although_event_time_is_ahead_of_it(window: ps.Window) -> None:
    job = stage(window)
    sent = [job.run(some(1), 5000, time_ms=time) for time in (1000, 1100, 1300)]
    sent.append(job.run([], 9000, time_ms=1300, control="end-of-stream"))
    times = [[time for _, _, time in each.get(OUT, [])] for each in sent]
    assert any(times)
    assert all(time >= 5000 for some_times in times[1:] for time in some_times), times
    job.close()


def test_late_messages_wait_for_the_trigger_for_them() -> None:
    window = ps.Windows.tumbling(10, allowed_lateness_ms=100, late=ps.Triggers.repeat(ps.Triggers.count(2)))
    job = stage(window)
    assert panes(job.run(some(1), 20)) == [[[1], "on-time", 0]]
    assert [panes(job.run(some(n))) for n in (2, 3, 4)] == [[], [[[1, 2, 3], "late", 1]], []]
    assert panes(job.run([], 109)) == []
    assert panes(job.run([], 110)) == [[[1, 2, 3, 4], "late", 2]], "kept for so long only"
    assert job.entries("w.window") == {}
    assert job.run(some(5)) == {}, "dropped"
    job.close()


@pytest.mark.parametrize(("control", "firing"), [("end-of-stream", "late"), ("drain", "drain")])
@pytest.mark.parametrize(("accumulating", "last"), [(True, [1, 2, 3]), (False, [2, 3])])
@pytest.mark.parametrize("fold", [None, (list, lambda values, value: [*values, value])])
def test_late_messages_whose_trigger_has_not_fired_are_in_a_last_pane(
    control: str, firing: str, accumulating: bool, last: list[int], fold: Any
) -> None:
    window = ps.Windows.tumbling(
        10, fold=fold, allowed_lateness_ms=100, late=ps.Triggers.count(9), accumulating=accumulating
    )
    job = stage(window)
    assert panes(job.run(some(1), 20)) == [[[1], "on-time", 0]]
    assert [panes(job.run(some(n))) for n in (2, 3)] == [[], []]
    assert panes(job.run(control=control)) == [[last, firing, 1]]
    assert job.entries("w.window") == {}
    job.close()


def test_without_a_watermark_nothing_is_late_or_complete() -> None:
    job = stage(ps.Windows.tumbling(10, allowed_lateness_ms=100))
    assert panes(job.run(some(1))) == []
    assert panes(job.run([], 10)) == [[[1], "on-time", 0]]
    job.close()


def test_windows_of_a_whole_task_have_no_key() -> None:
    job = stage(ps.Windows.tumbling(10, keyed=False))
    sent = job.run([Message("a", 1, 3), Message("b", 2, 4), Message(None, 3, 5)], 10)
    assert sent[OUT] == [(None, [[1, 2, 3], "on-time", 0], 9)], "at the last millisecond of the window"
    job.close()


def test_panes_of_a_batch_come_by_the_end_of_their_windows_and_their_keys() -> None:
    job = stage(ps.Windows.tumbling(10))
    messages = [Message(key, time, time) for time in (25, 3, 14) for key in ("b", "a")]
    assert [(key, time) for key, _, time in job.run(messages, END_OF_TIME)[OUT]] == [
        (key, time) for time in (9, 19, 29) for key in ("a", "b")
    ]
    job.close()


def test_a_drain_says_so() -> None:
    job = stage(ps.Windows.tumbling(10))
    assert panes(job.run(some(1), control="drain")) == [[[1], "drain", 0]]
    job.close()


def test_aggregates() -> None:
    of: Any = lambda trip: trip.get("miles")  # noqa: E731
    aggregates = {
        "trips": ps.Count(),
        "known": ps.Count(of),
        "sum": ps.Sum(of),
        "min": ps.Min(of),
        "max": ps.Max(of),
        "mean": ps.Mean(of),
        "first": ps.First(of),
        "last": ps.Last(of),
        "distinct": ps.Distinct(of),
    }
    job = stage(ps.Windows.tumbling(10, aggregates=aggregates))
    assert panes(job.run([Message("k", {"miles": 4}, 5), Message("k", {}, 1), Message("k", {"miles": 2}, 3)])) == []
    job.restart()
    assert panes(job.run([Message("k", {"miles": 4}, 3), Message("k", {"miles": 8}, 5)])) == []
    ((found, firing, number),) = panes(job.run([Message("none", {}, 12)], 10))
    assert (firing, number) == ("on-time", 0)
    assert found == {
        "trips": 5,
        "known": 4,
        "sum": 18,
        "min": 2,
        "max": 8,
        "mean": 4.5,
        "first": 2,
        "last": 8,
        "distinct": 3,
    }
    ((nothing, _, _),) = panes(job.run([], 20))
    assert nothing == {
        **dict.fromkeys(("min", "max", "mean", "first", "last")),
        "trips": 1,
        "known": 0,
        "sum": 0,
        "distinct": 0,
    }
    job.close()


@pytest.mark.parametrize("order", list(permutations([(nan, "a"), (inf, "b"), (1.0, "c"), (nan, "d")])))
def test_the_greatest_do_not_depend_on_where_nan_comes(order: list[tuple[float, str]]) -> None:
    """NaN has no order, so it ranks below all others."""
    first_nan = next(name for rank, name in order if rank != rank)
    for cut in range(len(order) + 1):
        top, states = ps.TopN(n=3, by=lambda value: value[0]), []
        for part in (order[:cut], order[cut:]):
            state = None
            for value in part:
                state = top.add(state, value, 0)
            states.append(state or [])
        assert [name for _, name in top.result(top.merge(*states))] == ["b", "c", first_nan]


def test_sessions_merge_aggregates() -> None:
    job = stage(ps.Windows.session(10, aggregates={"n": ps.Count(), "first": ps.First(), "values": ps.Distinct()}))
    assert panes(job.run([Message("k", 1, 0), Message("k", 2, 18)])) == []
    assert panes(job.run([Message("k", 1, 9)], 28)) == [[{"n": 3, "first": 1, "values": 2}, "on-time", 0]]
    assert job.entries("w.window") == {}
    job.close()


def test_a_fold_that_fails_names_its_window_and_the_message() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").window(ps.Windows.count(2, fold=(0, lambda total, n: total / n)), id="ratio").send_to(
        app.output(OUT)
    )
    runner = TestRunner(app, partitions=1).input("m.in", [("k", 1), ("k", 0)])
    with pytest.raises(ps.UserCodeError, match=r"division by zero\n  in operator `ratio`.*offset 1"):
        runner.run()


def test_a_message_that_fails_leaves_its_window_as_it_was() -> None:
    """With a dead-letter stream: what it added is undone, and a pane that nobody takes is undone as well."""
    app = ps.StreamApplication("a")
    fold = (list, lambda values, n: [*values, 1 // n])
    counts = app.input("m.in").window(ps.Windows.count(3, fold=fold), id="w")
    counts.map(shown).send_to(app.output(OUT))
    runner = TestRunner(app, partitions=1, dead_letter="m.dead")
    runner.input("m.in", [("k", n) for n in (1, 0, 2, 0, 0, 1)]).run(batch_messages=4)
    assert [message.value for message in runner.output(OUT)] == [[[1, 0, 1], "on-time", 0]]
    assert [orjson.loads(letter.value)["offset"] for letter in runner.output("m.dead")] == [1, 3, 4]


def divided(values: list[float], n: int) -> list[float]:
    values.append(0)  # what a failure may leave behind
    return [*values[:-1], 1 // n]


@pytest.mark.parametrize("make", [ps.Windows.tumbling, ps.Windows.session])
def test_a_batch_whose_last_message_fails_stores_nothing_of_it(make: Any) -> None:
    app = ps.StreamApplication("a")
    fold = (list, divided, lambda first, second: first + second)
    app.input("m.in").window(make(10, fold=fold), id="w").map(shown).send_to(app.output(OUT))
    runner = TestRunner(app, partitions=1, dead_letter="m.dead")
    runner.input("m.in", [("k", 1), ("k", 0)], timestamp=5).run()
    runner.input("m.in", [("j", 0)], timestamp=5).run().end_inputs()
    assert [message.value for message in runner.output(OUT)] == [[[1], "on-time", 0]]
    assert [letter.key for letter in runner.output("m.dead")] == [b"k", b"j"]


def test_a_sliding_window_that_fails_is_a_dead_letter_and_others_fire() -> None:
    app = ps.StreamApplication("a")
    shares = ps.Windows.sliding(10, fold=(0.0, lambda total, n: total + 6 / n))
    app.input("m.in").window(shares, id="w").map(shown).send_to(app.output(OUT))
    runner = TestRunner(app, partitions=1, dead_letter="m.dead")
    for time, n in ((0, 1), (5, 0), (20, 2)):
        runner.input("m.in", [("k", n)], timestamp=time)
    runner.run().end_inputs()
    assert [message.value for message in runner.output(OUT)] == [[6, "on-time", 0], [3, "on-time", 0]]
    (letter,) = runner.output("m.dead")
    assert (letter.key, orjson.loads(letter.value)["timestamp"]) == (b"k", 5)
    assert runner.store("w.window") == {}


def test_a_value_that_cannot_be_stored_is_a_dead_letter() -> None:
    app = ps.StreamApplication("a")
    sums = ps.Windows.tumbling(10, fold=(0, lambda total, n: total + n if n else object()))
    app.input("m.in").window(sums, id="w").map(shown).send_to(app.output(OUT))
    runner = TestRunner(app, partitions=1, dead_letter="m.dead")
    runner.input("m.in", [("k", 1), ("k", 0), ("k", 2)], timestamp=5).run().end_inputs()
    assert [message.value for message in runner.output(OUT)] == [[3, "on-time", 0]]
    (letter,) = runner.output("m.dead")
    assert (orjson.loads(letter.value)["offset"], orjson.loads(letter.value)["operator"]) == (1, "w")


def test_a_trigger_for_late_messages_that_does_not_repeat_fires_once() -> None:
    job = stage(ps.Windows.tumbling(10, allowed_lateness_ms=100, early=ps.Triggers.count(1), late=ps.Triggers.count(1)))
    assert panes(job.run(some(1))) == [[[1], "early", 0]]
    assert panes(job.run(some(2), 20)) == [[[1, 2], "on-time", 1]]
    assert [panes(job.run(some(n))) for n in (3, 4)] == [[[[1, 2, 3], "late", 2]], []]
    job.close()


def test_a_message_looks_at_its_own_window_however_many_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of an operator that emits one at a time, such as a task."""
    looked = 0

    class Counted(dict[int, fixed.OpenWindow]):
        def values(self) -> Any:
            nonlocal looked
            looked += 1
            return super().values()

    find = fixed.OpenWindows._windows

    def counted(self: fixed.OpenWindows) -> dict[int, fixed.OpenWindow]:
        if not isinstance(self._by_start, Counted):
            self._by_start = Counted(find(self))
        return self._by_start

    monkeypatch.setattr(fixed.OpenWindows, "_windows", counted)
    job = stage(ps.Windows.tumbling(10, aggregates={"n": ps.Count()}))
    for count in (5, 200):
        looked = 0
        job.run([Message("k", 1, time * 10) for time in range(count)])
        assert looked < 10
    job.close()


def test_very_many_windows_fire_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WindowNode, "at_most", 2)
    app = ps.StreamApplication("a")
    ones = app.input("m.in").window(ps.Windows.tumbling(10, aggregates={"n": ps.Count()}), id="short")
    totals = ones.map(lambda pane: pane.message["n"]).window(
        ps.Windows.tumbling(100, fold=(0, lambda total, n: total + n)), id="long"
    )
    totals.map(lambda pane: [pane.key, pane.window.start_ms, pane.message]).send_to(app.output(OUT))
    runner = TestRunner(app, partitions=1)
    for time in range(0, 300, 10):
        runner.input("m.in", [(key, 1) for key in "abc"], timestamp=time)
    runner.input("m.in", [("a", 1)], timestamp=400).run()
    assert runner._running().loop.boundary.batch > 20, "two or three of them at a time"
    runner.end_inputs()
    expected = [[key, start, 10] for start in (0, 100, 200) for key in "abc"]
    assert [message.value for message in runner.output(OUT)] == [*expected, ["a", 400, 1]]


def test_a_failure_among_many_messages_or_panes_names_the_one_that_failed() -> None:
    """They are processed many at once."""

    def add(total: int, n: int) -> int:
        return total + 6 // n

    job = stage(ps.Windows.tumbling(10, fold=(0, add)))
    job.run([Message(key, n, 1) for key, n in (("a", 1), ("b", 0), ("c", 2))])
    assert job.failure is not None
    assert (job.failure.operator, job.failure.offset, job.failure.key) == ("w", 1, "b")
    job.run([Message(key, 1, 1) for key in "abc"], 5)
    assert panes(job.run([], 20)) == [[6, "on-time", 0]] * 3
    job.close()

    app = ps.StreamApplication("a")
    counts = app.input("m.in").window(ps.Windows.tumbling(10, aggregates={"n": ps.Count()}), id="w")
    counts.map(lambda pane: 1 // (3 - pane.message["n"]), id="share").send_to(app.output(OUT))
    job = StageBatches(app, "w")
    job.run([Message(key, 1, 1) for key in "abbbcc"])
    job.run([], 20)
    assert job.failure is not None
    assert (job.failure.operator, job.failure.key) == ("share", "b")
    assert len(job.entries("w.window")) == 3, "what fired is undone with the attempt"
    job.close()


def test_thousands_of_panes_fire_in_order_and_one_that_fails_is_named() -> None:
    keys = [f"{n:04d}" for n in range(3000)]
    app = ps.StreamApplication("a")
    counts = app.input("m.in").window(ps.Windows.tumbling(10, aggregates={"n": ps.Count()}), id="w")
    counts.map(lambda pane: 1 // (3 - pane.message["n"]) or "x" * 20_000, id="share").send_to(app.output(OUT))
    job = StageBatches(app, "w")
    job.run([Message(key, 1, 1) for key in reversed(keys)])
    assert [key for key, *_ in job.run([], 20)[OUT]] == keys
    job.run([Message(key, 1, 21) for key in (*keys, "2500", "2500")])
    assert job.run([], 40) == {}
    assert job.failure is not None
    assert (job.failure.operator, job.failure.key) == ("share", "2500")
    job.close()


class Timed(ps.StreamTask):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        """Nothing is scheduled."""

    def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
        """None fires."""


def test_operators_count_in_groups_of_their_own() -> None:
    app = ps.StreamApplication("a")
    counts = app.input("m.in").window(ps.Windows.tumbling(10, aggregates={"n": ps.Count()}), id="w")
    counts.process(Timed, timers=ps.String(), id="t").send_to(app.output(OUT))
    job = StageBatches(app, "w")
    job.run([], 20)
    job.run(some(1, 2))
    assert job.metrics.to_dict()["Partition 0"]["operator.w"] == {"late-dropped": 2, "panes-fired": 0}
    assert exported(job.metrics) < OF_OPERATORS
    assert "timers-fired" in job.metrics.to_dict()["Partition 0"]["operator.t"]
    job.close()


def test_panes_travel_to_the_next_stage() -> None:
    app = ps.StreamApplication("a")
    counts = app.input("m.in").window(ps.Windows.count(2, fold=(0, lambda total, n: total + n)))
    by_total = counts.partition_by(lambda pane: str(pane.message)).map(lambda pane: [pane.key, pane.message])
    by_total.send_to(app.output(OUT))
    runner = TestRunner(app, partitions=2).input("m.in", [("a", 1), ("a", 2), ("b", 4), ("b", 5)]).run()
    assert sorted((m.key, m.value) for m in runner.output(OUT)) == [("3", ["a", 3]), ("9", ["b", 9])]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ps.Windows.tumbling(0), "size_ms is a duration .*1 ms or more.*, not 0"),
        (lambda: ps.Windows.hopping(5, 6), "leave messages out"),
        (lambda: ps.Windows.tumbling(5, time="wall"), "time='wall'"),  # type: ignore[arg-type]
        (lambda: ps.Windows.tumbling(5, allowed_lateness_ms=-1), "allowed_lateness_ms .* 0 ms or more .*, not -1"),
        (lambda: ps.Windows.count(5, allowed_lateness_ms=1), "only windows of event time"),
        (lambda: ps.Windows.sliding(5, allowed_lateness_ms=1), "leave out allowed_lateness_ms"),
        (lambda: ps.Windows.sliding(5, accumulating=False), "leave out accumulating=False"),
        (lambda: ps.Windows.tumbling(5, fold=([], lambda a, b: a)), "every window would share"),
        (lambda: ps.Windows.tumbling(5, fold=(0,)), "fold="),
        (lambda: ps.Windows.tumbling(5, aggregates={}), "not {}"),
        (lambda: ps.Windows.tumbling(5, aggregates={"n": 1}), "by name, not 'n': 1"),  # type: ignore[dict-item]
        (lambda: ps.Windows.tumbling(5, fold=(0, max), aggregates={"n": ps.Count()}), "not both"),
        (lambda: ps.Triggers.count(0), "messages .* 1 or more"),
        (lambda: ps.Triggers.since_first(0), "since_first: ms .*, not 0"),
        (lambda: ps.Triggers.any(ps.Triggers.count(1)), "two triggers or more"),
        (lambda: ps.Triggers.repeat(ps.Triggers.repeat(ps.Triggers.count(1))), "does not repeat already"),
        (lambda: windows.sliding(5, offset_ms=1), r"Windows.sliding\(\) has no argument `offset_ms`"),
        (
            lambda: tumbling(5, emit="each"),
            r"Windows.tumbling\(\) has no argument `emit`: .* time, .* and late_to",
        ),
        (lambda: windows.count(5, size_ms=1), r"Windows.count\(\) has no argument `size_ms`"),
        (lambda: cast("Any", ps.TopN)(2), r"TopN\(2\): .* Write TopN\(n=2\)"),
        (lambda: cast("Any", ps.TopN)("miles"), r"TopN\('miles'\): `of` is a function"),
        (lambda: tumbling("1 fortnight"), "size_ms is a duration .*, not '1 fortnight'"),
        (lambda: tumbling(timedelta(microseconds=1)), r"not datetime.timedelta\(microseconds=1\)"),
        (lambda: tumbling(1.5), "size_ms .*, not 1.5"),
        (lambda: tumbling(True), "size_ms .*, not True"),
        (lambda: tumbling(2**63), "size_ms .*at most 2"),
        (lambda: tumbling(5, offset_ms="1"), "offset_ms .*, not '1'"),
        (lambda: windows.hopping(5, None), "every_ms .*, not None"),
        (lambda: windows.hopping("5", 1), "size_ms .*, not '5'"),
        (lambda: windows.session(0.5), "gap_ms .*, not 0.5"),
        (lambda: windows.sliding(-1), "size_ms .*, not -1"),
        (lambda: windows.count("5"), "messages is a whole number of messages, .*, not '5'"),
        (lambda: tumbling(5, early="count"), "early= takes a trigger, such as .*, not 'count'"),
        (lambda: tumbling(5, early=5), "early= takes a trigger, .*, not 5"),
        (lambda: tumbling(5, early=ps.Triggers.count), "early= takes a trigger, .*, not <function"),
        (lambda: tumbling(5, early=ps.Trigger()), "early= takes a trigger, .*, not Trigger"),
        (lambda: tumbling(5, late=5, allowed_lateness_ms=1), "late= takes a trigger, .*, not 5"),
        (lambda: tumbling(5, late=ps.Triggers.count(1)), "late= never fires, .* allowed_lateness_ms"),
        (lambda: tumbling(5, allowed_lateness_ms="1"), "allowed_lateness_ms .*, not '1'"),
        (lambda: tumbling(5, keyed="no"), "keyed='no'"),
        (lambda: tumbling(5, accumulating=0), "accumulating=0"),
        (lambda: tumbling(5, aggregates=[ps.Count()]), r"aggregates are .*, not \[Count"),
        (lambda: tumbling(5, aggregates={"n": ps.Count}), "by name, not 'n': <class"),
        (lambda: tumbling(5, aggregates={1: ps.Count()}), "by name, not 1: Count"),
        (lambda: tumbling(5, fold=sum), "fold=.*, not <built-in function sum>"),
        (lambda: cast("Any", ps.Sum)("delay"), r"Sum\('delay'\): `of` is a function"),
        (lambda: tumbling(5, fold=(0, max), value=ps.Long), r"value=: .* the class ps.Long, .*value=ps.Long\(\)"),
        (lambda: tumbling(5, value=ps.Long()), "value= is the serde of a fold's value"),
        (lambda: tumbling(5, value=ps.Long(), aggregates={"n": ps.Count()}), "value= is the serde of a fold's value"),
        (lambda: ps.Triggers.count(True), "messages .*, not True"),
        (lambda: triggers.since_last(timedelta(0)), r"since_last: ms .* not datetime.timedelta\(0\)"),
        (lambda: triggers.any(ps.Triggers.count(1), 5), "Triggers.any takes a trigger, .*, not 5"),
        (lambda: triggers.repeat(5), "Triggers.repeat takes a trigger, .*, not 5"),
        (
            lambda: ps.StreamApplication("a").input("m.in", watermark=cast("Any", ps.BoundedOutOfOrderness)),
            "input `m.in`: watermark is a policy .*, not <class",
        ),
    ],
)
def test_what_makes_no_window_is_refused_where_it_is_declared(make: Any, said: str) -> None:
    with pytest.raises(ps.ConfigError, match=said):
        make()


HALF: dict[str, Any] = {"fold": (0, lambda total, n: total + n / 2), "value": ps.Long()}


@pytest.mark.parametrize(
    ("window", "said"),
    [
        (ps.Windows.tumbling(10, **HALF), "the value 0.5 of key 'k' is a float, .* declare fold=..., value=ps.Double"),
        (ps.Windows.tumbling(10, early=ps.Triggers.count(9), **HALF), "the value 0.5 of key 'k' is a float, .*ps.Long"),
        (ps.Windows.tumbling(10, keyed=False, **HALF), "the value 0.5 is a float, .*ps.Long"),
        (
            tumbling(10, aggregates={"n": ps.Sum(lambda n: 1j)}),
            r"the state of aggregate `n` of key 'k' cannot be stored, 1j: .*type complex",
        ),
    ],
)
def test_a_value_that_cannot_be_stored_is_shown_with_its_operator_and_key(window: ps.Window, said: str) -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").window(window, id="w").send_to(app.output(OUT))
    with pytest.raises(ps.UserCodeError, match=f"SerdeError: window operator `w`: {said}"):
        TestRunner(app).input("m.in", [("k", 1)], timestamp=5).run()


def test_a_message_that_cannot_be_stored_is_shown_by_itself() -> None:
    content = MessageContent(ps.Long())
    content.operator = "w"
    said = str(content.unwritable([1, 0.5, 2], "k", TypeError()))
    assert said.startswith(
        "window operator `w`: the value 0.5 of key 'k' is a float, but values are declared as ps.Long"
    )


@pytest.mark.parametrize(
    ("window", "time_ms"),
    [
        (tumbling(1000), 2**63 - 2),
        (tumbling(1000), -(2**63) + 1),
        (tumbling(1000, **HALF), 2**63 - 2),
        (windows.session(1000), 2**63 - 2),
        (windows.sliding(1000), -(2**63) + 1),
    ],
)
def test_a_window_beyond_the_range_of_times_says_so(window: ps.Window, time_ms: int) -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").window(window, id="w").send_to(app.output(OUT))
    with pytest.raises(ps.UserCodeError, match="the message's timestamp is too close"):
        TestRunner(app).input("m.in", [("k", 1)], timestamp=time_ms).run()


def test_a_running_sum_is_that_of_a_plain_program_however_batches_are_cut() -> None:
    payments = [(f"card-{n % 3}", 10 * (n % 7), 40_000 * n - 90_000 * (n % 5 == 4)) for n in range(60)]
    expected = [
        sum(e for k, e, at in payments[: number + 1] if k == card and time - 600_000 < at <= time)
        for number, (card, _, time) in enumerate(payments)
    ]
    for size in (1, 10, 10_000):
        app = ps.StreamApplication("fraud")
        window = ps.Windows.sliding(600_000, emit="each", aggregates={"sum": ps.Sum()})
        stream = app.input("m.payments", watermark=ps.BoundedOutOfOrderness(200_000)).window(window, id="ten-minutes")
        stream.map(lambda pane: pane.message["sum"]).send_to(app.output("m.sums"))
        runner = TestRunner(app, partitions=1)
        for card, euros, time in payments:
            runner.input("m.payments", [(card, euros)], timestamp=time)
        runner.run(batch_messages=size).commit().crash().restore().run(batch_messages=size)
        assert [message.value for message in runner.output("m.sums")] == expected


def test_a_message_that_fails_after_its_pane_counts_in_no_later_one() -> None:
    app = ps.StreamApplication("fraud")
    window = ps.Windows.sliding(100, emit="each", aggregates={"sum": ps.Sum()})
    sums = app.input("m.in").window(window, id="w").map(lambda pane: 100 // (pane.message["sum"] - 3))
    sums.send_to(app.output("m.out"))
    runner = TestRunner(app, partitions=1, dead_letter="m.dead").input("m.in", [("a", 1), ("a", 2), ("a", 12)]).run()
    assert [message.value for message in runner.output("m.out")] == [100 // -2, 100 // 10]
    assert len(runner.output("m.dead")) == 1
