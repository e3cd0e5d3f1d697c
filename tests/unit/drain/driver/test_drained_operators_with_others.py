"""Operators that are drained alone beside another end of the run, and beside operators that go on meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest

import penstock as ps
from penstock.api.requests import DrainMode, DrainNotification
from penstock.drain.asking import write_drain_notification
from penstock.drain.driver.drain import Drain
from penstock.drain.requests import DRAIN, DrainRequests
from penstock.testing import TestRunner
from penstock.testing.in_process import InProcessDriver
from tests.support.world.timed_job import NOW, HoldNode, TimedWorld, steps

HOUR = 3_600_000


def ask(world: TimedWorld, *operators: str) -> DrainNotification:
    mode = DrainMode.OPERATORS if operators else DrainMode.DEFAULT
    return write_drain_notification(world.objects, world.paths, mode, operators=operators)


def ends(driver: InProcessDriver) -> None:
    for _ in range(60):
        if driver.loop.step() and not driver.loop.boundary.partly_closed:
            assert driver.loop.try_finish()
            driver.close()
            return
    raise AssertionError("the run does not end")


@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize("operators", [("one",), ("two",), ("one", "two")], ids="+".join)
def test_a_request_while_the_stream_is_brought_to_its_end(
    timed_world: TimedWorld, operators: tuple[str, ...], through: bool
) -> None:
    timed_world.through = through
    timed_world.put(10, 20, 30, 40)
    driver = timed_world.started(until_latest=True)
    while not driver.loop.boundary.ends:
        assert not driver.loop.step()
    asked = ask(timed_world, *operators)
    driver.loop.parts.of(Drain).ask()
    ends(driver)
    assert timed_world.came() == {n: [] for n in range(4)}
    assert timed_world.checkpoints[-1].ended == "end-of-stream"
    assert timed_world.checkpoints[-1].section(DRAIN).answered == (str(asked.uuid),)
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
    asked = ask(timed_world, "first", "second")
    driver.loop.parts.of(Drain).ask()
    while "first" not in driver.loop.boundary.drained_operators:
        assert not driver.loop.step()
    clock.advance(60)
    ends(driver)
    assert timed_world.checkpoints[-1].section(DRAIN).answered == (str(asked.uuid),)
    again = timed_world.make(ticking().graph(), config)
    again.loop.start()
    ask(timed_world)
    again.loop.parts.of(Drain).ask()
    ends(again)
    assert sum(json.loads(data or b"0") for _, _, data, *_ in timed_world.records("out")) == 3


@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize("more", [(), ("one",)], ids=["all", "one"])
def test_a_request_for_what_comes_before_an_operator_that_has_drained(
    timed_world: TimedWorld, more: tuple[str, ...], through: bool
) -> None:
    """The first operator then sends to the second one, which has drained: the drain begins anew."""
    timed_world.through = through
    driver = timed_world.started()
    timed_world.put(10, 20, 30, 40)
    steps(driver)
    driver.loop.commit()
    asked = [ask(timed_world, "two")]
    driver.loop.parts.of(Drain).ask()
    while not driver.loop.boundary.drained_operators:
        assert not driver.loop.step()
    asked.append(ask(timed_world, *more))
    ends(driver)
    assert timed_world.checkpoints[-1].section(DRAIN).answered == tuple(sorted(str(each.uuid) for each in asked))
    assert timed_world.came() == {n: [] for n in range(4)}, "nothing is left that waits in either operator"
    again = timed_world.started()
    ask(timed_world)
    again.loop.parts.of(Drain).ask()
    ends(again)
    assert timed_world.came() == {n: [] for n in range(4)}


def test_an_aggregate_that_is_drained_alone_keeps_its_totals() -> None:
    """Nothing waits in it, and nothing of it was sent."""
    app = ps.StreamApplication("totals")
    numbers = app.input("m.in", key=ps.String()).aggregate({"n": ps.Count()}, id="totals")
    numbers.map(lambda total: total["n"]).send_to(app.output("m.out"))
    runner = TestRunner(app).input("m.in", [("a", 1), ("a", 2)]).run().drain(["totals"])
    runner.restore().input("m.in", [("a", 3)]).run()
    assert [message.value for message in runner.output("m.out")][-1] == 3


ALONE = {"all": (), "one": ("one",), "two": ("two",)}


@pytest.mark.few(6)
@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize(
    ("kept", "gone"), [("one", "all"), ("two", "all"), ("one", "two"), ("two", "one"), ("all", "one")]
)
@pytest.mark.parametrize("steps_before", [0, 1, 2, 3])
def test_a_part_of_the_requests_is_taken_back(
    timed_world: TimedWorld, kept: str, gone: str, deleted: bool, steps_before: int
) -> None:
    """The run obeys those that are left alone, as if the others had never been."""
    timed_world.through = True
    driver = timed_world.started()
    timed_world.put(10, 20, 30, 40)
    steps(driver)
    driver.loop.commit()
    left, other = ask(timed_world, *ALONE[kept]), ask(timed_world, *ALONE[gone])
    driver.loop.parts.of(Drain).ask()
    for _ in range(steps_before):
        driver.loop.step()
    assert not timed_world.checkpoints[-1].section(DRAIN).answered
    requests = DrainRequests(timed_world.objects, timed_world.paths)
    requests.delete([other]) if deleted else requests.cancel(other, "somebody")
    ends(driver)
    last = timed_world.checkpoints[-1]
    assert (last.section(DRAIN).answered, last.reset_operators) == ((str(left.uuid),), ALONE[kept])
    assert last.ended == ("drained" if kept == "all" else "stopped")
    assert requests.find().notifications == ()
    again = timed_world.started()
    timed_world.put(90, 90)
    ask(timed_world)
    again.loop.parts.of(Drain).ask()
    ends(again)
    assert timed_world.came().keys() >= {0, 1, 2, 3}


def test_a_request_for_a_stranger_during_a_drain_delays_nothing(timed_world: TimedWorld) -> None:
    driver = timed_world.started()
    timed_world.put(10, 20, 30, 40)
    steps(driver)
    driver.loop.commit()
    asked = ask(timed_world, "two")
    driver.loop.parts.of(Drain).ask()
    driver.loop.step()
    ask(timed_world, "nobody")
    ends(driver)
    assert timed_world.checkpoints[-1].section(DRAIN).answered == (str(asked.uuid),)
