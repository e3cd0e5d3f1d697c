"""The end of a batch that waits until stores are copied."""

from __future__ import annotations

import logging
import os
import re
import signal

import pytest

from penstock.errors import PenstockTimeoutError
from tests.support.faults.plan import Fault
from tests.support.jobs.home import DEADLINE_S, wait_until
from tests.support.jobs.running_job import EVERY_BATCH, Running, offsets

pytestmark = [pytest.mark.spark, pytest.mark.slow]


BRIEF_HOLDS = {"stores.backup.factories": "tests.support.faults.fault_backend:BriefHolds"}


def await_refused_end(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    """One store's copy stands at the gate, in one of two containers; the next batch's End is asked for again."""
    running.publish()
    wait_until(lambda: running.failed or offsets(running.checkpoints[-1]) == running.published, "a commit")
    running.faults.plan(Fault("hold-gate", "copy.begin", "block"))
    running.publish()
    running.await_held()
    running.publish()
    wait_until(lambda: running.failed or len(refusals(caplog)) >= 3, "an End that is refused more than once")
    assert not running.failed, running.failed


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines of the driver for each End that a container asked it to repeat."""
    found = (record.getMessage() for record in caplog.records)
    return [text for text in found if re.search(r"batch \d+ waits for its end: the stores of task \d are", text)]


def test_an_end_is_asked_for_until_the_stores_are_copied(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "penstock.spark"):
        job = running.start(EVERY_BATCH, BRIEF_HOLDS)
        await_refused_end(running, caplog)
        ended = job.last_progress
        assert ended is not None
        seen = len(refusals(caplog))
        wait_until(lambda: running.failed or len(refusals(caplog)) >= seen + 3, "it goes on asking")
        assert job.last_progress == ended, "the batch has not ended, though the other container has applied it"
        running.faults.open()
        running.await_batches()
    assert len(set(refusals(caplog))) == 1, "only one task of one batch had to wait"
    running.finish()
    assert len(running.home.log.claims) == 1, "it is no lost container"


def test_a_container_lost_while_another_copies_is_replaced(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "penstock.spark"):
        running.start(EVERY_BATCH, BRIEF_HOLDS, {"task.shutdown.ms": 1000})
        await_refused_end(running, caplog)
        (holding,) = {task for text in set(refusals(caplog)) for task in re.findall(r"task (\d)", text)}
        pids = {str(each["task"]): int(each["pid"]) for each in running.faults.trace("snapshot.begin")}
        os.kill(next(pid for task, pid in pids.items() if task != holding), signal.SIGKILL)
        wait_until(lambda: running.failed or len(running.home.log.claims) > 1, "a new epoch")
        assert not running.failed, running.failed
        running.faults.open()
        running.await_batches()
    running.finish()


def test_an_end_that_waits_too_long_ends_the_run_for_the_next(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "penstock.spark"):
        job = running.start(EVERY_BATCH, BRIEF_HOLDS, {"task.commit.timeout.ms": 8000, "task.shutdown.ms": 1000})
        await_refused_end(running, caplog)
        last = running.checkpoints[-1]
        with pytest.raises(PenstockTimeoutError, match=r"batch \d+ could not end within task\.commit\.timeout\.ms"):
            job.await_termination(DEADLINE_S)
    assert running.checkpoints[-1] == last
    assert len(running.home.log.claims) == 1, "it is no lost container"
    running.faults.open()
    running.start(BRIEF_HOLDS, until="latest").await_termination(DEADLINE_S)
    running.home.verify()
