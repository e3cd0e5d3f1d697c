"""Timers in whole jobs, on drivers and containers of this process: the schedules that must go well."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

import penstock as ps
from penstock.runtime.operators import task_timers
from penstock.testing.in_process import InProcessDriver
from penstock.wire.ports import RunBrokenError
from tests.support.tools.fixtures import fixture_of
from tests.support.world.sums_job import once, raising
from tests.support.world.timed_job import NOW, TimedWorld, steps, steps_and_commit

WAIT_MS = 10


class Wait(ps.StreamTask):
    """A timer in each domain for every message: `WAIT_MS` behind its time, and a minute behind the time `NOW`."""

    def init(self, context: ps.TaskContext) -> None:
        self.context, self.fired = context, context.store("fired")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        n = envelope.value["n"]
        self.context.schedule(n, envelope.timestamp + WAIT_MS)
        self.context.schedule(n, NOW + 60_000 + n, "minute", "processing")

    def on_timer(self, timer: ps.ExpiredTimer, collector: Any, coordinator: Any) -> None:
        count = self.fired.get((timer.domain, timer.key), 0) + 1
        self.fired[timer.domain, timer.key] = count
        collector.emit(key="k", value={"n": timer.key, "late": [timer.domain]})


class TimerWorld(TimedWorld):
    task: Any = Wait

    def app(self) -> ps.StreamApplication:
        app = ps.StreamApplication("timed")
        app.store("fired", key=ps.Tuple(ps.String(), ps.Long()), value=ps.Long())
        (policy,) = self.inputs.values()
        events = app.input("m.in", timestamp=lambda v: v["t"], watermark=policy, id="in")
        by_key = events.partition_by(lambda v: v["k"], id="by-key")
        waits = by_key.process(self.task, stores=["fired"], timers=ps.Long(), id="t")
        waits.send_to(app.output("m.out"), id="out")
        return app

    def fired(self, domain: str) -> list[tuple[int, int]]:
        """(n, timestamp) of the timers of a domain, in the order in which each task emitted them."""
        return [(n, timestamp) for n, timestamp, (found,) in self.output() if found == domain]


world = fixture_of(TimerWorld)


def fired_in_state(driver: InProcessDriver) -> dict[tuple[str, int], int]:
    """Timer -> how often it has fired, from the state."""
    found = {}
    for task in range(2):
        engine = driver.fleet.container_of(task).tasks[task].engine("fired")
        for key, value in engine.scan(None, None):
            found[ps.Tuple(ps.String(), ps.Long()).from_bytes(key)] = ps.Long().from_bytes(value)
    return found


def once_each(domain: str, numbers: range) -> dict[tuple[str, int], int]:
    return {(domain, n): 1 for n in numbers}


@pytest.mark.parametrize("step", ["source", "stage 1", "sink", "reports"])
def test_a_timer_is_due_in_a_batch_whose_attempt_is_discarded(world: TimerWorld, step: str) -> None:
    driver = world.started()
    world.put(0, 0)
    steps(driver)
    world.put(50, 50)
    driver.loop.step()
    driver.runner.at = once(step, raising(RunBrokenError("broken")))
    driver.loop.step()
    assert driver.board.metrics.snapshot().total("retries") == 1
    assert fired_in_state(driver) == once_each("event", range(2))
    world.clock.advance(60.002)
    driver.fleet.at = once("end", lambda: driver.fleet.lose(0))
    steps(driver)
    world.clock.advance(1)
    steps(driver)
    assert fired_in_state(driver) == once_each("event", range(2)) | once_each("processing", range(4))
    assert {timestamp for _, timestamp in world.fired("event")} == {WAIT_MS}
    assert min(timestamp for _, timestamp in world.fired("processing")) >= NOW + 60_002


def test_a_million_timers_are_due_after_a_long_stop(world: TimerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch fires a part of them, the next one begins at once, and new messages wait; also if the driver is killed
    in between."""
    number, most = 400, 20
    monkeypatch.setattr(task_timers, "AT_MOST", most)
    world.config["job.batch.max.messages"] = 10_000
    world.inputs["m.in"] = ps.BoundedOutOfOrderness(10**9)
    first = world.started()
    world.put(*range(number))
    steps_and_commit(first)
    first.close()
    world.inputs["m.in"] = None
    world.clock.advance(86_400)
    world.put(number, number)
    second = world.started()
    for _ in range(5):
        second.loop.step()
    assert 0 < len(world.fired("event")) <= 5 * most * 2
    second.loop.commit()
    read = second.loop.boundary.positions
    second.close()
    third = world.started()
    world.put(number, number)
    assert third.loop.boundary.positions == read
    before = third.loop.boundary.batch
    steps(third)
    assert third.loop.boundary.batch - before >= number / 2 / most - 6
    fired = world.fired("event")
    assert sorted(fired) == [(n, n + WAIT_MS) for n in range(number - WAIT_MS + 1)]
    assert sorted(n for n, _ in world.fired("processing")) == [*range(number + 4)]
    assert fired_in_state(third) == once_each("event", range(number - WAIT_MS + 1)) | once_each(
        "processing", range(number + 4)
    )


def test_the_clock_goes_back_between_two_batches_or_between_two_drivers(world: TimerWorld) -> None:
    """No timer fires before its time, and none twice."""
    first = world.started()
    world.put(0, 0)
    steps(first)
    world.clock.correct(-3_600_000)
    world.clock.advance(59)
    steps(first)
    assert world.fired("processing") == []
    world.clock.correct(3_600_000)
    world.clock.advance(2)
    world.put(20, 20)
    steps(first)
    assert sorted(n for n, _ in world.fired("processing")) == [0, 1, 2, 3]
    first.loop.commit()
    stands = first.loop.boundary
    first.close()
    world.clock.correct(-3_600_000)
    world.put(50, 50)
    second = world.started()
    steps(second)
    steps(second)
    assert second.loop.boundary.batch_time_ms == stands.batch_time_ms, "the clock has not caught up"
    assert fired_in_state(second) == once_each("processing", range(6)) | once_each("event", range(4))
    assert all(timestamp >= NOW + 60_000 + n for n, timestamp in world.fired("processing"))
    assert all(timestamp == world.given[n] + WAIT_MS for n, timestamp in world.fired("event"))


def test_timers_fire_although_no_message_comes_and_the_job_waits_for_them(world: TimerWorld) -> None:
    """This holds after a restart, when only the store knows of the timers."""
    first = world.started()
    world.put(0)
    steps(first)
    assert first.loop.boundary.next_processing_ms() == NOW + 60_000
    first.loop.commit()
    first.close()
    world.clock.advance(61)
    second = world.started()
    steps(second)
    assert [n for n, _ in world.fired("processing")] == [0]


def test_a_restart_waits_for_a_timer_as_the_run_before_it(world: TimerWorld) -> None:
    first = world.started()
    world.put(0)
    steps_and_commit(first)
    first.close()
    second = world.started()
    assert second.loop.boundary.next_due == {"t": (WAIT_MS, NOW + 60_000)}
    assert steps(second) == 0, "nothing is due yet"
    world.clock.advance(60)
    assert steps(second) == 1
    assert [n for n, _ in world.fired("processing")] == [0]


def test_a_run_that_does_not_close_leaves_timers_and_one_that_closes_fires_them(world: TimerWorld) -> None:
    world.put(0, 0)
    world.driver(until_latest=True, close=False).loop.run()
    assert world.output() == []
    world.driver(until_latest=True).loop.run()
    assert sorted(n for n, _ in world.fired("event")) == sorted(n for n, _ in world.fired("processing")) == [0, 1]
    assert world.checkpoints[-1].ended == "end-of-stream"


class Counting(ps.WindowableTask):
    """It uses no event time."""

    def init(self, context: ps.TaskContext) -> None:
        self.fired = context.store("fired")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None: ...

    def window(self, collector: Any, coordinator: Any) -> None:
        collector.emit(key="k", value={"n": -1, "late": ["window"]})

    def on_end(self, collector: Any, coordinator: Any) -> None:
        self.fired["end", 0] = self.fired.get(("end", 0), 0) + 1


class WithoutTime(TimerWorld):
    task: Any = Counting

    def app(self) -> ps.StreamApplication:
        app = ps.StreamApplication("timed")
        app.store("fired", key=ps.Tuple(ps.String(), ps.Long()), value=ps.Long())
        app.input("m.in").process(self.task, stores=["fired"], id="t").send_to(app.output("m.out"))
        return app


without_time = fixture_of(WithoutTime)


@pytest.mark.parametrize("made_by_a_function", [False, True])
def test_a_task_without_event_time_gets_its_end(without_time: WithoutTime, made_by_a_function: bool) -> None:
    if made_by_a_function:
        without_time.task = lambda: Counting()
    without_time.put(1, 2, 3)
    without_time.driver(until_latest=True, close=False).loop.run()
    assert without_time.checkpoints[-1].ended == "stopped"
    driver = without_time.driver(until_latest=True)
    driver.loop.run()
    assert fired_in_state(driver) == {("end", 0): 1}
    assert [record.ended for record in without_time.checkpoints][-1] == "end-of-stream"


@pytest.mark.parametrize("wrap", [lambda kind: kind, partial])
def test_a_task_that_does_not_define_on_end_has_none(without_time: WithoutTime, wrap: Any) -> None:
    class Plain(ps.StreamTask):
        def process(self, envelope: Any, collector: Any, coordinator: Any) -> None: ...

    without_time.task = wrap(Plain)
    without_time.put(1)
    without_time.driver(until_latest=True).loop.run()
    assert without_time.checkpoints[-1].ended == "stopped"


@pytest.mark.parametrize("advances_at", ["source", "snapshot"])
def test_a_run_ends_although_its_batches_take_longer_than_a_period(without_time: WithoutTime, advances_at: str) -> None:
    """A period begins in each of them, before the end of the stream and after it."""
    without_time.config |= {"task.window.ms": 10}
    without_time.put(1)
    driver = without_time.driver(until_latest=True)
    driver.loop.start()
    driver.fleet.at = driver.runner.at = lambda step: without_time.clock.advance(1) if step == advances_at else None
    for _ in range(10):
        if driver.loop.step():
            break
        without_time.clock.advance(1)
    driver.loop.finish()
    assert without_time.checkpoints[-1].ended == "end-of-stream"
    assert fired_in_state(driver) == {("end", 0): 1}


class Ending(Wait):
    def on_end(self, collector: Any, coordinator: Any) -> None:
        self.fired["end", 0] = self.fired.get(("end", 0), 0) + 1


def test_a_container_that_is_lost_behind_the_last_record_does_not_end_the_stream_twice(
    world: TimerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimerWorld, "task", Ending)
    world.put(0, 0)
    driver = world.started(until_latest=True)

    opened = threading.Event()

    def at(step: str) -> None:
        if step == "open":
            opened.set()
        if step == "clean-up" and driver.board.phase == "stopping" and not opened.is_set():
            driver.fleet.lose(1)
            assert opened.wait(60)

    driver.fleet.at = at
    while not driver.loop.run_to_the_end():
        pass
    assert world.checkpoints[-1].ended == "end-of-stream"
    assert opened.is_set()
    assert fired_in_state(driver)["end", 0] == 1


def test_a_period_begins_a_batch_although_no_message_comes(without_time: WithoutTime) -> None:
    """The feed waits no longer than until it begins; a broken run calls the task no second time."""
    without_time.config |= {"task.window.ms": 10_000, "job.batch.interval.ms": 3_600_000}
    driver = without_time.started()
    without_time.put(1)
    driver.loop.step()
    assert without_time.output() == []
    driver.loop.step()
    begins = (NOW // 10_000 + 1) * 10_000
    assert without_time.clock.now_ms() == begins, "it has waited until then"
    driver.runner.at = once("reports", raising(RunBrokenError("broken")))
    driver.loop.step()
    found = [(n, timestamp) for n, timestamp, _ in without_time.output()]
    assert set(found) == {(-1, begins)}
    assert driver.loop.boundary.batch == 2
