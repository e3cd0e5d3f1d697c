"""`kill -9` of the driver, of containers and of PySpark workers while a job runs: every total is right all the same."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults.chaos import chaos
from tests.support.jobs.home import DriverProcess, Home, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MESSAGES = 4000
KILLS = {1: 1, 2: 3, 3: 4}
"""By seed."""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.publish(MESSAGES, seed=7)
    return home


@pytest.mark.parametrize("seed", KILLS)
def test_the_driver_is_killed(home: Home, seed: int) -> None:
    with chaos(home, seed) as attack:
        for moment in attack.moments(KILLS[seed], MESSAGES):
            driver = attack.start()
            attack.await_moment(moment)
            attack.told.append(f"kill the driver {driver.pid} after {home.length('totals')} messages of output")
            driver.kill()
            old_containers = driver.containers
            wait_until(lambda: not old_containers(), "the containers of the killed driver to end")  # noqa: B023
        attack.start()
        attack.finish()
    assert len(home.log.claims) >= 2
    assert len({record.run_id for record in home.checkpoints}) == 1, "restarts keep the id of a run that has not ended"


@pytest.mark.parametrize("seed", KILLS)
def test_containers_are_killed(home: Home, seed: int) -> None:
    with chaos(home, seed) as attack:
        attack.start()
        struck = 0
        for moment in attack.moments(KILLS[seed] + 1, MESSAGES):
            struck += attack.await_moment(moment) and attack.strike(DriverProcess.containers, "container")
        attack.finish()
        assert struck == KILLS[seed] + 1
    assert len(home.log.claims) >= 2, "a lost container means a new epoch"


@pytest.mark.parametrize("master", ["local[2,4]", "local[2]"])
def test_pyspark_workers_are_killed(home: Home, master: str) -> None:
    """With `local[2,4]` Spark runs the task again, beside what the first attempt left; with `local[2]` the job fails
    and the batch is run again."""
    with chaos(home, 4, **{"spark.master": master, "job.retry.max": 20}) as attack:
        attack.start()
        struck = 0
        for moment in attack.moments(6, MESSAGES):
            struck += attack.await_moment(moment) and attack.strike(DriverProcess.workers, "PySpark worker")
        attack.finish()
        assert struck >= 4


def test_a_container_that_stood_still_is_lost(home: Home) -> None:
    with chaos(home, 8, **{"container.lost.ms": 2000}) as attack:
        driver = attack.start()
        assert attack.await_moment(800)
        stopped = driver.containers()[0]
        stopped.suspend()
        began = time.monotonic()
        wait_until(lambda: "silent for" in driver.log or not driver.running, "the loss of the container that stands")
        assert time.monotonic() - began >= 1.5
        if stopped.is_running():
            stopped.send_signal(signal.SIGCONT)
        attack.finish()
    assert len(home.log.claims) == 2
    assert re.search(r"epoch 2: 1 of 2 tasks moved \(\d to container \S+\); 1 kept its stores; .* read in", driver.log)


def test_code_that_never_returns_once_is_given_up_and_run_again(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.publish(300, seed=1)
    home.append(0, [{"key": "k1", "n": 1, "do": "block", "gate": str(tmp_path / "gate")}])
    home.publish(300, seed=2)
    with chaos(home, 1, **{"container.attempt.timeout.ms": 2000}) as attack:
        driver = attack.start()
        attack.finish()
        assert "container.attempt.timeout.ms is 2000" in driver.log


def test_slow_code_that_makes_progress_is_left_alone(tmp_path: Path) -> None:
    """The limit is for an attempt without progress: here a packet takes longer than it, but no message does."""
    home = Home(tmp_path)
    home.append(0, [{"key": "k1", "n": n, "do": "linger"} for n in range(60)])
    with chaos(home, 1, **{"container.attempt.timeout.ms": 3000}) as attack:
        driver = attack.start()
        attack.finish()
        assert "failure 1 since" not in driver.log
    assert len(home.log.claims) == 1


def test_code_that_never_returns_ends_the_run_in_the_end(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.publish(200, seed=1)
    home.append(0, [{"key": "k1", "n": 1, "do": "block", "gate": str(tmp_path / "gate"), "times": 1000}])
    with chaos(home, 1, **{"container.attempt.timeout.ms": 1000, "job.retry.max": 1}) as attack:
        ended = attack.start().ended()
    assert (ended.status, ended.error) == (1, "PenstockError")
    assert "container.attempt.timeout.ms" in ended.text
    home.verify_checkpoint(home.checkpoints[-1])


def test_code_in_a_spark_worker_that_never_returns_is_given_up_and_run_again(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.publish(200, seed=1)
    home.append(0, [{"key": "k1", "n": 1, "source gate": str(tmp_path / "gate")}])
    limits: dict[str, Any] = {"container.attempt.timeout.ms": 2000, "job.container.start.timeout.ms": 20_000}
    with chaos(home, 1, **limits) as attack:
        attack.driver = home.driver(app="blocking source", **attack.config)
        attack.finish()
