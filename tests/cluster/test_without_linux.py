"""A job on local Spark whose processes have none of what only Linux has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.jobs.home import DriverProcess, Home, kill, wait_until
from tests.support.tools.places import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HIDDEN = os.pathsep.join([str(ROOT / "tests/support/without_linux"), str(ROOT)])


@pytest.mark.parametrize("target_ms", [None, 50])
def test_it_processes_everything_once_although_a_container_is_killed(tmp_path: Path, target_ms: int | None) -> None:
    home = Home(tmp_path, job_batch_max_messages=40, container_lost_ms=5000)
    if target_ms is not None:
        home.config["job.latency.target.ms"] = target_ms
    home.publish(2000)
    with DriverProcess(home, "totals", None, {}, environ={**os.environ, "PYTHONPATH": HIDDEN}) as driver:
        assert driver.await_output(500)
        containers = driver.await_containers()
        assert all("without_linux" in each.environ()["PYTHONPATH"] for each in (*containers, *driver.workers()))
        assert kill(containers[0])
        ended = driver.stopped()
    home.verify()
    assert ended.error is None
    if target_ms is not None:
        wait_until(lambda: not driver.direct_workers(), "the direct worker to end with its driver")
