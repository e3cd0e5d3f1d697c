"""The common end of a stop and of a drain, and what only a drain does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.checkpoint.record import CheckpointId
from penstock.container.shared import stores_directory
from penstock.drain.requests import DRAIN, DrainRequests
from penstock.driver.handle.job import Job
from penstock.errors import RetryableError
from penstock.state.copies import LocalCopies
from penstock.testing.in_process import InProcessDriver
from tests.support.world.timed_job import steps
from tests.support.world.waiting_job import PATHS, TASKS, Waiting, to_the_end

FIRED = ("panes-fired", "timers-fired", "without-partner")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Waiting]:
    job = Waiting(tmp_path)
    yield job
    job.close()


def stop(driver: InProcessDriver) -> None:
    """`job.stop()`, which SIGTERM and Ctrl-C call as well."""
    Job("waiting-1", driver.job.claim.run_id, driver.board, driver.stop).stop(wait=False)


def ask(driver: InProcessDriver) -> None:
    """`penstock stop`."""
    driver.stop.ask()


@pytest.mark.parametrize("ends", [stop, ask])
def test_a_stop_fires_nothing_and_the_next_run_continues(job: Waiting, ends: Callable[[InProcessDriver], None]) -> None:
    driver = job.waits()
    stores = set(job.checkpoints[-1].stores)
    ends(driver)
    to_the_end(driver)
    assert (job.came(), job.checkpoints[-1].ended, set(job.checkpoints[-1].stores)) == ([], "stopped", stores)
    assert {"hours.window", "remind.timers", "pairs.join"} < stores
    assert [driver.board.metrics.snapshot().total(name) for name in FIRED] == [0, 0, 0]
    assert driver.board.told("drain") is None
    driver.close()
    again = job.started()
    job.ask(again)
    to_the_end(again)
    came = [str(each) for each in job.came() if each[0] != "drained"]
    assert set(came) == job.results(), "all of it was still there"
    assert len(came) == job.panes() + 2 * len(job.given), "and came once"


@pytest.mark.parametrize("drains", [False, True])
def test_copies_and_snapshots_are_finished(job: Waiting, *, drains: bool) -> None:
    """The last checkpoint covers them. Stores of windows, timers and joins are not restored any more."""
    job.config |= {"job.host-affinity.enabled": True, "state.snapshot.interval.commits": 1}
    driver = job.waits()
    job.put(6)
    steps(driver)  # what the last commit has
    if drains:
        job.ask(driver)
    else:
        stop(driver)
    to_the_end(driver)
    last = job.checkpoints[-1]
    assert last.ended == ("drained" if drains else "stopped")
    folder = stores_directory(driver.job.config, driver.job.uid)
    driver.close()
    for task in range(TASKS):
        assert ids_of(folder / "newest" / str(task)) == [last.id]
    objects = job.objects.list(PATHS.store_folder("newest"))
    changes, snapshots = (
        {path.removesuffix(kind) for path in objects if path.endswith(kind)} for kind in (".delta", ".zip")
    )
    assert len(changes) == 2
    assert snapshots == changes, "one of each commit"
    assert ("hours.window" in last.stores) is not drains


def ids_of(folder: Path) -> list[CheckpointId]:
    return LocalCopies(folder).ids()


def test_requests_that_cannot_be_deleted_are_left_to_the_next_start(
    job: Waiting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run has drained: its record is in the log. `penstock status` shows them."""
    driver = job.waits()
    asked = job.ask(driver)

    def failing(own: DrainRequests, notifications: object) -> None:
        raise RetryableError("the store is away")

    with monkeypatch.context() as away:
        away.setattr(DrainRequests, "delete", failing)
        to_the_end(driver)
    last = job.checkpoints[-1]
    assert (last.ended, last.section(DRAIN).answered) == ("drained", (asked,))
    warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert "the requests to drain were not deleted; the next start does it: the store is away" in warned
    assert [str(each.uuid) for each in job.requests.find().notifications] == [asked]
    assert driver.board.drained
    driver.close()
    job.put(3)
    again = job.started()
    while again.loop.boundary.batch == last.batch:
        again.loop.step()
    assert not again.loop.boundary.closed, "it drains no other run"
    assert job.requests.find().notifications == ()
