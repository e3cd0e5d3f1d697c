"""Commits beside the batches: what goes on during an upload, and what waits for it."""

from __future__ import annotations

import pytest

from tests.support.jobs.home import wait_until
from tests.support.jobs.running_job import ASKED, EVERY_BATCH, NO_DELAY, TASKS, Running, offsets

pytestmark = pytest.mark.spark


def test_batches_go_on_while_an_upload_lasts_and_commits_that_are_due_are_skipped(running: Running) -> None:
    running.start(EVERY_BATCH)
    running.hold()
    running.publish()
    running.await_held()
    before = running.count
    for _ in range(3):
        running.publish()
        running.await_batches()
    assert running.count == before
    assert running.looks == 0, "nothing waited"
    assert len(running.faults.trace("snapshot.begin")) == 2 * TASKS, "the start's and the one in flight: others wait"
    assert running.job is not None
    assert running.job.last_checkpoint == str(running.checkpoints[-1].id)
    running.faults.open()
    wait_until(lambda: offsets(running.checkpoints[-1]) == running.published, "the commit of all the rest")
    held, rest = running.checkpoints[before : before + 2]
    assert offsets(held) < offsets(rest) == running.published
    assert len(running.faults.trace("snapshot.begin")) == 3 * TASKS, "what was skipped is in one commit"
    running.publish()
    running.await_batches()
    progress = running.job.last_progress
    assert progress is not None
    assert progress["commitMs"].keys() == {"snapshot", "total"}
    assert 0 <= progress["commitMs"]["snapshot"] <= progress["commitMs"]["total"]
    running.finish()


@pytest.mark.slow
def test_after_max_delay_processing_waits_for_the_commit_in_flight(running: Running) -> None:
    running.start(EVERY_BATCH, NO_DELAY)
    running.hold()
    running.publish()
    running.await_held()
    running.publish()  # as one batch or as two, of which the second has to wait
    running.await_looks()
    waiting_at = running.outputs
    running.publish()
    running.await_looks()
    assert running.outputs == waiting_at, "no batch while processing waits"
    running.faults.open()
    running.await_batches()
    assert running.job is not None
    progress = running.job.last_progress
    assert progress is not None
    assert progress["durationMs"].keys() >= {"commitWait", "walCommit"}
    running.finish()


@pytest.mark.slow
def test_pending_bytes_make_processing_wait_before_max_delay(running: Running) -> None:
    running.start(EVERY_BATCH, {"task.commit.max.pending.bytes": 1})
    running.hold()
    running.publish()
    running.await_held()
    wait_until(lambda: running.publish(4) or running.looks > 0, "pending bytes are told and processing waits")  # type: ignore[func-returns-value]
    running.faults.open()
    running.await_batches()
    running.finish()


@pytest.mark.slow
def test_a_commit_that_is_asked_for_does_not_wait_for_its_time(running: Running) -> None:
    """A commit is made after the one in flight, though nothing more comes."""
    running.start(ASKED)
    running.publish()
    running.await_batches()
    assert running.count == 1, "nobody asked"
    running.publish(commit=True)
    wait_until(lambda: running.count == 2, "the commit that was asked for")
    running.hold()
    running.publish(commit=True)
    running.await_held()
    running.publish(commit=True)
    running.await_batches()
    assert running.count == 2
    running.faults.open()
    wait_until(lambda: running.count == 4, "the commit in flight, and the one that was asked for meanwhile")
    assert offsets(running.checkpoints[-1]) == running.published
    running.finish()
    assert running.count == 5
    assert running.checkpoints[-1].ended == "stopped"
