"""Schedules of a drain that must go well: stores that fail, requests that are taken back, stops, late commits."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from penstock.api.requests import DrainNotification
from penstock.drain.asking import cleanup_all, write_drain_notification
from penstock.drain.driver.drain import Drain
from penstock.drain.requests import DRAIN, NAMESPACE, DrainRequests
from penstock.errors import NotFoundError, RetryableError
from penstock.job.paths import JobPaths
from penstock.testing.in_process import InProcessDriver
from tests.support.world.timed_job import HoldNode, TimedWorld, steps

PATHS = JobPaths("timed", "1")


class KilledError(BaseException):
    """Ends a driver in the middle of a step."""


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
    driver.loop.parts.of(Drain).ask()
    return driver, notification


def ends(driver: InProcessDriver, limit: int = 50) -> None:
    for _ in range(limit):
        if driver.loop.run_to_the_end():
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
    assert {record.section(DRAIN).answered for record in timed_world.checkpoints if record.ended == "drained"} == {
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
    drained = [record.section(DRAIN).answered for record in timed_world.checkpoints if record.ended is not None]
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


def drain_of(world: TimedWorld, run_id: str) -> Drain:
    """The drain of this run, without a monitor."""
    keys = {"app.run.id": run_id, "job.drain-monitor.enabled": "false"}
    return world.make(world.app().graph(), keys).loop.parts.of(Drain)


def test_a_request_that_comes_while_the_store_is_read_is_not_overlooked(
    timed_world: TimedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a monitor, nothing would look for it again."""
    drain = drain_of(timed_world, "a")
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


def cancels(world: TimedWorld) -> list[str]:
    return world.objects.list(PATHS.metadata_folder("drain-cancel"))


@contextmanager
def killed_at(world: TimedWorld, deletion: int) -> Iterator[None]:
    """The driver is killed before its deletion of this number, of requests only."""
    left, delete = [deletion], world.objects.delete_durably

    def deletes(key: str) -> None:
        if "/metadata/drain-cancel/" in key or f"/metadata/{NAMESPACE}/" in key:
            left[0] -= 1
            if left[0] < 0:
                raise KilledError
        delete(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.objects, "delete_durably", deletes)
        yield


class TestKilledBetweenDeletions:
    """Each request is two objects at most; the next start finds any part of them."""

    @pytest.mark.few(3)
    @pytest.mark.parametrize("number", [1, 2])
    @pytest.mark.parametrize("deletion", range(5))
    def test_a_cancelled_drain(self, timed_world: TimedWorld, number: int, deletion: int) -> None:
        driver, first = asked(timed_world)
        for each in [first, *(write_drain_notification(timed_world.objects, PATHS) for _ in range(number - 1))]:
            requests(timed_world).cancel(each, "somebody")
        killed = pytest.raises(KilledError) if deletion < 2 * number else nullcontext()
        with killed_at(timed_world, deletion), killed:
            driver.loop.step()
        driver.close()
        second = timed_world.started()
        assert second.job.claim.run_id == driver.job.claim.run_id
        steps(second)
        steps(second)
        assert (requests(timed_world).find().notifications, cancels(timed_world)) == ((), [])
        assert not any(batch.control == "drain" for batch in HoldNode.batches)
        requests(timed_world).write(first)  # as an import does
        second.loop.parts.of(Drain).ask()
        ends(second)
        assert timed_world.checkpoints[-1].section(DRAIN).answered == (str(first.uuid),)

    @pytest.mark.parametrize("deletion", range(2))
    def test_a_drain_that_was_cancelled_too_late(self, timed_world: TimedWorld, deletion: int) -> None:
        driver, notification = asked(timed_world)
        while driver.board.phase != "draining":
            driver.loop.step()
        driver.fleet.at = lambda step: (
            requests(timed_world).cancel(notification, "somebody") if step == "clean-up" else None
        )
        with killed_at(timed_world, deletion), pytest.raises(KilledError):
            ends(driver)
        driver.close()
        assert timed_world.checkpoints[-1].section(DRAIN).answered == (str(notification.uuid),)
        second = timed_world.started()
        assert second.job.claim.run_id != driver.job.claim.run_id
        assert steps(second) > 0, "it reads on"
        assert (requests(timed_world).find().notifications, cancels(timed_world)) == ((), [])

    def test_a_request_to_cancel_that_comes_meanwhile_stays(
        self, timed_world: TimedWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its notification is younger than the listing of the others."""
        own, found = requests(timed_world), DrainRequests.find
        requests(timed_world).cancel(DrainNotification.create(uuid.uuid4(), "a"), "a stale one")

        def meanwhile(given: DrainRequests) -> object:
            result = found(given)
            notification = DrainNotification.create(uuid.uuid4(), "a")
            given.write(notification)
            given.cancel(notification, "somebody")
            return result

        monkeypatch.setattr(DrainRequests, "find", meanwhile)
        own.delete_remains()
        assert len(cancels(timed_world)) == 1


class TestEnds:
    """A run that ends although a request waits that it has not seen."""

    def unseen(self, world: TimedWorld) -> tuple[InProcessDriver, str]:
        driver = world.started()
        world.put(10, 20, 30, 40)
        steps(driver)
        return driver, str(write_drain_notification(world.objects, PATHS).uuid)

    def test_a_stop_right_after_a_request_drains(self, timed_world: TimedWorld) -> None:
        driver, name = self.unseen(timed_world)
        driver.stop.request()
        ends(driver, limit=1)
        assert timed_world.checkpoints[-1].section(DRAIN).answered == (name,)
        assert timed_world.came() == {n: [] for n in range(4)}

    def test_a_stop_before_the_first_batch_of_a_restart(self, timed_world: TimedWorld) -> None:
        driver, name = self.unseen(timed_world)
        driver.loop.commit()
        driver.close()
        second = timed_world.started()
        second.stop.request()
        ends(second, limit=1)
        assert timed_world.checkpoints[-1].section(DRAIN).answered == (name,)

    def test_a_second_stop_ends_it_and_the_next_start_drains(self, timed_world: TimedWorld) -> None:
        driver, name = self.unseen(timed_world)
        driver.loop.commit()
        driver.stop.request()
        driver.stop.request()
        ends(driver, limit=1)
        driver.close()
        assert timed_world.checkpoints[-1].ended is None
        ends(timed_world.started(), limit=1)
        assert timed_world.checkpoints[-1].section(DRAIN).answered == (name,)

    def test_a_stop_and_a_cancel(self, timed_world: TimedWorld) -> None:
        driver, _ = self.unseen(timed_world)
        (notification,) = requests(timed_world).find().notifications
        requests(timed_world).cancel(notification, "somebody")
        driver.stop.request()
        ends(driver, limit=1)
        last = timed_world.checkpoints[-1]
        assert (last.ended, last.section(DRAIN).answered) == ("stopped", ())
        assert requests(timed_world).find().notifications == ()

    def test_a_store_that_fails_delays_the_stop(self, timed_world: TimedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        driver, name = self.unseen(timed_world)
        failing(monkeypatch, "find", 3)
        driver.stop.request()
        ends(driver, limit=1)
        assert timed_world.checkpoints[-1].section(DRAIN).answered == (name,)

    def test_the_end_of_what_a_run_was_to_read(self, timed_world: TimedWorld) -> None:
        timed_world.put(10, 20)
        driver = timed_world.started(until_latest=True, close=False)
        steps(driver)
        name = str(write_drain_notification(timed_world.objects, PATHS).uuid)
        ends(driver, limit=1)
        assert timed_world.checkpoints[-1].section(DRAIN).answered == (name,)

    def test_a_request_during_the_last_commit_is_reported(
        self, timed_world: TimedWorld, caplog: pytest.LogCaptureFixture
    ) -> None:
        driver = timed_world.started()
        timed_world.put(10, 20)
        steps(driver)
        late: list[DrainNotification] = []

        def at(step: str) -> None:
            if step == "snapshot" and not late:
                late.append(write_drain_notification(timed_world.objects, PATHS))

        driver.fleet.at = at
        driver.stop.request()
        ends(driver, limit=1)
        assert timed_world.checkpoints[-1].ended == "stopped"
        assert requests(timed_world).find().notifications == ()
        said = [each.message for each in caplog.records if str(late[0].uuid) in each.message]
        assert said == [f"the run ended before it saw the request to drain it ({late[0].uuid}): nothing drains"]


class TestRuns:
    """The run that a request is for, and the run that may delete it."""

    def test_a_driver_that_lost_its_job_deletes_no_request_of_the_new_run(self, timed_world: TimedWorld) -> None:
        drain = drain_of(timed_world, "a")
        timed_world.config["app.run.id"] = "a"
        former, _ = asked(timed_world)
        ends(former)
        del timed_world.config["app.run.id"]
        timed_world.started()
        own = write_drain_notification(timed_world.objects, PATHS)
        drain.ask()
        assert not drain.look()
        assert requests(timed_world).find().notifications == (own,)

    @pytest.mark.parametrize("before", [True, False])
    def test_a_drain_that_a_start_inherits_is_loud(
        self, timed_world: TimedWorld, caplog: pytest.LogCaptureFixture, before: bool
    ) -> None:
        caplog.set_level(logging.INFO)
        driver, notification = asked(timed_world)
        if before:
            driver.close()
            driver = timed_world.started()
        ends(driver)
        (said,) = [each for each in caplog.records if f"request {notification.uuid}" in each.message]
        assert (said.levelname, "before this start" in said.message) == (
            ("WARNING", True) if before else ("INFO", False)
        )
