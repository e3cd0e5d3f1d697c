"""`task.callback.*.timeout.ms`: what takes too long is named, and the run fails."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

import penstock.runtime.operators.base as steps_module
import penstock.runtime.stage.sink as sink_module
from penstock.drain.requests import DRAIN
from penstock.errors import PenstockTimeoutError
from penstock.runtime.operators.join import StreamJoin
from penstock.runtime.operators.tasks import Process
from penstock.runtime.operators.window import WindowOperator
from penstock.testing.in_process import InProcessDriver
from penstock.testing.in_process_ports import InProcessFleet
from penstock.wire.ports import RunBrokenError
from tests.support.tools.fixtures import fixture_of
from tests.support.world.timed_job import HoldNode, TimedWorld, steps
from tests.support.world.waiting_job import Last, Waiting
from tests.support.world.world import ends

LIMIT_MS = 60_000
PASSED_S = 100.0


class Clock:
    """The machine's clock, which may jump."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def jump(self) -> Any:
        self.ahead += PASSED_S


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (steps_module, sink_module):
        monkeypatch.setattr(module, "time", clock)
    return clock


job = fixture_of(Waiting)


def fails_and_then_drains(job: Waiting, driver: InProcessDriver, said: str) -> None:
    """The run fails with this, has not drained, and its next start drains."""
    asked = str(job.ask_to_drain(driver).uuid)
    with pytest.raises(PenstockTimeoutError, match=said) as caught:
        ends(driver)
    assert "task.callback.drain.timeout.ms is 60000. The run has not drained: its request stays" in str(caught.value)
    assert job.checkpoints[-1].ended is None
    assert [str(each.uuid) for each in job.drains.find().notifications] == [asked]
    driver.close()
    Last.on_draining = staticmethod(lambda: None)
    job.config = {}
    ends(job.started())
    last = job.checkpoints[-1]
    assert (last.ended, last.section(DRAIN).answered) == ("drained", (asked,))
    assert {str(each) for each in job.came() if each[0] != "drained"} == job.results()
    assert job.drains.find().notifications == ()


def test_on_drain_that_takes_too_long(job: Waiting, clock: Clock) -> None:
    job.config["task.callback.drain.timeout.ms"] = LIMIT_MS
    driver = job.waits()
    Last.on_draining = staticmethod(clock.jump)
    fails_and_then_drains(job, driver, r"operator `last` \(`on_drain`\) in task 0, stage 2 has taken 100,\d\d\d ms")


@pytest.mark.few(1)
@pytest.mark.parametrize("operator", ["hours", "remind", "pairs"])
def test_an_operator_that_drains_long(
    job: Waiting, operator: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: dict[str, type[Any]] = {"hours": WindowOperator, "remind": Process, "pairs": StreamJoin}
    kind = kinds[operator]
    build = kind.build

    def build_slow(own: Any, *context: Any) -> Any:
        node = build(own, *context)
        step = node.on_end_of_input

        def slow_step(batch: Any) -> Iterator[Any]:
            if batch.control == "drain" and job.config:
                clock.jump()
            yield from step(batch)

        node.on_end_of_input = slow_step
        return node

    job.config["task.callback.drain.timeout.ms"] = LIMIT_MS
    monkeypatch.setattr(kind, "build", build_slow)
    driver = job.waits()
    fails_and_then_drains(job, driver, rf"operator `{operator}`.* in task 0, stage 1 has taken")


def test_outputs_that_take_too_long(job: Waiting, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    job.config["task.callback.drain.timeout.ms"] = LIMIT_MS
    driver = job.waits()
    writer = job.systems["m"].writer
    monkeypatch.setattr(job.systems["m"], "writer", lambda identity: (job.config and clock.jump()) or writer(identity))
    fails_and_then_drains(job, driver, "the append to the output `m.out` has taken")


@pytest.mark.few(1)
@pytest.mark.parametrize("limit", [0, -1])
def test_no_limit_is_none(job: Waiting, clock: Clock, limit: int) -> None:
    """Not even that of a call that makes no progress."""
    job.config["task.callback.drain.timeout.ms"] = limit
    seen = beats_in_on_drain(job, clock)
    assert seen == [(0.0, "", "")] * len(seen)
    assert job.checkpoints[-1].ended == "drained"


def test_without_the_key_the_rule_for_messages_holds(job: Waiting, clock: Clock) -> None:
    seen = beats_in_on_drain(job, clock)
    assert all(stalled > 900 and not overdue for stalled, overdue, _ in seen)
    assert job.checkpoints[-1].ended == "drained"


def test_a_beat_says_what_takes_too_long_while_it_runs(job: Waiting, clock: Clock) -> None:
    """It may never return."""
    job.config["task.callback.drain.timeout.ms"] = LIMIT_MS
    with pytest.raises(PenstockTimeoutError):
        beats_in_on_drain(job, clock)


def beats_in_on_drain(job: Waiting, clock: Clock) -> list[tuple[float, str, str]]:
    """The time for which the attempt has stood still 1,000 s after a first look, and the steps that are overdue."""
    driver = job.waits()
    seen = []

    def look() -> None:
        clock.jump()
        for task in range(2):
            container = driver.fleet.container_of(task)
            attempts = container.tasks and container._epoch and container._epoch.attempts
            assert attempts
            for running in list(attempts._running.values()):
                running.stalled_seconds(time.monotonic())
                stalled, overdue = running.stalled_seconds(time.monotonic() + 1000), running.overdue()
                beat = container.beat(0)
                assert re.sub(r"[\d,]+ ms", "ms", beat.overdue) == re.sub(r"[\d,]+ ms", "ms", overdue)  # time goes on
                if (
                    "task.callback.drain.timeout.ms" in job.config
                    and job.config["task.callback.drain.timeout.ms"] == LIMIT_MS
                ):
                    assert "operator `last` (`on_drain`)" in overdue
                seen.append((stalled, overdue, beat.overdue))

    Last.on_draining = staticmethod(look)
    job.ask_to_drain(driver)
    ends(driver)
    assert seen
    return seen


def test_a_run_fails_with_what_a_container_reports(job: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batch was cancelled because something does not return."""
    driver = job.waits()
    job.ask_to_drain(driver)

    def cancelled(step: str) -> None:
        if step == "stage 2":
            monkeypatch.setattr(InProcessFleet, "overdue", property(lambda _: "operator `last` does not return"))
            raise RunBrokenError("the run was cancelled")

    driver.runner.at = cancelled
    with pytest.raises(PenstockTimeoutError, match="operator `last` does not return"):
        ends(driver)
    assert job.checkpoints[-1].ended is None
    assert len(job.drains.find().notifications) == 1


class TestWatermarks:
    """Operators that fire because time has passed."""

    def fires_slowly(self, world: TimedWorld, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> InProcessDriver:
        let_go = HoldNode._let_go
        monkeypatch.setattr(HoldNode, "_let_go", lambda own, *given: clock.jump() or let_go(own, *given))
        world.put(10, 20, 30, 40, 500, 600)
        return world.started()

    def test_one_that_takes_too_long(
        self, timed_world: TimedWorld, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        timed_world.config["task.callback.watermark.timeout.ms"] = LIMIT_MS
        driver = self.fires_slowly(timed_world, clock, monkeypatch)
        with pytest.raises(PenstockTimeoutError) as caught:
            steps(driver)
        assert "operator `one` (let go) in task" in str(caught.value)
        assert "task.callback.watermark.timeout.ms is 60000. Find out what it waits for" in str(caught.value)

    @pytest.mark.parametrize("limit", [0, -1, 10**9, None])
    def test_no_limit_or_a_long_one(
        self, timed_world: TimedWorld, clock: Clock, monkeypatch: pytest.MonkeyPatch, limit: int | None
    ) -> None:
        if limit is not None:
            timed_world.config["task.callback.watermark.timeout.ms"] = limit
        timed_world.config["task.callback.drain.timeout.ms"] = 1
        steps(self.fires_slowly(timed_world, clock, monkeypatch))
        assert timed_world.came(), "a drain's limit is for a drain"
