"""Kills beside the direct way: of its worker, of containers, of the driver. Every total is right all the same."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.faults.chaos import Chaos, Victims, chaos
from tests.support.jobs.home import DriverProcess, Home, wait_until
from tests.support.processes.inspection import has_ended

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MESSAGES = 4000


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(
        tmp_path,
        job_latency_target_ms=50,
        job_batch_max_messages=40,
        container_lost_ms=5000,
    )
    home.publish(MESSAGES, seed=7)
    return home


def test_its_worker_is_killed_again_and_again(home: Home) -> None:
    with chaos(home, 1) as attack:
        attack.start()
        struck = 0
        for moment in attack.moments(4, MESSAGES):
            struck += attack.await_moment(moment) and attack.strike(DriverProcess.direct_workers, "direct worker")
        attack.finish()
        assert struck == 4
    assert len(home.log.claims) == 1, "a lost worker is no reason for a new epoch"


def test_its_worker_stands_still(home: Home) -> None:
    with chaos(home, 2) as attack:
        driver = attack.start()
        attack.await_moment(1000)
        wait_until(driver.direct_workers, "the direct worker")
        (worker,) = driver.direct_workers()
        worker.send_signal(signal.SIGSTOP)
        wait_until(lambda: not worker.is_running(), "the worker that stands still to be killed")
        attack.finish()


@pytest.mark.parametrize("containers", [1, 3, 16])
def test_any_number_of_containers(home: Home, containers: int) -> None:
    with chaos(home, containers, **{"spark.master": f"local[{containers}]"}) as attack:
        driver = attack.start()
        assert attack.await_moment(MESSAGES // 2)
        assert len(driver.containers()) == containers
        attack.strike(DriverProcess.containers, "container")
        assert attack.finish().facts["progress"]["way"] == "direct"


@pytest.mark.parametrize("seed", range(3, 6))
def test_ways_alternate_while_everything_is_killed(home: Home, seed: int) -> None:
    with chaos(home, seed, **{"test.ways.alternate": True}) as attack:
        attack.start()
        for moment in attack.moments(8, MESSAGES):
            if attack.await_moment(moment):
                _strike_somebody(attack)
        attack.finish()


def _strike_somebody(attack: Chaos) -> None:
    """Kill a process of the job that is there now."""
    driver = attack.driver
    assert driver is not None
    kinds: dict[str, Victims] = {
        "direct worker": DriverProcess.direct_workers,
        "container": DriverProcess.containers,
        "worker": DriverProcess.workers,
    }
    name = attack.chance.choice(["driver", *(name for name, victims in kinds.items() if victims(driver))])
    if name in kinds:
        attack.strike(kinds[name], name)
        return
    attack.told.append(f"kill the driver {driver.pid}")
    driver.kill()
    attack.start()


@pytest.mark.parametrize("still", ["the direct worker", "everything"])
def test_what_stood_still_when_the_driver_was_killed_ends_with_the_next_one(home: Home, still: str) -> None:
    """A process that is stopped does not see that its driver has gone, and nobody is left who would continue it."""
    with chaos(home, 7) as attack:
        driver = attack.start()
        attack.await_moment(1000)
        wait_until(lambda: driver.direct_workers() and driver.containers(), "all kinds of processes")
        started = {*driver.descendants(), *driver.containers()}
        for process in started if still == "everything" else driver.direct_workers():
            with contextlib.suppress(psutil.NoSuchProcess):  # one that has just ended
                process.suspend()
        driver.kill()
        attack.start()
        wait_until(lambda: all(has_ended(process.pid) for process in started), "the end of what it had started")
        attack.finish()
