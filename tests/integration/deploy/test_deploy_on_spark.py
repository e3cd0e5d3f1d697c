"""`penstock deploy` on a real Spark: a changed job takes over from a running one, and that one comes back."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.jobs.deployed_jobs import NEW, OLD, DeployedJobs

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_changed_job_takes_over_from_a_running_one_and_that_one_comes_back(tmp_path: Path) -> None:
    jobs = DeployedJobs(tmp_path)
    with ExitStack() as stack:
        with jobs.publishing():
            old = stack.enter_context(jobs.started(OLD))
            new = stack.enter_context(jobs.deploy(NEW))
            jobs.await_output_of(new, "new")
            old.ended()
            with jobs.run(OLD) as again:
                assert f"job `{OLD}` has handed over to job `{NEW}`" in again.ended(None)
        jobs.settle(new, "old", "new")
        with jobs.publishing():
            back = stack.enter_context(jobs.deploy(OLD, "--rollback"))
            new.ended()
        jobs.settle(back, "old", "new", "old")
        back.stopped()
    jobs.verify("old", "new", "old")
