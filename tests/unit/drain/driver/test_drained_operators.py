"""Operators that are drained alone: what waits in them fires, and all others keep what waits in them, whatever else the
run does meanwhile."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.requests import DrainNotification
from penstock.batch.watermarks import TIME
from penstock.drain.requests import DRAIN
from penstock.testing import TestRunner
from penstock.testing.in_process import InProcessDriver
from tests.support.world.timed_job import NOW, HoldNode, TimedWorld, steps, steps_and_commit
from tests.support.world.world import World, ends

HOUR = 3_600_000
CLICKS = [("a", 1), ("a", 2), ("b", 3)]


class Reminder(ps.StreamTask):
    """Sets a timer for each message, and counts its messages in a store of its own."""

    def init(self, context: ps.TaskContext) -> None:
        self.counts = context.store("counts")
        self.context = context

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.counts[envelope.key] = self.counts.get(envelope.key, 0) + 1
        self.context.schedule(envelope.key, envelope.timestamp + HOUR)

    def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key=timer.key, value=["reminder", timer.key, self.counts[timer.key]])


def application(size_ms: int = HOUR) -> ps.StreamApplication:
    app = ps.StreamApplication("shop")
    app.store("counts")
    clicks = app.input("m.clicks", key=ps.String(), timestamp=lambda click: click[1])
    hours = clicks.window(ps.Windows.tumbling(size_ms, aggregates={"n": ps.Count()}), id="hours")
    days = hours.map(lambda pane: pane.message, id="panes").window(
        ps.Windows.tumbling(24 * HOUR, aggregates={"panes": ps.Count()}), id="days"
    )
    out = app.output("m.out")
    days.map(lambda pane: ["day", pane.key, pane.message["panes"]]).send_to(out)
    hours.map(lambda pane: ["hour", pane.key, pane.message["n"]]).send_to(out)
    clicks.process(Reminder, stores=["counts"], timers=ps.String(), id="remind").send_to(out)
    return app


def clicked(runner: TestRunner, *clicks: tuple[str, int]) -> TestRunner:
    return runner.input("m.clicks", [(key, [key, at]) for key, at in clicks]).run()


def sent(runner: TestRunner) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(message.value) for message in runner.output("m.out"))


def expected(first: list[tuple[str, int]], second: list[tuple[str, int]], alone: set[str]) -> Counter[tuple[Any, ...]]:
    """The output if these operators were drained between the two parts of the input, and everything after them."""
    out: Counter[tuple[Any, ...]] = Counter()
    clicks = Counter(key for key, _ in first + second)
    before, after = Counter(key for key, _ in first), Counter(key for key, _ in second)
    panes: list[Counter[str]] = []
    for part in (before, after) if "hours" in alone else (before + after,):
        out += Counter({("hour", key, n): 1 for key, n in part.items()})
        panes.append(Counter(dict.fromkeys(part, 1)))
    # A day that is drained with its hours has their panes; one that is drained alone has none yet.
    closes_days = "hours" in alone and "days" in alone
    for part in panes if closes_days else (sum(panes, Counter()),):
        for key, n in part.items():
            out["day", key, n] += 1
    if "remind" in alone:
        out += Counter({("reminder", key, n): 1 for key, n in before.items()})
        out += Counter({("reminder", key, clicks[key]): 1 for key in after})
    else:
        out += Counter({("reminder", key, n): 1 for key, n in clicks.items()})
    return out


SUBSETS = [{"hours"}, {"days"}, {"remind"}, {"hours", "days"}, {"hours", "remind"}, {"hours", "days", "remind"}]


@pytest.mark.parametrize("alone", SUBSETS, ids=lambda names: "+".join(sorted(names)))
def test_what_waits_in_them_fires_and_nothing_else(alone: set[str]) -> None:
    second = [("a", 4), ("c", 5)]
    runner = clicked(TestRunner(application()), *CLICKS).drain(sorted(alone))
    runner.restore().input("m.clicks", [(key, [key, at]) for key, at in second]).run().drain()
    assert sent(runner) == expected(CLICKS, second, alone)


def test_their_definition_may_change_and_no_other() -> None:
    runner = clicked(TestRunner(application()), *CLICKS).drain(["hours"])
    runner.restore(application(size_ms=HOUR // 2))
    clicked(runner, ("a", 4)).drain()
    assert sent(runner) == expected(CLICKS, [("a", 4)], {"hours"})
    other = clicked(TestRunner(application()), *CLICKS).drain(["days"])
    with pytest.raises(ps.IncompatibleError, match="penstock drain shop-1 --operator hours --wait"):
        other.restore(application(size_ms=HOUR // 2))


def test_time_stands_still_behind_them() -> None:
    """A pane of the drained window has a later time than the watermark; what follows is not late for it."""
    runner = clicked(TestRunner(application()), ("a", 1), ("a", 30 * HOUR), ("b", 30 * HOUR + 1))
    runner.drain(["hours"]).restore()
    clicked(runner, ("b", 30 * HOUR + 2), ("b", 31 * HOUR)).drain()
    out = sent(runner)
    assert out["day", "a", 1] == 2, "one pane in each of two days"
    assert out["day", "b", 3] == 1, "the hour of 30 in two panes, and that of 31"


def test_an_operator_that_does_not_exist() -> None:
    runner = clicked(TestRunner(application()), *CLICKS)
    with pytest.raises(ps.ConfigError, match="there is no operator hour; the application has input-1"):
        runner.drain(["hour"])


@pytest.fixture
def driver(timed_world: TimedWorld) -> InProcessDriver:
    """One with a checkpoint and messages that wait for time."""
    timed_world.config["job.drain-monitor.poll.interval.ms"] = 10**7
    return waits(timed_world)


def waits(world: TimedWorld) -> InProcessDriver:
    driver = world.started()
    world.put(10, 20, 30, 40)
    steps_and_commit(driver)
    return driver


def verify(world: TimedWorld, ended: str, *answered: DrainNotification, alone: Collection[str] = ()) -> None:
    """The last record answers these requests. `alone`: the operators that were drained alone; all others keep what
    waits in them, and event time goes on."""
    last = world.checkpoints[-1]
    assert (last.ended, last.reset_operators) == (ended, tuple(alone))
    assert last.section(DRAIN).answered == tuple(sorted(str(each.uuid) for each in answered))
    assert world.drains.find().notifications == ()
    assert bool(last.section(TIME).event_times) == (ended == "stopped")


def drain_all(world: TimedWorld) -> None:
    """Another run, which drains."""
    driver = world.started()
    world.ask_to_drain(driver)
    ends(driver)


ALL: dict[int, list[str]] = {n: [] for n in range(4)}


def test_the_run_ends_with_a_record_of_all_the_rest(timed_world: TimedWorld, driver: InProcessDriver) -> None:
    timed_world.put(50, 60)
    positions, before = driver.loop.boundary.positions, timed_world.came()
    asked = timed_world.ask_to_drain(driver, "one")
    ends(driver)
    assert timed_world.came() == before, "the last message waits in the second operator"
    verify(timed_world, "stopped", asked, alone=["one"])
    last = timed_world.checkpoints[-1]
    assert {at: last.next_offsets[at.task][at.ssp] for at in positions} == dict(positions)
    second = timed_world.started()
    steps(second)
    timed_world.put(90, 90)
    steps(second)
    assert timed_world.came().keys() >= {0, 1, 2, 3, 4}
    assert not any(timed_world.came().values()), "nothing is late"


@pytest.mark.parametrize("through", [False, True])
def test_both_operators_one_after_the_other(timed_world: TimedWorld, through: bool) -> None:
    timed_world.through = through
    driver = waits(timed_world)
    timed_world.put(50, 60)
    asked = timed_world.ask_to_drain(driver, "two"), timed_world.ask_to_drain(driver, "one")
    ends(driver)
    assert timed_world.came() == ALL, "what the first one let go came to the second one"
    verify(timed_world, "stopped", *asked, alone=["one", "two"])


@pytest.mark.parametrize("whole_first", [False, True])
def test_a_request_for_all_counts_more(timed_world: TimedWorld, driver: InProcessDriver, whole_first: bool) -> None:
    first = timed_world.ask_to_drain(driver, *(() if whole_first else ("one",)))
    driver.loop.step()
    second = timed_world.ask_to_drain(None, *(("one",) if whole_first else ()))
    ends(driver)
    assert timed_world.came() == ALL
    verify(timed_world, "drained", first, second)


def test_it_is_cancelled(timed_world: TimedWorld, driver: InProcessDriver) -> None:
    timed_world.put(50, 60)
    asked = timed_world.ask_to_drain(driver, "one")
    driver.loop.step()
    assert {batch.control for batch in HoldNode.batches} == {"none", "drain-operators"}
    timed_world.drains.cancel(asked, "somebody")
    driver.loop.step()
    assert not driver.loop.boundary.ends
    steps(driver)
    timed_world.put(90, 90)
    steps(driver)
    assert timed_world.came().keys() >= {0, 1, 2, 3, 4}


def test_the_driver_is_killed_before_the_record(timed_world: TimedWorld, driver: InProcessDriver) -> None:
    asked = timed_world.ask_to_drain(driver, "one")
    driver.loop.step()
    assert driver.loop.boundary.drained_operators == {"one"}
    timed_world.kill(driver)
    ends(timed_world.started())
    verify(timed_world, "stopped", asked, alone=["one"])


def test_a_container_is_lost_behind_the_record(timed_world: TimedWorld, driver: InProcessDriver) -> None:
    asked, opened = timed_world.ask_to_drain(driver, "one"), threading.Event()

    def at(step: str) -> None:
        if step == "open":
            opened.set()
        if step == "clean-up" and driver.board.phase == "stopping" and not opened.is_set():
            driver.fleet.lose(1)
            assert opened.wait(60)

    driver.fleet.at = at
    ends(driver)
    assert opened.is_set()
    verify(timed_world, "stopped", asked, alone=["one"])
    last, before = timed_world.checkpoints[-1], timed_world.checkpoints[-2]
    assert last.batch == before.batch, "nothing was read between the two"


def test_a_request_for_an_operator_that_is_not_there(
    timed_world: TimedWorld, driver: InProcessDriver, caplog: pytest.LogCaptureFixture
) -> None:
    timed_world.put(50, 60)
    timed_world.ask_to_drain(driver, "three")
    assert steps(driver) > 0
    assert "to drain `three` is deleted, and nothing drains for it" in caplog.text
    asked = timed_world.ask_to_drain(driver, "two")
    driver.loop.step()
    timed_world.ask_to_drain(None, "three")  # it delays nothing
    ends(driver)
    verify(timed_world, "stopped", asked, alone=["two"])


@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize("operators", [("one",), ("two",), ("one", "two")], ids="+".join)
def test_a_request_while_the_stream_ends(timed_world: TimedWorld, operators: tuple[str, ...], through: bool) -> None:
    timed_world.through = through
    timed_world.put(10, 20, 30, 40)
    driver = timed_world.started(until_latest=True)
    while not driver.loop.boundary.ends:
        assert not driver.loop.step()
    asked = timed_world.ask_to_drain(driver, *operators)
    ends(driver)
    assert timed_world.came() == ALL
    verify(timed_world, "end-of-stream", asked)
    assert {batch.control for batch in HoldNode.batches} <= {"none", "end-of-stream"}


class Ticker(ps.StreamTask):
    """Emits each message a minute of batch time later."""

    def init(self, context: ps.TaskContext) -> None:
        self.context = context

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.context.schedule(envelope.key, self.context.batch_time_ms + 60_000, domain="processing")

    def on_timer(self, timer: Any, collector: Any, coordinator: Any) -> None:
        collector.emit(key=timer.key, value=timer.key)


def ticking() -> ps.StreamApplication:
    """A task in processing time, a window behind it, and another one behind a durable intermediate stream."""
    app = ps.StreamApplication("ticks")
    ticks = app.input("m.in", key=ps.String(), timestamp=lambda value: value).process(
        Ticker, timers=ps.String(), id="ticker"
    )
    counts = {"n": ps.Count()}
    first = ticks.window(ps.Windows.tumbling(HOUR, aggregates=counts, time="processing"), id="first")
    first = first.map(lambda pane: pane.message["n"], id="numbers")
    moved = first.partition_by(lambda n: "all", key=ps.String(), through="m.by-n", id="moved")
    second = moved.window(ps.Windows.tumbling(HOUR, aggregates={"n": ps.Sum()}, time="processing"), id="second")
    second.map(lambda pane: pane.message["n"], id="sums").send_to(app.output("m.out"))
    return app


def test_what_comes_after_the_drain_of_an_operator_waits_before_it(timed_world: TimedWorld) -> None:
    """The task in front of it has timers that are due before the second operator has drained."""
    config = {"job.batch.interval.ms": 1000, "systems.m.samza.factory": "memory"}
    driver = timed_world.make(ticking().graph(), config)
    driver.loop.start()
    clock = timed_world.clock
    timed_world.append("in", 0, *((NOW, b"a", b"1"), (NOW, b"b", b"2")))
    steps(driver)
    clock.advance(60)
    steps(driver)
    timed_world.append("in", 0, (NOW, b"c", b"3"))
    steps(driver)
    asked = timed_world.ask_to_drain(driver, "first", "second")
    while "first" not in driver.loop.boundary.drained_operators:
        assert not driver.loop.step()
    clock.advance(60)
    ends(driver)
    assert timed_world.checkpoints[-1].section(DRAIN).answered == (str(asked.uuid),)
    again = timed_world.make(ticking().graph(), config)
    again.loop.start()
    timed_world.ask_to_drain(again)
    ends(again)
    assert sum(json.loads(data or b"0") for _, _, data, *_ in timed_world.records("out")) == 3


@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize("more", [(), ("one",)], ids=["all", "one"])
def test_a_request_for_what_comes_before_an_operator_that_has_drained(
    timed_world: TimedWorld, more: tuple[str, ...], through: bool
) -> None:
    """The first operator then sends to the second one, which has drained: the drain begins anew."""
    timed_world.through = through
    driver = waits(timed_world)
    asked = [timed_world.ask_to_drain(driver, "two")]
    while not driver.loop.boundary.drained_operators:
        assert not driver.loop.step()
    asked.append(timed_world.ask_to_drain(None, *more))
    ends(driver)
    assert timed_world.checkpoints[-1].section(DRAIN).answered == tuple(sorted(str(each.uuid) for each in asked))
    assert timed_world.came() == ALL, "nothing is left that waits in either operator"
    drain_all(timed_world)
    assert timed_world.came() == ALL


def totals(*, by_column: bool) -> ps.StreamApplication:
    app = ps.StreamApplication("totals")
    value = ps.Columns(pa.schema({"n": pa.int64()})) if by_column else ps.Json()
    addend = ps.col("n") if by_column else lambda row: row["n"]
    rows = app.input("m.in", key=ps.String(), value=value)
    rows.aggregate({"count": ps.Count(), "sum": ps.Sum(addend)}, id="totals").send_to(app.output("m.out"))
    panes = rows.window(ps.Windows.tumbling(HOUR, aggregates={"n": ps.Count()}), id="panes")
    panes.map(lambda pane: 1).send_to(app.output("m.panes"))
    return app


@pytest.mark.parametrize("end", ["alone", "all", "crash"])
@pytest.mark.parametrize("by_column", [False, True])
def test_an_aggregate_keeps_its_totals_whatever_is_drained(by_column: bool, end: str) -> None:
    """Nothing waits in it, and nothing of it was sent."""
    runner = TestRunner(totals(by_column=by_column)).input("m.in", [("a", {"n": 1}), ("a", {"n": 2})]).run().commit()
    runner = runner.crash() if end == "crash" else runner.drain(["totals"] if end == "alone" else [])
    runner.restore().input("m.in", [("a", {"n": 3})]).run()
    assert [message.value for message in runner.output("m.out")][-1] == {"count": 3, "sum": 6}


@pytest.mark.parametrize("by_column", [False, True])
def test_an_aggregate_keeps_its_totals_beyond_the_end_of_its_streams(by_column: bool, tmp_path: Path) -> None:
    """As a job that is started each day, and ends with what its inputs hold then."""
    with closing(World(tmp_path, "totals", ("in", "out", "panes"))) as world:
        for n in (1, 2, 3):
            world.append("in", 0, (0, b"a", json.dumps({"n": n}).encode()))
            driver = world.make(totals(by_column=by_column).graph(), {}, memory=not by_column, until_latest=True)
            driver.loop.run()
            assert world.checkpoints[-1].ended == "end-of-stream"
            driver.close()
        found = [json.loads(record[2] or b"") for record in world.records("out")]
        assert len(list(world.records("panes"))) == 3, "each end of the stream closes the windows"
    assert found == [{"count": 1, "sum": 1}, {"count": 2, "sum": 3}, {"count": 3, "sum": 6}]


ALONE = {"all": (), "one": ("one",), "two": ("two",)}


@pytest.mark.few(6)
@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize(
    ("kept", "gone"), [("one", "all"), ("two", "all"), ("one", "two"), ("two", "one"), ("all", "one")]
)
@pytest.mark.parametrize("steps_before", [0, 1, 2, 3])
def test_one_request_is_taken_back(
    timed_world: TimedWorld, kept: str, gone: str, deleted: bool, steps_before: int
) -> None:
    """The run obeys those that are left alone, as if the others had never been."""
    timed_world.through = True
    driver = waits(timed_world)
    left, other = timed_world.ask_to_drain(driver, *ALONE[kept]), timed_world.ask_to_drain(driver, *ALONE[gone])
    for _ in range(steps_before):
        driver.loop.step()
    assert not timed_world.checkpoints[-1].section(DRAIN).answered
    if deleted:
        timed_world.drains.delete([other])
    else:
        timed_world.drains.cancel(other, "somebody")
    ends(driver)
    verify(timed_world, "drained" if kept == "all" else "stopped", left, alone=ALONE[kept])
    timed_world.put(90, 90)
    drain_all(timed_world)
    assert timed_world.came().keys() >= {0, 1, 2, 3}
