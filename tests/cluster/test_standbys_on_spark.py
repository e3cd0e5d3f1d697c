"""Standbys in container processes: containers and executors are killed, and their standbys take over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import admin
from penstock.admin.job.status import JobStatus, metrics_of
from penstock.admin.jobs import open_job
from tests.support.jobs.home import DriverProcess, Home, kill, wait_until
from tests.support.processes import class_archive

pytestmark = pytest.mark.spark

TASKS = 2
EXECUTORS = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.extraJavaOptions": class_archive.java_options(),
    "spark.executor.memory": "1g",
    "spark.ui.enabled": "false",
}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path, job_standbytasks_replication_factor=2, job_intermediate_stream_partitions=TASKS)
    home.publish(500, seed=5)
    return home


@contextmanager
def running(home: Home) -> Iterator[DriverProcess]:
    with home.driver(until=None) as driver:
        driver.await_output(500)
        yield driver


def status(home: Home) -> JobStatus:
    config: dict[str, Any] = {key: str(value) for key, value in home.config.items()}
    with open_job("totals", None, [f"{key}={value}" for key, value in config.items()]) as job:
        return admin.status(job)


def standbys_are_there(home: Home) -> bool:
    """True if every task has a standby at a checkpoint, in containers that run."""
    shown = status(home)
    alive = {each.container for each in shown.containers}
    ready = {each.task for each in shown.standbys if each.checkpoint_id is not None and each.container in alive}
    return len(alive) == TASKS and len(ready) == TASKS and len({each.container for each in shown.standbys}) == TASKS


def finish(home: Home, driver: DriverProcess) -> int:
    """Stop it; every total must be right. Returns how many stores were taken over."""
    driver.stopped()
    home.verify()
    config: dict[str, Any] = {key: str(value) for key, value in home.config.items()}
    with open_job("totals", None, [f"{key}={value}" for key, value in config.items()]) as job:
        rows = metrics_of(job)
    return sum(int(getattr(value, "count", 0)) for key, value in rows.items() if key.name == "takeovers")


@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_standby_takes_over_and_a_new_container_gets_tasks_back(home: Home, kills: int) -> None:
    with running(home) as driver:
        for turn in range(kills):
            wait_until(lambda: standbys_are_there(home), "standbys of every task in two containers")
            victim = driver.containers()[turn % TASKS]
            kill(victim)
            wait_until(lambda: victim not in driver.containers(), "its end")  # noqa: B023
            home.publish(300, seed=turn)
        wait_until(lambda: standbys_are_there(home), "standbys in the place of those that took over")
        assert finish(home, driver) > 0


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["container", "executor"])
def test_on_two_executors(home: Home, victim: str) -> None:
    home.config |= EXECUTORS
    with running(home) as driver:
        wait_until(lambda: standbys_are_there(home), "standbys of every task in two containers")
        kill(driver.containers()[0] if victim == "container" else driver.executors()[0])
        home.publish(300, seed=3)
        wait_until(lambda: standbys_are_there(home), "standbys in the place of those that took over")
        assert finish(home, driver) > 0
