"""Random schedules of a whole job in one process: lost containers, broken runs, crashes, competing drivers, commits
that die before or behind their record. Whatever the schedule, the state is the sum of what was put in."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.errors import ContainerLostError, FencedError, PenstockError
from penstock.testing.in_process import InProcessDriver
from penstock.wire.ports import RunBrokenError
from tests.support.world.sums_job import TASKS, SumsWorld, drain, once, raising

BATCH_STEPS = ("start-run", "source", "stage 1", "sink", "reports", "end")
COMMIT_STEPS = ("snapshot", "upload", "clean-up")
ACTIONS = 25


class Schedule:
    """One schedule, from its seed. `story` says what happened."""

    def __init__(self, seed: int, folder: Path, through: str | None) -> None:
        self.random = random.Random(seed)
        self.world = SumsWorld(folder, through=through)
        self.story: list[str] = []
        self.driver = self._next()

    def run(self) -> None:
        """All actions, then everything is read, and checked."""
        for _ in range(ACTIONS):
            self._act()
        drain(self.driver)
        self.world.check(self.driver, exactly_once=False)

    def _act(self) -> None:
        actions = (self._put, self._put, self._step, self._step, self._lose, self._break, self._commit, self._crash)
        action = self.random.choice((*actions, self._compete))
        self.story.append(action.__name__)
        action()

    def _next(self) -> InProcessDriver:
        return self.world.started(job_retry_max=1000)

    def _put(self) -> None:
        self.world.put(*(self.random.randrange(1, 50) for _ in range(self.random.randrange(1, 8))))

    def _step(self) -> None:
        self.driver.loop.step()

    def _lose(self) -> None:
        """A container is lost at a step of the next batch."""
        driver, task, step = self.driver, self.random.randrange(TASKS), self.random.choice(BATCH_STEPS)
        driver.fleet.at = driver.runner.at = once(step, lambda: driver.fleet.lose(task))
        self._step()

    def _break(self) -> None:
        """A run breaks off at a step."""
        self.driver.runner.at = once(self.random.choice(BATCH_STEPS[1:-1]), raising(RunBrokenError("broken")))
        self._step()

    def _commit(self) -> None:
        """A commit, in which nothing happens, a container is lost, or the process dies."""
        driver, step = self.driver, self.random.choice(COMMIT_STEPS)
        fault = self.random.choice(("none", "lost", "dies"))
        if fault == "lost":
            driver.fleet.at = once(step, lambda: driver.fleet.lose(0))
        if fault == "dies":
            driver.fleet.at = once(step, raising(PenstockError("the process died")))
        self.story.append(f"{step}: {fault}")
        try:
            driver.loop.commit()
        except ContainerLostError:
            self._step()
        except PenstockError:
            self._crash()

    def _crash(self) -> None:
        self.driver.close()
        self.driver = self._next()

    def _compete(self) -> None:
        """Another driver takes the job over while this one goes on."""
        old, self.driver = self.driver, self._next()
        self._put()
        with pytest.raises(FencedError):
            drain(old)
        with pytest.raises((FencedError, ContainerLostError)):  # it may also have lost a container just before
            old.loop.commit()
        old.close()


SEEDS = range(100)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("through", [None, "m.by-key"])
def test_state_is_the_sum_of_what_was_put_in(through: str | None, seed: int, tmp_path: Path) -> None:
    schedule = Schedule(seed, tmp_path, through)
    try:
        schedule.run()
    except BaseException as error:
        error.add_note(f"seed {seed}: {', '.join(schedule.story)}")
        raise
    finally:
        schedule.world.close()
