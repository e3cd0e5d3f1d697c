"""Containers that die while they start: each counts as a failure, and the error says what happened to them."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.jobs.home import DriverProcess, Home, kill, wait_until
from tests.support.processes import class_archive

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MESSAGES = 400
EXECUTORS = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.extraJavaOptions": class_archive.java_options(),
    "spark.executor.memory": "1g",
    "spark.ui.enabled": "false",
}
HELD = """
import os, sys, time

while "penstock.container" in sys.orig_argv and not os.path.exists({!r}):
    time.sleep(0.01)
"""
"""A `sitecustomize`: a container gets no further than to the start of Python until there is a file."""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path, job_retry_max=3)
    home.publish(MESSAGES, seed=7)
    return home


@pytest.fixture
def gate(home: Home, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that containers wait for."""
    gate, place = home.folder / "gate", home.folder / "site"
    place.mkdir()
    (place / "sitecustomize.py").write_text(HELD.format(str(gate)), encoding="utf-8")
    given = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), given] if given else [str(place)]))
    return gate


@contextmanager
def killing_starts(driver: DriverProcess, times: int, gate: Path) -> Iterator[list[int]]:
    """Kill the first containers of a driver while they start. The others get through the gate."""
    killed: list[int] = []
    ended = threading.Event()

    def run() -> None:
        while len(killed) < times and not ended.wait(0.01):
            for container in driver.containers():
                if container.pid not in killed and len(killed) < times and kill(container):
                    killed.append(container.pid)
        gate.touch()

    thread = threading.Thread(target=run, name="killer")
    thread.start()
    try:
        yield killed
    except BaseException:
        print(driver.log[-6000:])
        raise
    finally:
        ended.set()
        thread.join()
        driver.clean_up()


def test_containers_that_die_while_they_start_are_started_again(home: Home, gate: Path) -> None:
    driver = home.driver(spark_master="local[1]")
    with killing_starts(driver, 2, gate) as killed:
        ended = driver.succeeded()
    assert len(killed) == 2
    assert len(re.findall("did not start: the container process .* was killed", ended.log)) == 2
    home.verify()


@pytest.mark.parametrize("dies", [False, True], ids=["starts", "dies-at-first"])
def test_batches_go_on_while_containers_of_an_executor_that_came_start(home: Home, gate: Path, *, dies: bool) -> None:
    gate.touch()
    with home.driver(until=None, **EXECUTORS) as driver:
        driver.await_output(MESSAGES)
        first = {each.pid for each in driver.containers()}
        gate.unlink()  # containers that start from now on do not come up
        kill(driver.executors()[0])
        wait_until(lambda: {each.pid for each in driver.containers()} - first, "a container on the new executor")
        before = home.length("totals")
        home.publish(300, seed=8)
        wait_until(lambda: home.length("totals") >= before + 300, "output while it starts")
        assert "came up: the job commits" not in driver.log
        if dies:
            kill(next(each for each in driver.containers() if each.pid not in first))
            wait_until(lambda: "no container was started beside the batches" in driver.log, "the failure is said")
        gate.touch()
        wait_until(lambda: "came up: the job commits" in driver.log, "the container joins")
        home.publish(300, seed=9)
        driver.await_output(before + 600)
        driver.stopped()
    assert len(re.findall(r"epoch \d+: [1-9]\d* of \d+ tasks moved", driver.log)) >= 2, "away, and back"
    home.verify()


def test_the_error_shows_why_containers_did_not_start(home: Home, gate: Path) -> None:
    driver = home.driver(spark_master="local[1]", job_retry_max=1)
    with killing_starts(driver, 100, gate):
        ended = driver.ended()
    assert ended.status == 1
    assert re.search("a container did not start: the container process .* was killed", ended.text)
    assert "job.retry.max is 1" in ended.text
    assert "pyspark" not in ended.text
    assert not [p for p in driver.containers() if psutil.pid_exists(p.pid)]


def test_a_launch_that_fails_is_reported_with_its_cause(home: Home) -> None:
    """On the host, the folder of the logs cannot be made."""
    (home.folder / "file").touch()
    folder = home.folder / "file" / "state"
    with home.driver(spark_master="local[1]", job_retry_max=0, job_logged_store_base_dir=str(folder)) as driver:
        ended = driver.ended()
    assert ended.status == 1
    assert "the containers could not be started: NotADirectoryError: [Errno 20] Not a directory: " in ended.text
