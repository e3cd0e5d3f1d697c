"""Commits at the end of a run, and failures of commits that end one."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock as ps
from tests.support.faults.plan import Fault
from tests.support.jobs.home import DEADLINE_S, wait_until
from tests.support.jobs.running_job import ASKED, EVERY_BATCH, NO_DELAY, TASKS, Running

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("moment", ["the last commit", "the one before", "a batch that waits"])
def test_a_second_stop_while_a_commit_is_awaited_ends_the_run_at_once(running: Running, moment: str) -> None:
    """As after a crash: what is in flight is dropped, and it is no failure."""
    job = running.start(EVERY_BATCH if moment == "a batch that waits" else ASKED, NO_DELAY)
    running.hold()
    running.publish(commit=moment != "the last commit")
    if moment == "a batch that waits":
        running.await_held()
        running.publish()
        running.await_looks()
    else:
        running.await_output()
    if moment == "the one before":
        running.await_held()
    job.stop(wait=False)
    running.await_looks()
    before = running.count
    job.stop(wait=False)
    assert running.abandoned.wait(DEADLINE_S)
    running.faults.open()  # its uploads come to a good end, too late
    assert job.await_termination(DEADLINE_S)
    assert running.count == before
    assert running.checkpoints[-1].ended is None
    running.start(until="latest").await_termination(DEADLINE_S)
    running.home.verify()


def test_an_upload_that_fails_for_good_ends_an_idle_run(running: Running) -> None:
    job = running.start(ASKED)
    running.faults.plan(Fault("broken", "upload.end", "fail", task=1))
    running.publish(commit=True)
    with pytest.raises(ps.PenstockError, match="injected: `broken` is final"):
        job.await_termination(DEADLINE_S)
    assert job.phase == "failed"
    assert running.count == 1
    running.start(until="latest").await_termination(DEADLINE_S)
    running.home.verify()


def test_an_upload_that_fails_for_good_ends_the_run_in_the_middle_of_a_batch(running: Running, tmp_path: Path) -> None:
    """Not a commit later, and not a batch later: what the batch would have written is not there."""
    job = running.start(ASKED)
    running.faults.plan(
        Fault("held", "upload.begin", "block", times=TASKS), Fault("broken", "upload.end", "fail", task=0)
    )
    running.publish(commit=True)
    running.await_batches()
    before = running.outputs
    gate = tmp_path / "slow"
    running.home.append(0, [{"key": "k1", "n": 1, "do": "slow", "gate": str(gate)}])
    wait_until(gate.exists, "the batch is in the user's code")
    running.faults.open()
    with pytest.raises(ps.PenstockError, match="injected: `broken` is final"):
        job.await_termination(DEADLINE_S)
    assert running.outputs == before
    running.start(until="latest").await_termination(DEADLINE_S)
    running.home.verify()
