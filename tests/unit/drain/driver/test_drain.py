"""Drains of one job: what comes of a request, whatever strikes the run meanwhile."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from itertools import product

import pytest

from penstock.api.requests import DrainMode, DrainNotification
from penstock.batch.batch import END_OF_TIME
from penstock.batch.watermarks import TIME
from penstock.drain.driver import Drain
from penstock.drain.requests import DRAIN, NAMESPACE, DrainRequests, present_run, write_drain_notification
from penstock.errors import ConfigError, NotFoundError, PenstockError, RetryableError
from penstock.job.lease import LeaseHolder, LeaseState
from penstock.system.memory import MemoryAdmin
from penstock.testing.in_process import InProcessDriver
from tests.support.stores.hooked_store import Call
from tests.support.world.timed_job import HoldNode, TimedWorld, steps
from tests.support.world.world import KilledError, ends

ALL = {n: [] for n in range(4)}  # type: ignore[var-annotated]
"""The four messages that wait came out, none of them late."""
LATER_MS = 10**7


class Case:
    """A run with a checkpoint, whose messages wait for time, that is asked to drain. More messages come."""

    def __init__(self, world: TimedWorld) -> None:
        world.config["job.drain-monitor.poll.interval.ms"] = LATER_MS
        self.world = world
        self.driver = world.started()
        world.put(10, 20, 30, 40)
        steps(self.driver)
        self.driver.loop.commit()
        world.put(50, 60)
        self.asked = [world.ask_to_drain()]
        self.gone: set[uuid.UUID] = set()
        self.struck = False

    def strike(self, when: str, faults: tuple[Fault, ...]) -> None:
        """Let the faults happen: before the run knows of the request (`unseen`), when it was told (`asked`), behind the
        batch that drains (`draining`), or at a step of that batch, or of the last commit."""

        def at(step: str) -> None:
            if step == when and not self.struck and self.driver.board.phase in {"draining", "stopping"}:
                self.struck = True
                for fault in faults:
                    fault(self)

        if when != "unseen":
            self.driver.loop.parts.of(Drain).ask()
        if when == "draining":
            assert not self.driver.loop.step()
            assert HoldNode.batches[-1].control == "drain"
        if when in {"unseen", "asked", "draining"}:
            self.struck = True
            for fault in faults:
                fault(self)
        else:
            self.driver.fleet.at = self.driver.runner.at = at

    def restart(self) -> None:
        """Kill the driver, and start another one, which begins the same run again."""
        run_id = self.driver.job.claim.run_id
        self.world.kill(self.driver)
        self.driver = self.world.started()
        assert self.driver.job.claim.run_id == run_id

    def end(self) -> None:
        """Run until the last record is in the log, by another driver if there has to be one."""
        while True:
            try:
                ends(self.driver)
            except (KilledError, PenstockError):  # the latter from the thread of commits
                self.restart()
                continue
            if self.world.checkpoints[-1].ended is not None:
                return
            assert len(self.world.drains.find().notifications) == 1
            self.restart()

    def reads_on(self) -> None:
        """Run until there is nothing left to do. The run must not end."""
        try:
            for _ in range(2):
                steps(self.driver)
                assert not self.driver.loop.step()
        except KilledError:
            self.restart()
            self.reads_on()

    @property
    def answered(self) -> tuple[str, ...]:
        return self.world.checkpoints[-1].section(DRAIN).answered

    @property
    def left(self) -> list[str]:
        """The objects of requests that are still there."""
        folders = map(self.world.paths.metadata_folder, (NAMESPACE, "drain-cancel", "drain-obeyed"))
        return [path for folder in folders for path in self.world.objects.list(folder)]


Fault = Callable[[Case], object]


def lose(case: Case) -> None:
    case.driver.fleet.lose(1)


def kill(case: Case) -> None:
    raise KilledError


def restart(case: Case) -> None:
    case.restart()


def stop(case: Case) -> None:
    case.driver.stop.request()


def ask(case: Case) -> None:
    case.asked.append(case.world.ask_to_drain())


def cancel(case: Case) -> None:
    for each in case.asked:
        case.world.drains.cancel(each, "somebody")


def cancel_first(case: Case) -> None:
    case.gone.add(case.asked[0].uuid)
    case.world.drains.cancel(case.asked[0], "somebody")


def delete(case: Case) -> None:
    case.world.drains.delete(case.asked)


def newcomers(case: Case) -> None:
    """Executors come up. A commit for them would be the last one of the run, and name no request."""
    case.driver.fleet.newcomers = lambda: ["another"]  # type: ignore[method-assign]


def away(call: Call, folder: str, times: int, error: BaseException | None = None, *, done: bool = False) -> Fault:
    """So many calls for objects of requests fail; `done`: once they have done their work."""

    def strikes(case: Case) -> None:
        left = iter(range(times))

        def hook(made: Call, key: str) -> None:
            if made == call and f"/metadata/{folder}" in key and next(left, None) is not None:
                raise error or RetryableError("the store is away")

        setattr(case.world.store, "after" if done else "before", hook)

    strikes.__name__ = f"{call} {folder} fails {times} times" + " when it is done" * done
    return strikes


def kill_at_deletion(number: int) -> Fault:
    """The driver is killed before its deletion of this number, of requests and of what cancels them."""

    def strikes(case: Case) -> None:
        left = iter(range(number))

        def before(call: Call, key: str) -> None:
            counts = call == "delete" and (f"/metadata/{NAMESPACE}/" in key or "/drain-cancel/" in key)
            if counts and next(left, None) is None:
                raise KilledError

        case.world.store.before = before

    strikes.__name__ = f"kill at deletion {number}"
    return strikes


Row = tuple[str, tuple[Fault, ...]]


def name(row: object) -> str:
    return row if isinstance(row, str) else "+".join(each.__name__ for each in row)  # type: ignore[attr-defined]


STEPS = ("start-run", "stage 1", "stage 2", "sink", "end", "snapshot", "upload")
DRAINED: list[Row] = [
    *((step, (fault,)) for step, fault in product(STEPS, (lose, kill))),
    ("unseen", (restart,)),  # it is inherited
    ("unseen", (lose,)),  # a rewind looks for requests
    ("unseen", (stop,)),
    ("unseen", (restart, stop)),
    ("unseen", (stop, stop)),  # the next start drains
    ("unseen", (away("list", NAMESPACE, 3), stop)),
    ("unseen", (away("list", NAMESPACE, 3), restart)),
    ("asked", (ask, ask)),
    ("asked", (ask, cancel_first)),
    ("asked", (stop,)),
    ("asked", (away("list", NAMESPACE, 10),)),
    ("asked", (away("get", "drain-cancel", 10),)),
    ("draining", (stop,)),
    ("draining", (stop, stop)),
    ("draining", (newcomers,)),
    ("clean-up", (cancel,)),  # too late
]


@pytest.mark.parametrize(("when", "faults"), DRAINED, ids=name)
def test_the_run_drains(timed_world: TimedWorld, when: str, faults: tuple[Fault, ...]) -> None:
    """Everything that waits comes out, nothing more is read, and one record answers the requests."""
    timed_world.config["job.retry.max"] = 1
    case = Case(timed_world)
    committed = timed_world.checkpoints[-1].next_offsets
    case.strike(when, faults)
    case.end()
    assert case.struck
    assert timed_world.came() == ALL
    last = timed_world.checkpoints[-1]
    assert (last.ended, last.next_offsets) == ("drained", committed)
    assert case.answered == tuple(sorted(str(each.uuid) for each in case.asked if each.uuid not in case.gone))
    assert [record.ended for record in timed_world.checkpoints].count("drained") == 1
    assert case.left == []


READS_ON: list[Row] = [
    ("asked", (cancel,)),
    ("draining", (cancel,)),
    ("draining", (delete,)),
    ("asked", (cancel, away("delete", NAMESPACE, 1, done=True))),
    ("asked", (ask, cancel, away("delete", NAMESPACE, 1, done=True))),
    *(("asked", (cancel, kill_at_deletion(number))) for number in range(2)),
    *(("asked", (ask, cancel, kill_at_deletion(number))) for number in range(4)),
]


@pytest.mark.few(8)
@pytest.mark.parametrize(("when", "faults"), READS_ON, ids=name)
def test_the_run_reads_on(timed_world: TimedWorld, when: str, faults: tuple[Fault, ...]) -> None:
    """The requests are taken back before the last commit. The same one may come again, as by an import."""
    case = Case(timed_world)
    case.strike(when, faults)
    case.reads_on()
    assert not case.driver.loop.boundary.closed
    assert case.driver.board.phase == "running"
    assert case.left == []
    if when == "asked":
        assert not any(batch.control == "drain" for batch in HoldNode.batches)
    timed_world.drains.write(case.asked[0])
    case.driver.loop.parts.of(Drain).ask()
    ends(case.driver)
    assert case.answered == (str(case.asked[0].uuid),)


STOPPED: list[Row] = [("draining", (stop, cancel)), ("asked", (delete, stop)), ("unseen", (cancel, stop))]


@pytest.mark.parametrize(("when", "faults"), STOPPED, ids=name)
def test_a_stop_counts_if_the_drain_is_taken_back(
    timed_world: TimedWorld, when: str, faults: tuple[Fault, ...]
) -> None:
    case = Case(timed_world)
    case.strike(when, faults)
    ends(case.driver)
    last = timed_world.checkpoints[-1]
    assert (last.ended, case.answered, case.left) == ("stopped", (), [])
    assert "one.hold" in last.stores, "what waits still waits"


@pytest.mark.parametrize("deletion", range(2))
def test_a_request_that_was_answered_drains_no_other_run(timed_world: TimedWorld, deletion: int) -> None:
    """The driver is killed behind the record, before the request and what cancels it are gone."""
    case = Case(timed_world)
    case.strike("clean-up", (cancel, kill_at_deletion(deletion)))
    with pytest.raises(KilledError):
        ends(case.driver)
    timed_world.kill(case.driver)
    assert case.answered == (str(case.asked[0].uuid),)
    second = timed_world.started()
    assert second.job.claim.run_id != case.driver.job.claim.run_id
    assert steps(second) > 0, "it reads on"
    assert case.left == []


def test_a_request_to_cancel_comes_between_the_last_record_and_the_end(timed_world: TimedWorld) -> None:
    """A container is lost behind the record: the run has drained, whatever comes then."""
    case, opened = Case(timed_world), threading.Event()

    def at(step: str) -> None:
        if step == "open":
            opened.set()
        if step == "clean-up" and case.driver.board.phase == "stopping" and not opened.is_set():
            case.driver.fleet.lose(1)
            cancel(case)
            assert opened.wait(60)

    case.driver.loop.parts.of(Drain).ask()
    case.driver.fleet.at = at
    ends(case.driver)
    assert opened.is_set()
    assert timed_world.came() == ALL
    drained = {each.section(DRAIN).answered for each in timed_world.checkpoints if each.ended == "drained"}
    assert drained == {(str(case.asked[0].uuid),)}
    assert timed_world.checkpoints[-1].ended == "drained"
    assert case.left == []


def test_what_fired_too_early_waits_again(timed_world: TimedWorld) -> None:
    """The drain is taken back behind its batch: the run goes back to its last checkpoint."""
    case = Case(timed_world)
    case.strike("draining", (cancel,))
    case.reads_on()
    timed_world.put(10, 10, 1000, 1000)
    steps(case.driver)
    assert set(timed_world.came()) >= {0, 1, 2, 3}
    assert timed_world.came()[6] in (["one"], ["one", "two"]), "late, as without a drain"


def waits(world: TimedWorld) -> InProcessDriver:
    """A driver with messages that wait for time."""
    world.put(10, 20, 30, 40)
    driver = world.started()
    steps(driver)
    assert set(world.came()) < set(world.given)
    return driver


def test_the_record_of_a_drain_and_the_next_run(timed_world: TimedWorld) -> None:
    """The next run reads on from there, with event time from the beginning."""
    driver = waits(timed_world)
    positions = driver.loop.boundary.positions
    timed_world.put(50, 60)
    timed_world.ask_to_drain(driver)
    ends(driver)
    last = timed_world.checkpoints[-1]
    assert (last.section(TIME).event_times, last.section(TIME).watermarks, last.ended_inputs) == ({}, {}, ())
    assert {at: last.next_offsets[at.task][at.ssp] for at in positions} == dict(positions)
    drained = HoldNode.batches[-1]
    assert [batch.control for batch in HoldNode.batches].count("drain") == 4, "two operators of two tasks"
    assert {drained.firing_watermark(op) for op in ("one", "two")} == {END_OF_TIME}
    second = timed_world.started()
    assert second.job.claim.run_id != driver.job.claim.run_id
    assert second.loop.boundary.watermarks == {}
    timed_world.put(90, 90)
    steps(second)
    assert timed_world.came()[4] == timed_world.came()[5] == []


@pytest.mark.parametrize("through", [False, True])
def test_no_commit_but_the_last_is_of_a_closed_boundary(timed_world: TimedWorld, *, through: bool) -> None:
    """Although commits fall due behind each batch of the drain."""
    timed_world.through = through
    timed_world.config["task.commit.ms"] = 1
    driver = waits(timed_world)
    timed_world.ask_to_drain(driver)
    commits: list[tuple[bool, bool, str]] = []

    def at(step: str) -> None:
        timed_world.clock.advance(10)
        if step == "snapshot":
            boundary = driver.loop.boundary
            commits.append((boundary.closed, boundary.partly_closed, driver.board.phase))

    driver.fleet.at = driver.runner.at = at
    ends(driver)
    *others, last = commits
    assert last == (True, False, "stopping")
    assert not any(closed or partly for closed, partly, _ in others)
    assert [record.ended for record in timed_world.checkpoints].count("drained") == 1


def test_a_run_that_is_started_to_drain_asks_once(timed_world: TimedWorld) -> None:
    """As `penstock run --drain` does. A container is lost in the drain."""
    driver = timed_world.driver()
    driver.loop.parts.of(Drain).drain(at_start=True)
    driver.loop.start()
    driver.loop.step()
    driver.fleet.lose(1)
    ends(driver)
    last = timed_world.checkpoints[-1]
    assert (last.ended, len(last.section(DRAIN).answered)) == ("drained", 1)


def test_a_request_at_the_end_of_what_a_run_was_to_read(timed_world: TimedWorld) -> None:
    timed_world.put(10, 20, 30, 40)
    driver = timed_world.started(until_latest=True, close=False)
    steps(driver)
    asked = timed_world.ask_to_drain()
    ends(driver)
    assert timed_world.checkpoints[-1].section(DRAIN).answered == (str(asked.uuid),)


def test_a_request_in_the_last_commit_is_reported(timed_world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
    driver, late = waits(timed_world), list[DrainNotification]()
    came = timed_world.came()

    def at(step: str) -> None:
        if step == "snapshot" and not late:
            late.append(timed_world.ask_to_drain())

    driver.fleet.at = at
    driver.stop.request()
    ends(driver)
    assert (timed_world.checkpoints[-1].ended, timed_world.came()) == ("stopped", came)
    assert timed_world.drains.find().notifications == ()
    said = [each.message for each in caplog.records if str(late[0].uuid) in each.message]
    assert said == [f"the run ended before it saw the request to drain it ({late[0].uuid}): nothing drains"]


@pytest.mark.parametrize("before", [True, False])
def test_an_inherited_drain_is_loud(timed_world: TimedWorld, caplog: pytest.LogCaptureFixture, before: bool) -> None:
    caplog.set_level(logging.INFO)
    case = Case(timed_world)
    case.strike("unseen" if before else "asked", (restart,) if before else ())
    ends(case.driver)
    (said,) = [each for each in caplog.records if f"request {case.asked[0].uuid}" in each.message]
    assert (said.levelname, "before this start" in said.message) == (("WARNING", True) if before else ("INFO", False))


def test_inputs_that_are_down_delay_no_drain(timed_world: TimedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at them."""
    case, offsets = Case(timed_world), MemoryAdmin.offsets

    def down(admin: MemoryAdmin, stream: str) -> object:
        if stream == "in":
            raise RetryableError("the input is down")
        return offsets(admin, stream)

    case.strike("asked", ())
    with monkeypatch.context() as patch:
        patch.setattr(MemoryAdmin, "offsets", down)
        ends(case.driver, 20)
    assert (timed_world.came(), timed_world.checkpoints[-1].ended) == (ALL, "drained")


class TestMonitor:
    """The thread that looks for requests."""

    def test_it_tells_a_run_that_is_idle_and_reports_what_it_cannot_read(
        self, timed_world: TimedWorld, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = timed_world.paths.metadata(NAMESPACE, "not-a-uuid")
        timed_world.objects.put_if_absent(path, b"{")
        timed_world.config["job.drain-monitor.poll.interval.ms"] = 5
        driver = waits(timed_world)
        asked = timed_world.ask_to_drain()
        while not driver.loop.step():
            pass
        driver.loop.finish()
        assert timed_world.came() == ALL
        assert timed_world.checkpoints[-1].section(DRAIN).answered == (str(asked.uuid),)
        assert len([record for record in caplog.records if path in record.message]) == 1

    def test_it_ends_with_its_run(self, timed_world: TimedWorld) -> None:
        timed_world.config["job.drain-monitor.poll.interval.ms"] = LATER_MS
        before = set(threading.enumerate())
        driver = waits(timed_world)
        assert [each.name for each in set(threading.enumerate()) - before].count("penstock-drain-monitor") == 1
        driver.stop.request()
        driver.loop.run_to_the_end()
        driver.close()
        assert "penstock-drain-monitor" not in {each.name for each in set(threading.enumerate()) - before}

    def test_a_run_without_one_reads_on(self, timed_world: TimedWorld) -> None:
        timed_world.config["job.drain-monitor.enabled"] = "false"
        driver = waits(timed_world)
        timed_world.ask_to_drain()
        timed_world.put(50, 60)
        assert steps(driver) > 0
        driver.loop.commit()
        driver.close()
        timed_world.put(70)
        assert steps(timed_world.started()) > 0

    @pytest.mark.parametrize("deletion", [None, 0, 1])
    def test_a_request_for_the_next_run_ends_with_one_that_does_not_obey(
        self, timed_world: TimedWorld, caplog: pytest.LogCaptureFixture, deletion: int | None
    ) -> None:
        """No later run, which nobody meant, drains. The driver may be killed before a deletion."""
        notification = timed_world.ask_to_drain()
        assert notification.run_id == "*"
        timed_world.config |= {"job.drain-monitor.enabled": "false", "app.run.id": "v1"}
        timed_world.put(10, 20)
        first = timed_world.started()
        if deletion is None:
            assert steps(first) > 0
            said = f"the request {notification.uuid} to drain the next run is deleted: run v1 is the next one"
            assert said in caplog.text
        else:
            deletions = iter(range(deletion))

            def before(call: Call, key: str) -> None:
                if call == "delete" and "/metadata/" in key and next(deletions, None) is None:
                    raise KilledError

            timed_world.store.before = before
            with pytest.raises(KilledError):
                steps(first)
        timed_world.kill(first)
        timed_world.config |= {"job.drain-monitor.enabled": "true", "app.run.id": "v2"}
        timed_world.put(30)
        later = timed_world.started()
        assert steps(later) > 0, "it reads on"
        assert not later.loop.boundary.closed
        assert timed_world.drains.find().notifications == ()

    def test_a_request_that_comes_while_the_store_is_read_is_not_overlooked(self, timed_world: TimedWorld) -> None:
        """Without a monitor, nothing would look for it again."""
        keys = {"app.run.id": "a", "job.drain-monitor.enabled": "false"}
        drain = timed_world.make(timed_world.app().graph(), keys).loop.parts.of(Drain)

        def before(call: Call, key: str) -> None:
            if call == "list" and "drain-cancel" in key:
                timed_world.store.heal()
                timed_world.drains.write(DrainNotification.create(uuid.uuid4(), "a"))
                drain.ask()

        timed_world.store.before = before
        drain.ask()
        assert not drain.look()
        assert drain.look()


class TestRuns:
    """The run that a request is for, and the run that may delete it."""

    def started(self, world: TimedWorld, run_id: str) -> InProcessDriver:
        world.config["app.run.id"] = run_id
        return world.started()

    def test_the_request_of_another_run_drains_nothing_and_is_deleted(self, timed_world: TimedWorld) -> None:
        timed_world.drains.ask("another")
        driver = waits(timed_world)
        assert timed_world.drains.find().notifications == ()
        assert not driver.loop.boundary.closed

    def test_a_request_under_another_name_drains_nothing(self, timed_world: TimedWorld) -> None:
        """It could not be deleted."""
        case = Case(timed_world)
        path = timed_world.paths.metadata(NAMESPACE, str(case.asked[0].uuid))
        mine = timed_world.paths.metadata(NAMESPACE, "mine")
        timed_world.objects.put_if_absent(mine, timed_world.objects.get(path))
        timed_world.objects.delete(path)
        assert [each for each, _ in timed_world.drains.find().unreadable] == [mine]
        case.strike("asked", ())
        steps(case.driver)
        assert not case.driver.loop.boundary.closed

    def test_a_stop_ends_no_named_run(self, timed_world: TimedWorld) -> None:
        """A request that a restart finds is obeyed, though the run was stopped before."""
        driver = self.started(timed_world, "v1")
        driver.stop.request()
        ends(driver)
        driver.close()
        assert present_run(timed_world.log, timed_world.objects, timed_world.paths) is None
        timed_world.drains.ask("v1")
        second = self.started(timed_world, "v1")
        assert present_run(timed_world.log, timed_world.objects, timed_world.paths) == "v1"
        ends(second)
        assert timed_world.checkpoints[-1].ended == "drained"
        with pytest.raises(ConfigError, match="run `v1` has drained"):
            self.started(timed_world, "v1")

    def test_a_request_is_for_the_named_run_only(self, timed_world: TimedWorld) -> None:
        self.started(timed_world, "v1").close()
        assert timed_world.ask_to_drain().run_id == "v1"
        second = self.started(timed_world, "v2")
        timed_world.put(10, 20)
        steps(second)
        assert sum(second.loop.boundary.positions.values()) == 2, "it reads on"
        assert timed_world.drains.find().notifications == ()

    def test_a_named_run_is_there_from_its_lease_on(self, timed_world: TimedWorld) -> None:
        driver = self.started(timed_world, "v1")
        driver.stop.request()
        ends(driver)
        driver.close()
        third = timed_world.driver()
        held = LeaseState(LeaseHolder.of_this_process("v1"), 60_000, "token")
        timed_world.objects.put_if_absent(timed_world.paths.lease, held.encode())
        assert present_run(timed_world.log, timed_world.objects, timed_world.paths) == "v1"
        third.close()

    def test_a_driver_that_lost_its_job_deletes_no_request_of_the_new_run(self, timed_world: TimedWorld) -> None:
        keys = {"app.run.id": "a", "job.drain-monitor.enabled": "false"}
        drain = timed_world.make(timed_world.app().graph(), keys).loop.parts.of(Drain)
        ends_drained(self.started(timed_world, "a"), timed_world)
        del timed_world.config["app.run.id"]
        timed_world.started()
        own = timed_world.ask_to_drain()
        drain.ask()
        assert not drain.look()
        assert timed_world.drains.find().notifications == (own,)

    def test_a_handle_drains_its_own_run_only(self, timed_world: TimedWorld) -> None:
        former = timed_world.started()
        ends_drained(former, timed_world)
        former.close()
        timed_world.started()
        run_id = former.job.claim.run_id
        with pytest.raises(NotFoundError, match=f"run {run_id} of job timed-1 has ended"):
            write_drain_notification(timed_world.objects, timed_world.paths, only_run=run_id)
        assert timed_world.drains.find().notifications == ()

    def test_a_request_needs_a_run_that_is_there(self, timed_world: TimedWorld) -> None:
        driver = waits(timed_world)
        run_id = driver.job.claim.run_id
        assert present_run(timed_world.log, timed_world.objects, timed_world.paths) == run_id
        held = LeaseState(LeaseHolder.of_this_process(run_id), 60_000, "token")
        timed_world.objects.put_if_absent(timed_world.paths.lease, held.encode())
        with pytest.raises(NotFoundError, match=f"belongs to run {run_id}, not to run v2"):
            write_drain_notification(timed_world.objects, timed_world.paths, run_id="v2")
        timed_world.objects.delete(timed_world.paths.lease)
        ends_drained(driver, timed_world)
        for given in (None, run_id):
            with pytest.raises(NotFoundError, match="has no run that could drain: its last run has drained"):
                write_drain_notification(timed_world.objects, timed_world.paths, run_id=given)
        assert timed_world.drains.find().notifications == ()

    @pytest.mark.parametrize("given", ["*", "a b", "../v1", ""])
    def test_what_no_run_is_called(self, timed_world: TimedWorld, given: str) -> None:
        with pytest.raises(ConfigError, match="no run has the id"):
            write_drain_notification(timed_world.objects, timed_world.paths, run_id=given)

    def test_cleaning_up(self, timed_world: TimedWorld) -> None:
        for run_id in "aab":
            timed_world.drains.ask(run_id)
        assert DrainRequests(timed_world.objects, timed_world.paths).clear("a") == 2
        assert DrainRequests(timed_world.objects, timed_world.paths).clear() == 1

    def test_a_request_to_cancel_that_comes_while_remains_are_deleted_stays(self, timed_world: TimedWorld) -> None:
        """Its notification is younger than the listing of the others."""
        timed_world.drains.cancel(DrainNotification.create(uuid.uuid4(), "a"), "a stale one")

        def before(call: Call, key: str) -> None:
            if call == "list" and NAMESPACE in key:
                younger = timed_world.drains.ask("a")
                timed_world.drains.cancel(younger, "somebody")

        timed_world.store.before = before
        DrainRequests(timed_world.store, timed_world.paths).delete_remains()
        assert len(timed_world.objects.list(timed_world.paths.metadata_folder("drain-cancel"))) == 1


def ends_drained(driver: InProcessDriver, world: TimedWorld) -> None:
    asked = world.ask_to_drain(driver)
    assert asked.drain_mode is DrainMode.DEFAULT
    ends(driver)
    assert world.checkpoints[-1].ended == "drained"
