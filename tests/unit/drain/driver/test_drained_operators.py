"""Operators that are drained alone: what waits in them fires, and all others keep what waits in them."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any

import pytest

import penstock as ps
from penstock.api.requests import DrainMode, DrainNotification
from penstock.batch.watermarks import TIME
from penstock.drain.asking import write_drain_notification
from penstock.drain.driver.drain import Drain
from penstock.drain.requests import DRAIN, DrainRequests
from penstock.testing import TestRunner
from penstock.testing.in_process import InProcessDriver
from tests.support.world.timed_job import HoldNode, TimedWorld, steps

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


def waits(world: TimedWorld) -> InProcessDriver:
    """A driver with a checkpoint and messages that wait for time; more messages come."""
    driver = world.started()
    world.put(10, 20, 30, 40)
    steps(driver)
    driver.loop.commit()
    world.put(50, 60)
    return driver


def ask(world: TimedWorld, *operators: str) -> DrainNotification:
    mode = DrainMode.OPERATORS if operators else DrainMode.DEFAULT
    return write_drain_notification(world.objects, world.paths, mode, operators=operators)


def ends(driver: InProcessDriver) -> None:
    for _ in range(20):
        if driver.loop.run_to_the_end():
            driver.close()
            return
    raise AssertionError("the run does not end")


def controls() -> list[str]:
    return [batch.control for batch in HoldNode.batches if batch.control != "none"]


def test_the_run_ends_with_a_record_of_all_the_rest(timed_world: TimedWorld) -> None:
    driver = waits(timed_world)
    positions, before = driver.loop.boundary.positions, timed_world.came()
    asked = ask(timed_world, "one")
    driver.loop.parts.of(Drain).ask()
    ends(driver)
    assert timed_world.came() == before, "the last message waits in the second operator"
    last = timed_world.checkpoints[-1]
    assert (last.ended, last.section(DRAIN).answered, last.reset_operators) == ("stopped", (str(asked.uuid),), ("one",))
    assert {at: last.next_offsets[at.task][at.ssp] for at in positions} == dict(positions)
    assert last.section(TIME).event_times, "event time goes on"
    assert DrainRequests(timed_world.objects, timed_world.paths).find().notifications == ()
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
    asked = [ask(timed_world, "two"), ask(timed_world, "one")]
    driver.loop.parts.of(Drain).ask()
    ends(driver)
    assert timed_world.came() == {n: [] for n in range(4)}, "what the first one let go came to the second one"
    assert timed_world.checkpoints[-1].section(DRAIN).answered == tuple(sorted(str(each.uuid) for each in asked))
    assert timed_world.checkpoints[-1].ended == "stopped"


@pytest.mark.parametrize("whole_first", [False, True])
def test_a_request_for_all_counts_more(timed_world: TimedWorld, whole_first: bool) -> None:
    driver = waits(timed_world)
    ask(timed_world, *(() if whole_first else ("one",)))
    driver.loop.parts.of(Drain).ask()
    driver.loop.step()
    ask(timed_world, *(("one",) if whole_first else ()))
    ends(driver)
    assert timed_world.came() == {n: [] for n in range(4)}
    assert timed_world.checkpoints[-1].ended == "drained"
    assert len(timed_world.checkpoints[-1].section(DRAIN).answered) == 2


def test_it_is_cancelled(timed_world: TimedWorld) -> None:
    driver = waits(timed_world)
    asked = ask(timed_world, "one")
    driver.loop.parts.of(Drain).ask()
    driver.loop.step()
    assert set(controls()) == {"drain-operators"}
    DrainRequests(timed_world.objects, timed_world.paths).cancel(asked, "somebody")
    driver.loop.step()
    assert not driver.loop.boundary.ends
    steps(driver)
    timed_world.put(90, 90)
    steps(driver)
    assert timed_world.came().keys() >= {0, 1, 2, 3, 4}


def test_the_driver_is_killed_before_the_record(timed_world: TimedWorld) -> None:
    driver = waits(timed_world)
    asked = ask(timed_world, "one")
    driver.loop.parts.of(Drain).ask()
    driver.loop.step()
    assert driver.loop.boundary.drained_operators == {"one"}
    timed_world.kill(driver)
    second = timed_world.started()
    ends(second)
    last = timed_world.checkpoints[-1]
    assert (last.section(DRAIN).answered, last.reset_operators) == ((str(asked.uuid),), ("one",))


def test_a_container_is_lost_behind_the_record(timed_world: TimedWorld) -> None:
    driver = waits(timed_world)
    asked, opened = ask(timed_world, "one"), threading.Event()

    def at(step: str) -> None:
        if step == "open":
            opened.set()
        if step == "clean-up" and driver.board.phase == "stopping" and not opened.is_set():
            driver.fleet.lose(1)
            assert opened.wait(60)

    driver.loop.parts.of(Drain).ask()
    driver.fleet.at = at
    ends(driver)
    assert opened.is_set()
    last = timed_world.checkpoints[-1]
    assert (last.ended, last.section(DRAIN).answered, last.reset_operators) == ("stopped", (str(asked.uuid),), ("one",))
    assert last.batch == timed_world.checkpoints[-2].batch, "nothing was read between the two"


def test_a_request_for_an_operator_that_is_not_there(timed_world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
    driver = waits(timed_world)
    with caplog.at_level(logging.WARNING):
        ask(timed_world, "three")
        driver.loop.parts.of(Drain).ask()
        assert steps(driver) > 0
    assert "to drain `three` is deleted, and nothing drains for it" in caplog.text
    assert DrainRequests(timed_world.objects, timed_world.paths).find().notifications == ()
