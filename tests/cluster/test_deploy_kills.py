"""`kill -9` while a job takes over from another one: one of them is in charge, and the same command goes on."""

from __future__ import annotations

import random
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.jobs.deployed_jobs import ASKED, HANDED, NEW, OLD, Command, DeployedJobs
from tests.support.jobs.home import kill, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def jobs(tmp_path: Path) -> DeployedJobs:
    return DeployedJobs(tmp_path)


def finish(jobs: DeployedJobs, new: Command) -> None:
    """Verify everything before and after the end of the job that has taken over."""
    jobs.settle(new, "old", "new")
    new.stopped()
    jobs.verify("old", "new")


@pytest.mark.parametrize("seed", range(3))
def test_the_command_is_killed_somewhere_and_given_again(jobs: DeployedJobs, seed: int) -> None:
    """Before it follows, while it does, or once the old job has handed over."""
    checkpoints = random.Random(seed).randint(1, 16)
    with ExitStack() as stack:
        with jobs.publishing():
            old = stack.enter_context(jobs.started(OLD))
            first = stack.enter_context(jobs.deploy(NEW))
            jobs.await_checkpoints(NEW, checkpoints)
            first.kill()
            new = stack.enter_context(jobs.deploy(NEW))
            jobs.await_output_of(new, "new")
            old.ended()
        finish(jobs, new)


@pytest.mark.parametrize("step", [ASKED, HANDED], ids=["asked", "handed over"])
def test_the_command_is_killed_just_behind_a_step_and_given_again(jobs: DeployedJobs, step: str) -> None:
    with ExitStack() as stack:
        with jobs.publishing():
            old = stack.enter_context(jobs.started(OLD))
            first = stack.enter_context(jobs.deploy(NEW))
            first.await_log(step)
            first.kill()
            old.ended()
            new = stack.enter_context(jobs.deploy(NEW))
            jobs.await_output_of(new, "new")
        finish(jobs, new)


def test_the_old_job_goes_on_after_the_command_was_killed(jobs: DeployedJobs) -> None:
    """It was asked to stop, and has not handed over: a start of it continues."""
    with ExitStack() as stack:
        with jobs.publishing():
            old = stack.enter_context(jobs.started(OLD))
            first = stack.enter_context(jobs.deploy(NEW))
            first.await_log(ASKED)
            first.kill()
            old.ended()
            old = stack.enter_context(jobs.started(OLD))
            new = stack.enter_context(jobs.deploy(NEW))
            jobs.await_output_of(new, "new")
            old.ended()
        finish(jobs, new)


def test_a_container_of_the_job_that_follows_is_killed(jobs: DeployedJobs) -> None:
    with ExitStack() as stack:
        with jobs.publishing():
            old = stack.enter_context(jobs.started(OLD))
            new = stack.enter_context(jobs.deploy(NEW))
            wait_until(lambda: jobs.made(NEW) or not new.running, "a checkpoint that it has followed")
            kill(new.containers()[0])
            jobs.await_output_of(new, "new")
            old.ended()
        assert "was killed by SIGKILL" in new.log
        finish(jobs, new)


def test_the_old_job_is_killed_while_it_is_followed_and_started_again(jobs: DeployedJobs) -> None:
    """The start comes before or behind the record that hands over: the job runs until it is asked to stop, or it is
    refused. One that was killed before it had published what its last checkpoint has does not hand over."""
    with ExitStack() as stack:
        with jobs.publishing():
            old = stack.enter_context(jobs.started(OLD))
            new = stack.enter_context(jobs.deploy(NEW))
            wait_until(lambda: jobs.made(NEW) or not new.running, "a checkpoint that it has followed")
            old.kill()
            again = stack.enter_context(jobs.run(OLD))
            wait_until(lambda: not again.running or not new.running, "the end of the old job")
            if not new.running:
                assert "has not published" in new.ended(None)
                new = stack.enter_context(jobs.deploy(NEW))
            jobs.await_output_of(new, "new")
            wait_until(lambda: not again.running, "the end of the old job")
            if again.process.returncode:
                assert f"has handed over to job `{NEW}`" in again.log
        finish(jobs, new)


def test_ctrl_c_while_the_old_job_stops_makes_no_change_of_charge(jobs: DeployedJobs) -> None:
    """Unless the change was made before the signal came."""
    with ExitStack() as stack:
        with jobs.publishing():
            old = stack.enter_context(jobs.started(OLD))
            first = stack.enter_context(jobs.deploy(NEW))
            first.await_log(ASKED)
            first.signal(signal.SIGINT)
            wait_until(lambda: not first.running, "the end of the command")
            old.ended()
            before, stopping, behind = first.log.partition("stopping after the current batch")
            assert stopping
            assert HANDED not in behind
            if HANDED not in before:
                old = stack.enter_context(jobs.started(OLD))
            new = stack.enter_context(jobs.deploy(NEW))
            jobs.await_output_of(new, "new")
            old.ended()
        finish(jobs, new)
