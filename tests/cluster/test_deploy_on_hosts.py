"""`penstock deploy` on a Spark standalone cluster of two hosts: both jobs have containers on both of them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.jobs.deployed_jobs import NEW, OLD, DeployedJobs
from tests.support.processes.hosts import why_no_hosts
from tests.support.processes.standalone import environment, standalone

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(why_no_hosts() is not None, reason=str(why_no_hosts())),
]
SHARE = {
    "spark.cores.max": 2,
    "spark.executor.cores": 1,
    "spark.executor.instances": 2,
    "job.container.start.timeout.ms": 120_000,
}
"""Each job has one core of each host."""


def test_a_job_on_two_hosts_takes_over_from_another_one(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(standalone(tmp_path / "spark", cores=2))
        jobs = DeployedJobs(tmp_path, config={**cluster.config, **SHARE})
        place = {"prefix": cluster.main.prefix, "environ": environment()}
        with jobs.publishing():
            old = stack.enter_context(jobs.started(OLD, **place))
            new = stack.enter_context(jobs.deploy(NEW, **place))
            jobs.await_output_of(new, "new")
            old.ended()
        jobs.settle(new, "old", "new")
        assert all(cluster.containers(host) for host in cluster.workers)
        new.stopped()
    jobs.verify("old", "new")
