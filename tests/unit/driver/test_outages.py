"""A system that is away: the run waits, whatever it was doing, and then continues as if nothing had happened."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.driver.failures import LONGEST_PAUSE_SECONDS
from penstock.errors import PenstockError, SystemAwayError
from penstock.system.memory import MemorySystem, _Partition
from tests.support.world.sums_job import SumsWorld, drain, drain_and_commit, once

TEXT = "the stream could not be looked at: nobody answers at 127.0.0.1:9"


class AwaySystem(MemorySystem):
    """Messages in memory that cannot be reached for the next `left` requests."""

    left = 0
    asked: Callable[[], object] = staticmethod(lambda: None)
    """Called at each request that gets no answer."""

    def partitions(self, stream: str) -> list[_Partition]:
        self._answer()
        return super().partitions(stream)

    def partition(self, ssp: SystemStreamPartition) -> _Partition:
        self._answer()
        return super().partition(ssp)

    def leave(self, requests: int) -> None:
        self.left = requests

    def _answer(self) -> None:
        if self.left:
            self.left -= 1
            self.asked()
            raise SystemAwayError(TEXT)


@pytest.fixture
def system() -> AwaySystem:
    return AwaySystem("m")


@pytest.fixture
def world(tmp_path: Path, system: AwaySystem) -> Iterator[SumsWorld]:
    world = SumsWorld(tmp_path, system)
    yield world
    system.left = 0
    world.close()


@pytest.mark.few(2)
@pytest.mark.parametrize("step", ["start-run", "source", "sink", "reports", "end"])
def test_the_run_continues_and_nothing_counts(world: SumsWorld, system: AwaySystem, step: str) -> None:
    driver = world.started(job_retry_max=0)
    world.put(*range(20))
    driver.fleet.at = driver.runner.at = once(step, lambda: system.leave(40))
    while not system.left:
        driver.loop.step()
    while system.left:
        driver.loop.step()
    drain(driver)
    world.check(driver)
    driver.loop.commit()
    driver.loop.step()
    assert driver.board.outage is None


def test_what_it_says(world: SumsWorld, system: AwaySystem, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "penstock.driver.failures")
    driver = world.started(job_retry_max=0)
    system.leave(400)
    began_ms = world.clock.now_ms()
    while system.left > 1:
        driver.loop.step()
        assert driver.board.outage is not None
        assert driver.board.outage.reason == TEXT
        assert abs(driver.board.outage.since_ms - began_ms) < 1000
    assert max(world.clock.waited) == LONGEST_PAUSE_SECONDS
    while driver.board.outage is not None:
        driver.loop.step()
    first, *others, last = [record.message for record in caplog.records]
    assert first == f"a system is away; the job waits for it and keeps trying: {TEXT}"
    assert last.startswith("the job continues after ")
    hours = (world.clock.now_ms() - began_ms) / 3_600_000
    assert hours > 1
    assert 5 < len(others) < 20  # at growing intervals
    assert all(TEXT in each and "waits since 2020-09-13" in each for each in others)


@pytest.mark.parametrize("step", ["source", "open"])
def test_a_graceful_stop_ends_the_run_while_it_waits(world: SumsWorld, system: AwaySystem, step: str) -> None:
    world.put(*range(8))
    driver = world.driver(job_retry_max=1)  # the container that is lost counts
    asked: list[int] = []

    def ask() -> None:
        asked.append(1)
        if len(asked) == 10:
            driver.stop.request()

    def leave() -> None:
        system.asked = ask
        system.leave(1_000_000)

    driver.loop.start()
    if step == "open":
        driver.fleet.lose(0)
        leave()
    else:
        driver.runner.at = once(step, leave)
    driver.loop.run_to_the_end()
    assert len(asked) >= 10
    system.left = 0
    driver.close()
    second = world.started()
    drain(second)
    world.check(second)


def test_a_new_epoch_waits_as_well(world: SumsWorld, system: AwaySystem) -> None:
    world.put(*range(8))
    driver = world.driver(job_retry_max=1)  # the container that is lost counts
    driver.loop.start()
    drain_and_commit(driver)
    world.put(*range(8, 16))
    driver.fleet.lose(1)
    system.leave(30)
    while system.left:
        driver.loop.step()
    drain(driver)
    world.check(driver)


def test_a_start_does_not_wait_for_ever(world: SumsWorld, system: AwaySystem) -> None:
    system.leave(1)
    with pytest.raises(SystemAwayError, match="nobody answers"):
        world.driver()
    driver = world.driver(job_retry_max=2)
    system.leave(1_000)
    with pytest.raises(PenstockError, match=r"3 failures since the start of the run; job\.retry\.max is 2") as caught:
        driver.loop.start()
    assert f"The last one: {TEXT}. The run has written no checkpoint; start" in str(caught.value)


def test_a_start_waits_for_a_system_that_restarts(world: SumsWorld, system: AwaySystem) -> None:
    """Between the look at all systems and the start checkpoint."""
    world.put(*range(8))
    driver = world.driver()
    before, said = len(world.clock.waited), []
    system.asked = lambda: said.append(driver.board.outage)
    system.leave(5)
    driver.loop.start()
    assert world.clock.waited[before:][:5] == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert said[0] is None
    assert all(each is not None and each.reason == TEXT for each in said[1:])
    drain(driver)
    assert driver.board.outage is None
    world.check(driver)
