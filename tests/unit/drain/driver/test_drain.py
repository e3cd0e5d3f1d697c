"""Draining whole jobs, on drivers and containers of this process."""

from __future__ import annotations

import threading
import uuid
from contextlib import nullcontext

import pytest

from penstock.api.requests import DrainMode, DrainNotification
from penstock.batch.batch import END_OF_TIME
from penstock.batch.watermarks import TIME
from penstock.drain.asking import cleanup, cleanup_all, present_run, write_drain_notification
from penstock.drain.driver.drain import Drain
from penstock.drain.requests import DRAIN, NAMESPACE, DrainRequests
from penstock.errors import ConfigError, NotFoundError, PenstockError, RetryableError
from penstock.job.lease import LeaseHolder, LeaseState
from penstock.job.paths import JobPaths
from penstock.system.memory import MemoryAdmin
from penstock.testing.in_process import InProcessDriver
from tests.support.world.timed_job import HoldNode, TimedWorld, steps

PATHS = JobPaths("timed", "1")


class KilledError(BaseException):
    """Ends a driver in the middle of a step."""


def requests(world: TimedWorld) -> DrainRequests:
    return DrainRequests(world.objects, PATHS)


def ask(world: TimedWorld, run_id: str | None = None) -> DrainNotification:
    """Ask a run, by default the present one, to drain."""
    if run_id is None:
        return write_drain_notification(world.objects, PATHS)
    notification = DrainNotification.create(uuid.uuid4(), run_id)
    requests(world).write(notification)
    return notification


def to_the_end(driver: InProcessDriver) -> None:
    while not driver.loop.step():
        pass
    driver.loop.finish()
    driver.close()


def waits(world: TimedWorld) -> InProcessDriver:
    """A driver with messages that wait for time."""
    world.put(10, 20, 30, 40)
    driver = world.started()
    steps(driver)
    assert set(world.came()) < set(world.given)
    return driver


def test_everything_that_waits_comes_out_and_nothing_more_is_read(timed_world: TimedWorld) -> None:
    driver = waits(timed_world)
    positions = driver.loop.boundary.positions
    timed_world.put(50, 60)
    asked = ask(timed_world)
    driver.loop.parts.of(Drain).ask()
    to_the_end(driver)
    assert timed_world.came() == {n: [] for n in range(4)}
    last = timed_world.checkpoints[-1]
    assert (last.ended, last.section(DRAIN).answered) == ("drained", (str(asked.uuid),))
    assert (last.section(TIME).event_times, last.section(TIME).watermarks, last.ended_inputs) == ({}, {}, ())
    assert {at: last.next_offsets[at.task][at.ssp] for at in positions} == dict(positions)
    assert requests(timed_world).find().notifications == ()
    drained = HoldNode.batches[-1]
    assert drained.control == "drain"
    assert {drained.firing_watermark(op) for op in ("one", "two")} == {END_OF_TIME}


def test_the_next_run_reads_on_from_there_with_event_time_from_the_beginning(timed_world: TimedWorld) -> None:
    driver = waits(timed_world)
    run_id = driver.job.claim.run_id
    ask(timed_world)
    driver.loop.parts.of(Drain).ask()
    to_the_end(driver)
    timed_world.put(5, 6)
    second = timed_world.started()
    assert second.job.claim.run_id != run_id
    assert second.loop.boundary.watermarks == {}
    timed_world.put(90, 90)
    steps(second)
    assert timed_world.came()[4] == timed_world.came()[5] == []


def test_a_request_before_the_start_drains_without_reading(timed_world: TimedWorld) -> None:
    driver = waits(timed_world)
    driver.loop.commit()
    driver.close()  # killed
    timed_world.put(50, 60)
    ask(timed_world)
    second = timed_world.started()
    to_the_end(second)
    assert timed_world.came() == {n: [] for n in range(4)}
    assert timed_world.checkpoints[-1].ended == "drained"


def test_the_monitor_tells_a_run_that_is_idle(timed_world: TimedWorld) -> None:
    timed_world.config["job.drain-monitor.poll.interval.ms"] = 5
    driver = waits(timed_world)
    ask(timed_world)
    to_the_end(driver)
    assert timed_world.came() == {n: [] for n in range(4)}


def test_the_monitor_ends_with_its_run(timed_world: TimedWorld) -> None:
    timed_world.config["job.drain-monitor.poll.interval.ms"] = 10**7
    before = set(threading.enumerate())
    driver = waits(timed_world)
    assert [each.name for each in set(threading.enumerate()) - before].count("penstock-drain-monitor") == 1
    driver.stop.request()
    driver.loop.run_to_the_end()
    driver.close()
    assert "penstock-drain-monitor" not in {each.name for each in set(threading.enumerate()) - before}


def test_a_run_without_a_monitor_reads_on(timed_world: TimedWorld) -> None:
    timed_world.config["job.drain-monitor.enabled"] = "false"
    driver = waits(timed_world)
    ask(timed_world)
    timed_world.put(50, 60)
    assert steps(driver) > 0
    driver.loop.commit()
    driver.close()
    timed_world.put(70)
    assert steps(timed_world.started()) > 0


@pytest.mark.parametrize("killed", [None, "delete", "_cancel_path"])
def test_a_request_for_the_next_run_ends_with_one_that_does_not_obey(
    timed_world: TimedWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, killed: str | None
) -> None:
    """No later run, which nobody meant, drains."""
    notification = ask(timed_world)
    assert notification.run_id == "*"
    timed_world.config["job.drain-monitor.enabled"] = "false"
    timed_world.config["app.run.id"] = "v1"
    timed_world.put(10, 20)
    with monkeypatch.context() as patch:
        if killed is not None:
            patch.setattr(DrainRequests, killed, died)
        first = timed_world.started()
        with pytest.raises(KilledError) if killed else nullcontext():
            assert steps(first) > 0
        first.close()
    del timed_world.config["job.drain-monitor.enabled"]
    timed_world.config["app.run.id"] = "v2"
    timed_world.put(30)
    later = timed_world.started()
    assert steps(later) > 0, "it reads on"
    assert not later.loop.boundary.closed
    assert requests(timed_world).find().notifications == ()
    later.close()
    if killed is None:
        assert (
            f"the request {notification.uuid} to drain the next run is deleted: run v1 is the next one" in caplog.text
        )


def died(*_: object) -> None:
    raise KilledError


def test_the_request_of_another_run_drains_nothing_and_is_deleted(timed_world: TimedWorld) -> None:
    ask(timed_world, "another")
    driver = waits(timed_world)
    assert requests(timed_world).find().notifications == ()
    assert not driver.loop.boundary.closed


@pytest.mark.parametrize("through", [False, True])
def test_no_commit_but_the_last_is_of_a_closed_boundary(timed_world: TimedWorld, *, through: bool) -> None:
    """Although commits fall due behind each batch of the drain."""
    timed_world.through = through
    timed_world.config["task.commit.ms"] = 1
    driver = waits(timed_world)
    ask(timed_world)
    driver.loop.parts.of(Drain).ask()
    commits: list[tuple[bool, bool, str]] = []

    def at(step: str) -> None:
        timed_world.clock.advance(10)
        if step == "snapshot":
            boundary = driver.loop.boundary
            commits.append((boundary.closed, boundary.partly_closed, driver.board.phase))

    driver.fleet.at = driver.runner.at = at
    to_the_end(driver)
    *others, last = commits
    assert last == (True, False, "stopping")
    assert not any(closed or partly for closed, partly, _ in others)
    assert [record.ended for record in timed_world.checkpoints].count("drained") == 1


def test_several_requests_are_one_drain(timed_world: TimedWorld) -> None:
    driver = waits(timed_world)
    asked = {str(ask(timed_world).uuid) for _ in range(3)}
    driver.loop.parts.of(Drain).ask()
    to_the_end(driver)
    assert set(timed_world.checkpoints[-1].section(DRAIN).answered) == asked
    assert requests(timed_world).find().notifications == ()
    assert [batch.control for batch in HoldNode.batches].count("drain") == 4, "two operators of two tasks"


def test_what_cannot_be_read_drains_nothing(timed_world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
    path = PATHS.metadata(NAMESPACE, "not-a-uuid")
    timed_world.objects.put_if_absent(path, b"{")
    timed_world.config["job.drain-monitor.poll.interval.ms"] = 5
    driver = waits(timed_world)
    asked = ask(timed_world)
    to_the_end(driver)
    assert timed_world.checkpoints[-1].section(DRAIN).answered == (str(asked.uuid),)
    said = [record.message for record in caplog.records if path in record.message]
    assert len(said) == 1


def test_a_rewind_looks_for_a_request_before_its_first_batch(timed_world: TimedWorld) -> None:
    """Although the monitor's next look is far away."""
    timed_world.config["job.drain-monitor.poll.interval.ms"] = 10**7
    driver = waits(timed_world)
    driver.loop.commit()
    ask(timed_world)
    timed_world.put(50, 60)
    driver.fleet.lose(1)
    assert any(driver.loop.step() for _ in range(20))
    driver.loop.finish()
    assert timed_world.came() == {n: [] for n in range(4)}
    assert timed_world.checkpoints[-1].ended == "drained"


def test_inputs_that_are_down_delay_no_drain(timed_world: TimedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at them."""
    driver = waits(timed_world)
    driver.loop.commit()
    ask(timed_world)
    driver.loop.parts.of(Drain).ask()
    offsets = MemoryAdmin.offsets

    def down(admin: MemoryAdmin, stream: str) -> object:
        if stream == "in":
            raise RetryableError("the input is down")
        return offsets(admin, stream)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryAdmin, "offsets", down)
        assert any(driver.loop.step() for _ in range(20))
        driver.loop.finish()
    assert timed_world.came() == {n: [] for n in range(4)}
    assert timed_world.checkpoints[-1].ended == "drained"


@pytest.mark.parametrize("step", ["start-run", "stage 1", "stage 2", "sink", "end", "snapshot", "upload"])
def test_a_container_that_is_lost_in_a_drain(timed_world: TimedWorld, step: str) -> None:
    """The drain is repeated from the last checkpoint, and reads nothing."""
    driver = waits(timed_world)
    driver.loop.commit()
    timed_world.put(50, 60)
    ask(timed_world)
    driver.loop.parts.of(Drain).ask()
    lost: list[str] = []

    def at(name: str) -> None:
        if name == step and not lost and driver.board.phase in {"draining", "stopping"}:
            lost.append(name)
            driver.fleet.lose(1)

    driver.fleet.at = driver.runner.at = at
    driver.loop.run_to_the_end() or driver.loop.run_to_the_end()
    assert lost == [step]
    assert timed_world.came() == {n: [] for n in range(4)}
    assert timed_world.checkpoints[-1].ended == "drained"


@pytest.mark.parametrize("step", ["start-run", "stage 1", "stage 2", "sink", "end", "snapshot", "upload"])
def test_a_driver_that_is_killed_in_a_drain(timed_world: TimedWorld, step: str) -> None:
    driver = waits(timed_world)
    driver.loop.commit()
    timed_world.put(50, 60)
    ask(timed_world)
    driver.loop.parts.of(Drain).ask()

    def at(name: str) -> None:
        if name == step and driver.board.phase in {"draining", "stopping"}:
            raise KilledError

    driver.fleet.at = driver.runner.at = at
    with pytest.raises((KilledError, PenstockError)):  # the latter from the thread of commits
        to_the_end(driver)
    driver.close()
    to_the_end(timed_world.started())
    assert timed_world.came() == {n: [] for n in range(4)}
    assert timed_world.checkpoints[-1].ended == "drained"
    assert requests(timed_world).find().notifications == ()


def test_a_crash_between_the_record_and_the_deletion(timed_world: TimedWorld) -> None:
    driver = waits(timed_world)
    asked = ask(timed_world)
    driver.loop.parts.of(Drain).ask()
    to_the_end(driver)
    requests(timed_world).write(asked)  # as if it had not been deleted
    timed_world.put(50, 60)
    second = timed_world.started()
    assert steps(second) > 0
    assert requests(timed_world).find().notifications == ()
    assert not second.loop.boundary.closed


class TestCancel:
    """A drain may be taken back until the last commit begins."""

    def test_before_the_drain_batch(self, timed_world: TimedWorld) -> None:
        driver = waits(timed_world)
        driver.loop.commit()
        asked = ask(timed_world)
        requests(timed_world).cancel(asked, "somebody")
        driver.loop.parts.of(Drain).ask()
        timed_world.put(50, 60)
        steps(driver)
        assert not driver.loop.boundary.closed
        assert driver.board.phase == "running"
        assert requests(timed_world).find().notifications == ()
        assert not any(batch.control == "drain" for batch in HoldNode.batches)

    def test_after_the_drain_batch(self, timed_world: TimedWorld) -> None:
        """The run goes back to its last checkpoint: what fired too early waits again."""
        driver = waits(timed_world)
        driver.loop.commit()
        asked = ask(timed_world)
        driver.loop.parts.of(Drain).ask()
        driver.loop.step()
        assert driver.loop.boundary.closing == "drained"
        requests(timed_world).cancel(asked, "somebody")
        assert not driver.loop.step()
        assert not driver.loop.boundary.closed
        timed_world.put(10, 10, 1000, 1000)
        steps(driver)
        assert set(timed_world.came()) >= {0, 1, 2, 3}
        assert timed_world.came()[4] == ["one"] or timed_world.came()[4] == ["one", "two"], "late, as without a drain"

    def test_one_of_two_requests(self, timed_world: TimedWorld) -> None:
        driver = waits(timed_world)
        first, _ = ask(timed_world), ask(timed_world)
        requests(timed_world).cancel(first, "somebody")
        driver.loop.parts.of(Drain).ask()
        to_the_end(driver)
        assert timed_world.checkpoints[-1].ended == "drained"

    def test_it_can_be_asked_for_again(self, timed_world: TimedWorld) -> None:
        driver = waits(timed_world)
        requests(timed_world).cancel(ask(timed_world), "somebody")
        driver.loop.parts.of(Drain).ask()
        driver.loop.step()
        assert not driver.loop.boundary.closed
        ask(timed_world)
        driver.loop.parts.of(Drain).ask()
        to_the_end(driver)
        assert timed_world.checkpoints[-1].ended == "drained"


class TestStops:
    """A stop is not a drain, and does not interrupt one."""

    def test_a_stop_fires_nothing(self, timed_world: TimedWorld) -> None:
        driver = waits(timed_world)
        came = timed_world.came()
        driver.stop.request()
        driver.loop.run_to_the_end()
        assert timed_world.came() == came
        assert timed_world.checkpoints[-1].ended == "stopped"

    def test_the_first_stop_in_a_drain_changes_nothing(self, timed_world: TimedWorld) -> None:
        driver = waits(timed_world)
        ask(timed_world)
        driver.loop.parts.of(Drain).ask()
        driver.loop.step()
        driver.stop.request()
        driver.loop.run_to_the_end()
        assert timed_world.checkpoints[-1].ended == "drained"

    def test_the_second_stop_ends_it_and_the_next_start_drains(self, timed_world: TimedWorld) -> None:
        driver = waits(timed_world)
        driver.loop.commit()
        ask(timed_world)
        driver.loop.parts.of(Drain).ask()
        driver.loop.step()
        driver.stop.request()
        driver.stop.request()
        driver.loop.run_to_the_end()
        assert timed_world.checkpoints[-1].ended is None
        assert len(requests(timed_world).find().notifications) == 1
        driver.close()
        to_the_end(timed_world.started())
        assert timed_world.checkpoints[-1].ended == "drained"


class TestNamedRuns:
    """Runs that the deployer names with `app.run.id`."""

    def started(self, world: TimedWorld, name: str) -> InProcessDriver:
        world.config["app.run.id"] = name
        return world.started()

    def test_a_stop_ends_no_named_run(self, timed_world: TimedWorld) -> None:
        """A request that a restart finds is obeyed, though the run was stopped before."""
        driver = self.started(timed_world, "v1")
        driver.stop.request()
        driver.loop.run_to_the_end()
        driver.close()
        ask(timed_world, "v1")
        second = self.started(timed_world, "v1")
        assert present_run(timed_world.objects, PATHS) == "v1"
        to_the_end(second)
        assert timed_world.checkpoints[-1].ended == "drained"
        with pytest.raises(ConfigError, match="run `v1` has drained"):
            self.started(timed_world, "v1")

    def test_a_request_is_for_the_named_run_only(self, timed_world: TimedWorld) -> None:
        driver = self.started(timed_world, "v1")
        driver.close()
        assert ask(timed_world).run_id == "v1"
        second = self.started(timed_world, "v2")
        timed_world.put(10, 20)
        steps(second)
        assert sum(second.loop.boundary.positions.values()) == 2, "it reads on"
        assert requests(timed_world).find().notifications == ()

    def test_a_run_of_a_name_that_there_was_is_there_before_its_first_checkpoint(self, timed_world: TimedWorld) -> None:
        driver = self.started(timed_world, "v1")
        driver.stop.request()
        driver.loop.run_to_the_end()
        driver.close()
        assert present_run(timed_world.objects, PATHS) is None
        third = timed_world.driver()
        held = LeaseState(LeaseHolder.of_this_process("v1"), 60_000, "token")
        timed_world.objects.put_if_absent(PATHS.lease, held.encode())
        assert present_run(timed_world.objects, PATHS) == "v1"
        third.close()


class TestRequests:
    """The run that a request is for."""

    def test_the_run_that_is_there(self, timed_world: TimedWorld) -> None:
        driver = waits(timed_world)
        assert present_run(timed_world.objects, PATHS) == driver.job.claim.run_id
        assert ask(timed_world).drain_mode is DrainMode.DEFAULT

    def test_nothing_is_in_flight(self, timed_world: TimedWorld) -> None:
        driver = waits(timed_world)
        ask(timed_world)
        driver.loop.parts.of(Drain).ask()
        to_the_end(driver)
        for name in (None, driver.job.claim.run_id):
            with pytest.raises(NotFoundError, match="has no run that could drain: its last run has drained"):
                write_drain_notification(timed_world.objects, PATHS, run_id=name)
        assert requests(timed_world).find().notifications == ()

    def test_another_run_has_the_job(self, timed_world: TimedWorld) -> None:
        driver = waits(timed_world)
        held = LeaseState(LeaseHolder.of_this_process(driver.job.claim.run_id), 60_000, "token")
        timed_world.objects.put_if_absent(PATHS.lease, held.encode())
        with pytest.raises(NotFoundError, match=f"belongs to run {driver.job.claim.run_id}, not to run v2"):
            write_drain_notification(timed_world.objects, PATHS, run_id="v2")

    @pytest.mark.parametrize("name", ["*", "a b", "../v1", ""])
    def test_what_no_run_is_called(self, timed_world: TimedWorld, name: str) -> None:
        with pytest.raises(ConfigError, match="no run has the id"):
            write_drain_notification(timed_world.objects, PATHS, run_id=name)

    def test_cleaning_up(self, timed_world: TimedWorld) -> None:
        ask(timed_world, "a")
        ask(timed_world, "a")
        ask(timed_world, "b")
        assert cleanup(timed_world.objects, PATHS, "a") == 2
        assert cleanup_all(timed_world.objects, PATHS) == 1

    def test_a_store_that_fails_delays_the_start_and_reads_nothing(
        self, timed_world: TimedWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver = waits(timed_world)
        driver.loop.commit()
        driver.close()
        timed_world.put(50, 60)
        ask(timed_world)
        failures = iter([RetryableError("the store is away")] * 2)
        find = DrainRequests.find

        def failing(own: DrainRequests) -> object:
            if (error := next(failures, None)) is not None:
                raise error
            return find(own)

        monkeypatch.setattr(DrainRequests, "find", failing)
        to_the_end(timed_world.started())
        assert timed_world.came() == {n: [] for n in range(4)}
