"""Times of operators: each one's own, however they are nested, and whatever fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.metrics.registry import MetricsRegistry
from penstock.metrics.snapshot import TimerValue
from penstock.runtime import meters
from penstock.runtime.meters import REPORTED_NS, OperatorClock
from penstock.testing import SettableClock
from tests.support.world.sums_job import drain
from tests.support.world.world import World


def spend(ms: float) -> None:
    until = time.perf_counter() + ms / 1000
    while time.perf_counter() < until:
        pass


def taken(clock: OperatorClock) -> dict[str, float]:
    metrics = MetricsRegistry("Partition 0", "operator.")
    clock.take(metrics)
    found = {key.group.removeprefix("operator."): value for key, value in metrics.snapshot().items()}
    return {name: value.total_ns / 1e6 for name, value in found.items() if isinstance(value, TimerValue)}


def test_an_operator_has_its_own_time_and_not_that_of_those_behind_it() -> None:
    clock, seen = OperatorClock(), []

    def last(ms: float) -> None:
        seen.append(clock.current)
        spend(ms)

    behind = clock.timed("behind", last)

    def first(ms: float) -> None:
        spend(ms)
        behind(2 * ms)
        seen.append(clock.current)

    before = clock.timed("before", first)
    before(20)
    assert seen == ["behind", "before"]
    assert clock.current == ""
    found = taken(clock)
    assert found["before"] >= 20
    assert found["behind"] >= 40
    assert taken(clock) == {}, "each time is reported once"


def test_short_times_wait_until_they_are_worth_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only the operator moves: a busy machine would make a short time long."""
    now = [0]
    monkeypatch.setattr(meters, "perf_counter_ns", lambda: now[0])
    clock = OperatorClock()

    def spend_a_third(_: object) -> None:
        now[0] += REPORTED_NS // 3 + 1

    call = clock.timed("short", spend_a_third)
    for _ in range(2):
        call(None)
        assert taken(clock) == {}
    call(None)
    assert taken(clock)["short"] >= REPORTED_NS / 1e6


def test_a_failure_leaves_the_clock_with_whoever_called() -> None:
    clock = OperatorClock()

    def fail(_: object) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        clock.timed("fails", fail)(None)
    assert clock.current == ""


class Slow(ps.StreamTask):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        spend(8)
        collector.emit(key=envelope.key, value=envelope.value)


def slow(value: int) -> int:
    spend(2)
    return value


@pytest.mark.parametrize("apart", [False, True])
def test_the_slow_operator_of_a_job_is_found(tmp_path: Path, apart: bool) -> None:
    """The times of a chain of functions, of a task behind it, in one stage and behind an exchange."""
    world = World(tmp_path, "slow", ("in", "out"), 1, clock=SettableClock())
    app = ps.StreamApplication("slow")
    stream = app.input("m.in", key=ps.String(), value=ps.Integer()).map(slow, id="slow").map(lambda v: v, id="quick")
    stream = stream.partition_by(lambda value: str(value)) if apart else stream
    task: Callable[..., Any] = stream.process
    task(Slow, id="slower").send_to(app.output("m.out", key=ps.String(), value=ps.Integer()))
    driver = world.make(app.graph(), {"job.batch.max.messages": 100}, containers=1)
    driver.loop.start()
    for number in range(12):
        world.append("in", 0, (0, b"k", ps.Integer().to_bytes(number)))
    drain(driver)
    shown = driver.board.metrics.snapshot()
    found = {
        key.group: value.total_ns
        for key, value in shown.items()
        if key.name == "busy-ns" and isinstance(value, TimerValue)
    }
    assert max(found, key=found.__getitem__) == "operator.slower"
    assert found["operator.slower"] >= 12 * 8e6
    assert 12 * 2e6 <= found["operator.slow"] < found["operator.slower"]
    assert "operator.quick" not in found
    driver.close()
    world.close()
