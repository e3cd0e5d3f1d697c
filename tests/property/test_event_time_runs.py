"""Whole jobs under random schedules: where event times ascend in each partition, nothing is ever late and nothing is
lost, at operators in a row, whatever is run again, lost, restarted or idle."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.testing.in_process import InProcessDriver
from penstock.wire.ports import RunBrokenError
from tests.support.tools.profiles import examples
from tests.support.world import timed_job
from tests.support.world.sums_job import once, raising
from tests.support.world.timed_job import TASKS, TimedWorld, steps


@pytest.fixture(autouse=True, scope="module")
def _one_message_at_most() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timed_job, "AT_MOST", 1)
        yield


class Life:
    """A job, and what may happen to it."""

    def __init__(self, world: TimedWorld) -> None:
        self.world = world
        self.times = [0] * TASKS
        self.driver: InProcessDriver = world.started()

    def put(self, partition: int, delays: list[int]) -> None:
        for delay in delays:
            self.times[partition] += delay
            self.world.put(self.times[partition], partition=partition)

    def step(self, _: Any) -> None:
        self.driver.loop.step()

    def run(self, _: Any) -> None:
        steps(self.driver)

    def commit(self, _: Any) -> None:
        self.driver.loop.commit()

    def lose(self, step: str) -> None:
        self.driver.fleet.at = self.driver.runner.at = once(step, lambda: self.driver.fleet.lose(0))

    def breaks(self, step: str) -> None:
        self.driver.runner.at = once(step, raising(RunBrokenError("broken")))

    def restart(self, _: Any) -> None:
        self.driver.close()
        self.driver = self.world.started()

    def take_over(self, _: Any) -> None:
        """Another driver claims the job while the first one has not ended."""
        self.driver = self.world.started()

    def clock(self, by_s: int) -> None:
        self.world.clock.correct(by_s * 1000)


events = st.one_of(
    st.tuples(st.just("put"), st.integers(0, TASKS - 1), st.lists(st.integers(0, 30), max_size=12)),
    st.tuples(st.sampled_from(["step", "run", "run", "commit", "restart", "take_over"]), st.none()),
    st.tuples(st.just("lose"), st.sampled_from(["start-run", "stage 1", "sink", "end"])),
    st.tuples(st.just("breaks"), st.sampled_from(["source", "stage 2", "reports"])),
    st.tuples(st.just("clock"), st.integers(-7200, 7200)),
)


@examples(0.5)
@given(st.booleans(), st.booleans(), st.lists(events, max_size=14))
def test_nothing_is_late_and_nothing_is_lost(apart: bool, through: bool, schedule: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(TimedWorld(Path(folder), apart, through=through)) as world:
        world.config |= {"job.retry.max": 100, "streams.m.in.idle.ms": 10**12}
        life = Life(world)
        for name, *arguments in schedule:
            happens: Callable[..., None] = getattr(life, name)
            happens(*arguments)
        life.driver.close()
        last = world.driver(until_latest=True)
        last.loop.run()
        assert world.came() == {number: [] for number in world.given}
        assert last.loop.boundary.closed
        assert last.loop.boundary.next_due == {}, "the stores are empty"
