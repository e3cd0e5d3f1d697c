"""Snapshots by time: also of a store that has changed once and does not change any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing import SettableClock
from penstock.testing.in_process import InProcessDriver
from tests.support.jobs.home import wait_until
from tests.support.stores.changelog_job import Job, open_job, zip_key
from tests.support.tools.fixtures import fixture_of
from tests.support.world.sums_job import SumsWorld, drain, drain_and_commit

INTERVAL_S = 60
LATEST_S = INTERVAL_S * 1.25
"""Tasks make theirs a quarter earlier or later, so that not all do it at once."""


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


job = fixture_of(lambda tmp_path, clock: open_job(tmp_path, seconds=INTERVAL_S, clock=clock))


def test_a_store_that_does_not_change_gets_its_snapshot_when_it_is_time(job: Job, clock: SettableClock) -> None:
    task = job.task(1)
    for number in range(3):
        task.commit({b"key": b"%d" % number})
    clock.advance(INTERVAL_S * 0.74)
    task.commit_and_wait()
    assert job.stored("zip") == set(), "it is not time yet"
    clock.advance(LATEST_S - INTERVAL_S * 0.74)
    task.commit_and_wait()
    assert job.stored("zip") == {zip_key(3)}
    clock.advance(LATEST_S)
    last = task.commit_and_wait()
    assert job.stored("zip") == {zip_key(3)}, "nothing is behind it"
    assert last.marker.snapshots == ((3, 1),)
    job.objects.read.clear()
    assert job.restores(last)
    assert not [key for key in job.objects.read if key.endswith(".delta")], "no delta is replayed"


def test_so_does_one_that_has_not_changed_since_the_start(job: Job, clock: SettableClock) -> None:
    """Its versions are of an older epoch: the snapshot is of one of this epoch, which it makes for that."""
    first = job.task(1)
    for number in range(3):
        version = first.commit({b"key": b"%d" % number})
    first.close()
    task = job.task(2, version)
    clock.advance(LATEST_S)
    task.commit_and_wait()
    last = task.commit_and_wait()
    assert job.stored("zip") == {zip_key(4, 2)}
    assert last.marker.snapshots == ((4, 2),)
    assert job.restores(last)
    assert not task.manager.wants_copy("first", changed=False, last=False)


def test_an_empty_store_gets_none(job: Job, clock: SettableClock) -> None:
    task = job.task(1)
    clock.advance(LATEST_S)
    assert not task.manager.wants_copy("first", changed=False, last=False)
    task.commit_and_wait()
    assert job.stored() == set()


def test_the_interval_counts_from_the_last_one_that_was_begun(job: Job, clock: SettableClock) -> None:
    task = job.task(1)
    for round_number in range(3):
        clock.advance(INTERVAL_S * 0.74)
        task.commit({b"key": b"%d" % round_number})
        assert len(job.stored("zip")) == round_number, "it is not time yet"
        clock.advance(LATEST_S - INTERVAL_S * 0.74)
        task.commit_and_wait({b"key": b"%d" % round_number})
        assert len(job.stored("zip")) == round_number + 1


def test_an_interval_of_nothing_is_never(tmp_path: Path, clock: SettableClock) -> None:
    with open_job(tmp_path, clock=clock) as job:
        task = job.task(1)
        task.commit({b"key": b"1"})
        clock.advance(10 * LATEST_S)
        task.commit_and_wait()
        assert job.stored("zip") == set()


def tasks_with(world: SumsWorld, kind: str) -> set[str]:
    """The tasks of a whole job that have objects of this kind."""
    return {key.split("/")[3] for key in world.objects.list("sums-1/state/sums") if key.endswith(f".{kind}")}


world = fixture_of(SumsWorld)


def whole_job(world: SumsWorld, commit_ms: int = 1000) -> InProcessDriver:
    """A driver that has committed three messages."""
    driver = world.started(state_snapshot_interval_seconds=INTERVAL_S, task_commit_ms=commit_ms)
    world.put(1, 2, 3)
    drain_and_commit(driver)
    return driver


def idle(world: SumsWorld, driver: InProcessDriver, seconds: float) -> None:
    """Let so much time pass, in which there is nothing to process."""
    for _ in range(100):
        driver.loop.step()
        driver.loop.await_commit()
        world.clock.advance(seconds / 100)


def test_containers_of_this_process_have_the_drivers_clock(world: SumsWorld) -> None:
    driver = whole_job(world)
    assert tasks_with(world, "delta")
    assert not tasks_with(world, "zip")
    world.clock.advance(LATEST_S)
    driver.loop.commit()
    wait_until(lambda: tasks_with(world, "zip") == tasks_with(world, "delta"), "a snapshot of each store")


def test_an_idle_job_makes_one_commit_for_its_snapshots(world: SumsWorld) -> None:
    driver = whole_job(world)
    before = world.checkpoints
    idle(world, driver, INTERVAL_S * 0.74)
    assert world.checkpoints == before, "it is not time yet"
    idle(world, driver, LATEST_S)
    wait_until(lambda: tasks_with(world, "zip") == tasks_with(world, "delta"), "a snapshot of each store")
    last = world.checkpoints[-1]
    assert world.checkpoints[:-1] == before
    assert (last.batch, last.next_offsets) == (before[-1].batch, before[-1].next_offsets)
    idle(world, driver, 10 * LATEST_S)
    assert world.checkpoints[-1] == last, "nothing is behind a snapshot"
    driver.close()
    world.check(started(world))


def started(world: SumsWorld) -> InProcessDriver:
    driver = world.started()
    replayed = driver.board.metrics.snapshot().total("changelog-deltas-replayed")
    assert replayed == 0
    return driver


def test_so_does_a_job_that_is_idle_since_a_crash(world: SumsWorld) -> None:
    """The deltas are of an older epoch."""
    whole_job(world).close()
    driver = world.started(state_snapshot_interval_seconds=INTERVAL_S)
    idle(world, driver, 2 * LATEST_S)
    wait_until(lambda: tasks_with(world, "zip") == tasks_with(world, "delta"), "a snapshot of each store")


def test_a_job_that_only_commits_when_asked_to_commits_nothing_for_it(world: SumsWorld) -> None:
    driver = whole_job(world, commit_ms=0)
    world.put(4, 5)
    drain(driver)
    before = world.checkpoints
    idle(world, driver, 2 * LATEST_S)
    assert world.checkpoints == before
