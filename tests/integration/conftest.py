"""The Spark of the jobs that run in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import tests.support.apps
from tests.support.jobs.fault_jobs import FaultHome
from tests.support.jobs.home import Home, wait_until
from tests.support.jobs.job_runs import finish, start
from tests.support.jobs.running_job import Running
from tests.support.processes.spark_sessions import Sessions

_shared = Sessions()


@pytest.fixture(scope="session")
def sessions() -> Iterator[Sessions]:
    cloudpickle.register_pickle_by_value(tests.support.apps)
    yield _shared
    _shared.close()


@pytest.fixture(scope="module")
def spark(sessions: Sessions) -> SparkSession:
    """A session without any other keys. A test file that needs some overrides this."""
    return sessions.get()


@pytest.fixture(scope="session")
def settled(sessions: Sessions, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A job that has run and ended. Tests look at it, copy it, or start what is refused; nothing changes it."""
    home = Home(tmp_path_factory.mktemp("settled"))
    home.publish(600, seed=1)
    finish(start(home, sessions.get()))
    home.verify()
    return home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A job that has not run. A test file that needs another one overrides this."""
    return Home(tmp_path)


@pytest.fixture
def running(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A job whose uploads wait at gates, so that nothing depends on how fast anything is."""
    home = FaultHome(tmp_path, config={"task.commit.ms": 300_000, "task.shutdown.ms": 5000})
    running = Running(spark, home, monkeypatch)
    yield running
    running.faults.open()
    if running.job is not None and running.job.is_active:
        running.job.stop(wait=False)
        running.job.stop(wait=False)
        wait_until(lambda: not running.job or not running.job.is_active, "the end of the job")
