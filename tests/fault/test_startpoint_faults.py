"""A start with startpoints that dies at each of its writes, loses its containers, or meets another operator: each
request takes effect exactly once, at the offset that was resolved first."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.api.requests import Startpoint, StartpointSpecific, StartpointUpcoming
from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.record import CheckpointRecord
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.start.startpoints.manager import StartpointManager
from penstock.start.startpoints.request import StartpointRequest, WithState
from tests.support.apps.job_app import add_event
from tests.support.faults.plan import Fault
from tests.support.jobs.fault_jobs import FaultHome, executor_env
from tests.support.jobs.home import kill, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SIGKILLED = -9
CONFIG = {"task.commit.ms": 1, "job.batch.max.messages": 80, "job.lease.ms": 1500, **executor_env()}
ZERO, ONE = (SystemStreamPartition("local", "events", partition) for partition in range(2))
SEEN = 20
"""Messages of each partition that the first run reads."""
UNREAD = 5
"""Messages of each that came after it, and that `upcoming` skips."""
LATE = 3
"""Messages of each that came once the position was resolved for the first time."""


class StartHome(FaultHome):
    """A job that has read some messages; then others came."""

    def append_some(self, number: int) -> None:
        """To each partition."""
        for partition in range(2):
            there = len(self.events["events"][partition])
            self.append(partition, [{"key": f"k{partition}{n % 4}", "n": n} for n in range(there, there + number)])

    @property
    def manager(self) -> StartpointManager:
        return StartpointManager(open_store(str(self.config["job.root"])), JobPaths("totals", "1"))

    def request(self, ssp: SystemStreamPartition, startpoint: Startpoint, state: WithState) -> StartpointRequest:
        """Ask for it."""
        return self.manager.write_startpoint(ssp, startpoint, with_state=state)

    def starts(self) -> list[CheckpointRecord]:
        """The start checkpoints that took startpoints."""
        return [record for record in self.checkpoints if record.consumed_startpoints]

    def verify_counts(self, *parts: tuple[int, int, int]) -> None:
        """The state holds exactly the messages of these parts: (partition, from, to)."""
        expected: dict[str, tuple[int, int]] = {}
        for partition, begin, end in parts:
            for event in self.events["events"][partition][begin:end]:
                assert event is not None
                total = add_event(None, event)
                count, value = expected.get(event["key"], (0, 0))
                expected[event["key"]] = count + 1, value + total["sum"]
        found = {key: (total["count"], total["sum"]) for key, total in self.stored("totals").items()}
        assert found == expected


@pytest.fixture
def home(tmp_path: Path) -> StartHome:
    """After a first run, with messages that it has not seen."""
    made = StartHome(tmp_path, ("changelog-files",), CONFIG)
    made.append_some(SEEN)
    with made.driver() as first:
        first.succeeded()
    made.append_some(UNREAD)
    return made


# Killed at each write.

BEFORE = {"claim.before", "claim.after", "driver.snapshot.before", "driver.snapshot.after", "driver.upload.before"}
BEFORE |= {"driver.upload.after", "append.before"}
POINTS = ("claim", "append", "driver.snapshot", "driver.upload", "startpoint.delete")
KILLS = [f"{point}.{when}" for point in POINTS for when in ("before", "after")]


@pytest.mark.parametrize("point", KILLS)
def test_the_driver_is_killed_at_a_write_of_the_start(home: StartHome, point: str) -> None:
    """Before the start checkpoint the request is untouched, and resolved anew by the next start; from it on, before the
    first commit, the next start begins at the very same offset."""
    request = home.request(ZERO, StartpointUpcoming(), "keep")
    home.faults.plan(Fault("kill", point, "kill"))
    with home.driver() as dying:
        assert dying.ended().status == SIGKILLED
    untouched = point in BEFORE
    assert (request in home.manager.requests()) == (untouched or point in {"append.after", "startpoint.delete.before"})
    assert [record.consumed_startpoints for record in home.starts()] == ([] if untouched else [(request.uuid,)])
    home.append_some(LATE)
    with home.driver() as again:
        again.succeeded()
    assert not home.faults.left()
    assert home.manager.requests() == ()
    first = home.starts()[0]
    assert first.next_offsets[0][ZERO] == SEEN + UNREAD + (LATE if untouched else 0)
    end = SEEN + UNREAD + LATE
    home.verify_counts((0, 0, SEEN), (0, first.next_offsets[0][ZERO], end), (1, 0, end))


@pytest.mark.parametrize("point", ["append.before", "append.after"])
def test_a_start_with_empty_stores_is_killed(home: StartHome, point: str) -> None:
    """The state is left behind with the position or not at all."""
    home.request(ZERO, StartpointSpecific("11"), "clear")
    home.faults.plan(Fault("kill", point, "kill"))
    with home.driver() as dying:
        assert dying.ended().status == SIGKILLED
    if point == "append.before":
        home.verify_counts((0, 0, SEEN), (1, 0, SEEN))
    else:
        home.verify_counts()
    with home.driver() as again:
        again.succeeded()
    end = SEEN + UNREAD
    home.verify_counts((0, 11, end), (1, SEEN, end))
    assert home.manager.requests() == ()


# Containers.


def test_a_container_is_lost_before_the_start_checkpoint(home: StartHome) -> None:
    """The start is tried again in a new epoch, with what was resolved before."""
    request = home.request(ZERO, StartpointUpcoming(), "clear")
    home.faults.plan(Fault("hold", "driver.upload.before", "block"))
    with home.driver() as driver:
        wait_until(lambda: home.faults.is_reached("hold"), "the start commit")
        home.append_some(LATE)
        assert kill(driver.containers()[0])
        home.faults.open()
        driver.succeeded()
    assert len({record.epoch for record in home.starts()}) == 1
    assert len(home.log.claims) >= 3
    assert all(record.next_offsets[0][ZERO] == SEEN + UNREAD for record in home.starts())
    assert home.starts()[0].consumed_startpoints == (request.uuid,)
    end = SEEN + UNREAD + LATE
    # Messages that come after the run began are left to the next one (`until`).
    with home.driver() as rest:
        rest.succeeded()
    home.verify_counts((0, SEEN + UNREAD, end), (1, SEEN, end))


@pytest.mark.parametrize("point", ["driver.upload.before", "append.before"])
def test_a_container_is_lost_before_the_first_commit(home: StartHome, point: str) -> None:
    """A rewind never goes behind the start checkpoint, whose empty stores it restores."""
    home.request(ZERO, StartpointSpecific("11"), "clear")
    home.faults.plan(Fault("hold", point, "block", skip=1))
    with home.driver() as driver:
        wait_until(lambda: home.faults.is_reached("hold"), "the first commit after the start checkpoint")
        assert len(home.starts()) == 1
        assert home.manager.requests() == ()
        assert kill(driver.containers()[0])
        home.faults.open()
        driver.succeeded()
    end = SEEN + UNREAD
    home.verify_counts((0, 11, end), (1, SEEN, end))
    assert len(home.starts()) == 1


# Other operators.


def test_a_newer_request_is_never_deleted_unread(home: StartHome) -> None:
    """It comes between the start checkpoint and the deletion of the one before it: it is of the next start."""
    first = home.request(ZERO, StartpointSpecific("18"), "keep")
    home.faults.plan(Fault("hold", "startpoint.delete.before", "block"))
    with home.driver() as driver:
        wait_until(lambda: home.faults.is_reached("hold"), "the deletion of what the start has taken")
        newer = home.request(ZERO, StartpointSpecific("22"), "keep")
        assert first in home.manager.requests()
        home.faults.open()
        driver.succeeded()
    end = SEEN + UNREAD
    home.verify_counts((0, 0, SEEN), (0, 18, end), (1, 0, end))
    assert home.manager.requests() == (newer,)
    with home.driver() as second:
        second.succeeded()
    home.verify_counts((0, 0, SEEN), (0, 18, end), (0, 22, end), (1, 0, end))
    assert [record.consumed_startpoints for record in home.starts()] == [(first.uuid,), (newer.uuid,)]
    assert home.manager.requests() == ()


def test_a_request_of_a_running_job_applies_at_the_next_start_after_a_crash(home: StartHome) -> None:
    home.faults.plan(Fault("hold", "driver.upload.before", "block", skip=1))
    with home.driver() as driver:
        wait_until(lambda: home.faults.is_reached("hold"), "a commit")
        request = home.request(ZERO, StartpointSpecific("18"), "keep")
        driver.kill()
    assert home.manager.requests() == (request,)
    with home.driver() as again:
        again.succeeded()
    end = SEEN + UNREAD
    home.verify_counts((0, 0, SEEN), (0, 18, end), (1, 0, end))


def test_the_store_fails_while_the_taken_ones_are_deleted(home: StartHome) -> None:
    """No batch before they are gone: the start goes on from its own start checkpoint, which it writes once."""
    request = home.request(ZERO, StartpointSpecific("11"), "clear")
    home.faults.plan(Fault("fails", "startpoint.delete.before", "retryable", times=2))
    with home.driver() as driver:
        driver.succeeded()
    assert not home.faults.left()
    assert [record.consumed_startpoints for record in home.starts()] == [(request.uuid,)]
    assert {record.next_offsets[0][ZERO] for record in home.starts()} == {11}
    end = SEEN + UNREAD
    home.verify_counts((0, 11, end), (1, SEEN, end))
    assert home.manager.requests() == ()
