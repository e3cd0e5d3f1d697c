"""Schedules of a drain that must go well: stores that fail, requests that are taken back, stops, late commits."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest

from penstock.api.drain import DrainNotification
from penstock.drain.notification import NAMESPACE
from penstock.drain.requests import DrainRequests
from penstock.drain.utils import cleanup_all, write_drain_notification
from penstock.driver.drain import Drain
from penstock.driver.progress import ProgressBoard
from penstock.driver.stop import StopRequest
from penstock.errors import NotFoundError, RetryableError
from penstock.metadata.paths import JobPaths
from penstock.testing.in_process import InProcessDriver
from tests.support.timed_job import HoldNode, TimedWorld, steps

PATHS = JobPaths("timed", "1")


def requests(world: TimedWorld) -> DrainRequests:
    return DrainRequests(world.objects, PATHS)


def asked(world: TimedWorld) -> tuple[InProcessDriver, DrainNotification]:
    """A driver with a checkpoint and messages that wait for time, which is asked to drain; more messages come."""
    driver = world.started()
    world.put(10, 20, 30, 40)
    steps(driver)
    driver.loop.commit()
    world.put(50, 60)
    notification = write_drain_notification(world.objects, PATHS)
    driver.loop.ask_to_drain()
    return driver, notification


def ends(driver: InProcessDriver, limit: int = 50) -> None:
    for _ in range(limit):
        if driver.loop._run_to_the_end():
            return
    raise AssertionError("the run does not end")


def failing(monkeypatch: pytest.MonkeyPatch, method: str, times: int, *, done: bool = False) -> list[int]:
    """A method of the requests fails so often; `done`: after it has done its work."""
    calls, real = [0], getattr(DrainRequests, method)

    def fails(*given: Any) -> Any:
        calls[0] += 1
        if calls[0] > times:
            return real(*given)
        if done:
            real(*given)
        raise RetryableError("the store is away")

    monkeypatch.setattr(DrainRequests, method, fails)
    return calls


@pytest.mark.parametrize("method", ["find", "cancelled_by"])
def test_a_store_that_fails_often_delays_a_drain_and_ends_no_run(
    timed_world: TimedWorld, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    timed_world.config["job.retry.max"] = 1
    driver, _ = asked(timed_world)
    calls = failing(monkeypatch, method, 10)
    ends(driver)
    assert calls[0] > 10
    assert timed_world.came() == {n: [] for n in range(4)}
    assert timed_world.checkpoints[-1].ended == "drained"


@pytest.mark.parametrize("number", [1, 2])
def test_a_cancelled_drain_whose_deletion_is_not_confirmed(
    timed_world: TimedWorld, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Who cancelled it sees that the requests are gone, and believes that the run continues."""
    driver, first = asked(timed_world)
    cancelled = [first, *(write_drain_notification(timed_world.objects, PATHS) for _ in range(number - 1))]
    for each in cancelled:
        requests(timed_world).cancel(each, "somebody")
    failing(monkeypatch, "delete", 1, done=True)
    steps(driver)
    driver.loop.step()
    steps(driver)
    assert not driver.loop.boundary.closed
    assert driver.board.phase == "running"
    assert not any(batch.control == "drain" for batch in HoldNode.batches)
    assert timed_world.objects.list(PATHS.metadata_folder("drain-cancel")) == []


def test_requests_that_somebody_deleted_are_taken_back(timed_world: TimedWorld) -> None:
    driver, _ = asked(timed_world)
    driver.loop.step()
    assert HoldNode.batches[-1].control == "drain"
    assert cleanup_all(timed_world.objects, PATHS) == 1
    driver.loop.step()
    assert not driver.loop.boundary.closed
    assert driver.board.phase == "running"


def test_a_request_to_cancel_comes_between_the_last_record_and_the_end(timed_world: TimedWorld) -> None:
    """A container is lost behind the record: the run has drained, whatever comes then."""
    driver, notification = asked(timed_world)

    opened = threading.Event()

    def at(step: str) -> None:
        if step == "open":
            opened.set()
        if step == "clean-up" and driver.board.phase == "stopping" and not opened.is_set():
            driver.fleet.lose(1)
            requests(timed_world).cancel(notification, "somebody")
            assert opened.wait(60)

    driver.fleet.at = at
    ends(driver)
    assert opened.is_set()
    assert timed_world.came() == {n: [] for n in range(4)}
    assert {record.drains for record in timed_world.checkpoints if record.ended == "drained"} == {
        (str(notification.uuid),)
    }
    assert timed_world.checkpoints[-1].ended == "drained"
    assert timed_world.objects.list(PATHS.metadata_folder("drain-cancel")) == []


def test_executors_that_come_at_the_end_of_a_drain_get_no_tasks(timed_world: TimedWorld) -> None:
    """A commit for them would be the last one of the run, and name no request."""
    driver, notification = asked(timed_world)
    driver.loop.step()
    assert driver.loop.boundary.closed
    driver.fleet.newcomers = lambda: ["another"]  # type: ignore[method-assign]
    ends(driver)
    drained = [record.drains for record in timed_world.checkpoints if record.ended is not None]
    assert drained == [(str(notification.uuid),)]


class TestStops:
    """A stop in a drain that does not come to its end."""

    def test_a_stop_counts_when_the_drain_is_taken_back(self, timed_world: TimedWorld) -> None:
        driver, notification = asked(timed_world)
        driver.loop.step()
        driver.stop.request()
        requests(timed_world).cancel(notification, "somebody")
        ends(driver, limit=2)
        assert timed_world.checkpoints[-1].ended == "stopped"
        assert "one.hold" in timed_world.checkpoints[-1].stores

    def test_a_stop_right_after_the_request(self, timed_world: TimedWorld) -> None:
        driver, _ = asked(timed_world)
        driver.stop.request()
        ends(driver)
        assert timed_world.checkpoints[-1].ended == "drained"

    def test_a_stop_after_a_request_that_is_gone(self, timed_world: TimedWorld) -> None:
        driver, notification = asked(timed_world)
        requests(timed_world).delete([notification])
        driver.stop.request()
        ends(driver)
        assert timed_world.checkpoints[-1].ended == "stopped"


def test_a_request_that_comes_while_the_store_is_read_is_not_overlooked(
    timed_world: TimedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a monitor, nothing would look for it again."""
    drain = Drain(requests(timed_world), "a", None, StopRequest(), ProgressBoard())
    find = DrainRequests.find

    def meanwhile(own: DrainRequests) -> object:
        found = find(own)
        monkeypatch.setattr(DrainRequests, "find", find)
        own.write(DrainNotification.create(uuid.uuid4(), "a"))
        drain.ask()
        return found

    monkeypatch.setattr(DrainRequests, "find", meanwhile)
    drain.ask()
    assert not drain.look()
    assert drain.look()


def test_a_handle_drains_its_own_run_only(timed_world: TimedWorld) -> None:
    driver, _ = asked(timed_world)
    former = driver.job.claim.run_id
    ends(driver)
    driver.close()
    timed_world.started()
    with pytest.raises(NotFoundError, match=f"run {former} of job timed-1 has ended"):
        write_drain_notification(timed_world.objects, PATHS, only_run=former)
    assert requests(timed_world).find().notifications == ()


def test_a_request_under_another_name_drains_nothing(timed_world: TimedWorld) -> None:
    """It could not be deleted."""
    driver, notification = asked(timed_world)
    path = PATHS.metadata(NAMESPACE, str(notification.uuid))
    timed_world.objects.put_if_absent(PATHS.metadata(NAMESPACE, "mine"), timed_world.objects.get(path))
    timed_world.objects.delete(path)
    assert [name for name, _ in requests(timed_world).find().unreadable] == [PATHS.metadata(NAMESPACE, "mine")]
    steps(driver)
    assert not driver.loop.boundary.closed
