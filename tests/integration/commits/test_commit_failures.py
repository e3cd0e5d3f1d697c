"""Failures during a commit that pass, and containers that are lost meanwhile."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.faults.plan import Fault
from tests.support.jobs.home import DEADLINE_S, wait_until
from tests.support.jobs.running_job import EVERY_BATCH, NO_DELAY, Running, offsets

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_an_upload_is_tried_again(running: Running) -> None:
    running.start(EVERY_BATCH)
    running.faults.plan(
        Fault("nothing happened", "upload.begin", "retryable", times=2),
        Fault("half", "upload.middle", "retryable"),
        Fault("lost reply", "upload.end", "retryable", times=2),
    )
    running.publish()
    wait_until(lambda: running.failed or offsets(running.checkpoints[-1]) == running.published, "the commit")
    assert running.faults.left() == []
    running.finish()
    assert len(running.home.log.claims) == 1


@pytest.mark.slow
@pytest.mark.parametrize("point", ["snapshot.begin", "snapshot.end"])
def test_a_snapshot_that_fails_is_never_gone_on_from(running: Running, point: str) -> None:
    """Some changes were taken and are in no commit: whatever comes next must not be without them."""
    job = running.start(EVERY_BATCH)
    running.publish()
    running.await_batches()
    running.faults.plan(Fault("snapshot", point, "retryable", task=1))
    running.publish()
    wait_until(lambda: not job.is_active or not running.faults.left(), "the failure")
    running.publish()
    wait_until(
        lambda: not job.is_active or offsets(running.checkpoints[-1]) == running.published, "the end or a commit"
    )
    if job.is_active:
        running.finish()
    else:
        assert "injected" in str(job.exception)
        running.start(until="latest").await_termination(DEADLINE_S)
    running.home.verify()


@pytest.mark.slow
def test_a_clean_up_that_fails_costs_nothing(running: Running) -> None:
    running.start(EVERY_BATCH)
    running.faults.plan(
        Fault("once", "clean_up.begin", "retryable"),
        Fault("broken", "clean_up.end", "fail", times=2, skip=1),
    )
    for _ in range(3):
        running.publish()
        wait_until(lambda: running.failed or offsets(running.checkpoints[-1]) == running.published, "the commit")
    wait_until(lambda: not running.faults.left(), "the failures")
    running.finish()
    assert len(running.home.log.claims) == 1


@pytest.mark.slow
def test_one_manager_is_called_by_one_thread_at_a_time(running: Running) -> None:
    """The next snapshot of a task does not come before the clean-up of the commit before has ended."""
    running.start(EVERY_BATCH)
    running.hold("clean_up.begin")
    running.publish()
    running.await_held()
    snapshots = len(running.faults.trace("snapshot.begin"))
    for _ in range(2):
        running.publish()
        running.await_batches()
    assert len(running.faults.trace("snapshot.begin")) == snapshots
    running.finish()


def test_a_container_that_is_lost_while_processing_waits_for_another_is_replaced(running: Running) -> None:
    """One container's upload stands at the gate: that the other one is gone is noticed all the same."""
    running.start(EVERY_BATCH, NO_DELAY, {"task.shutdown.ms": 1000})
    running.publish()
    wait_until(lambda: offsets(running.checkpoints[-1]) == running.published, "a commit")
    running.faults.plan(Fault("hold-gate", "upload.begin", "block", task=0))
    running.publish()
    running.await_held()
    running.publish()
    running.await_looks()
    pids = {each["task"]: int(each["pid"]) for each in running.faults.trace("upload.begin")}
    assert pids[0] != pids[1], "two containers"
    os.kill(pids[1], signal.SIGKILL)
    wait_until(lambda: running.failed or len(running.home.log.claims) > 1, "a new epoch")
    assert not running.failed, running.failed
    running.faults.open()
    running.await_batches()
    running.finish()
