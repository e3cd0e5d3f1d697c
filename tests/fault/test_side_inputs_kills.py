"""Whatever is killed while side inputs fill tables: each output shows what the tables had at some moment, no output
goes back in time, and in the end the tables are the replay of the stream."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.apps.sided_app import NAMES
from tests.support.jobs.home import DriverProcess, kill, wait_until
from tests.support.jobs.sided_job import SidedHome, pause
from tests.support.processes import class_archive

pytestmark = [pytest.mark.spark, pytest.mark.slow]
CLUSTER = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.extraJavaOptions": class_archive.java_options(),
    "spark.executor.memory": "1g",
    "spark.ui.enabled": "false",
}
VICTIMS: dict[str, Callable[[DriverProcess], Sequence[psutil.Process]]] = {
    "container": DriverProcess.containers,
    "worker": DriverProcess.workers,
    "executor": DriverProcess.executors,
}


def strike(driver: DriverProcess, victim: str, chance: random.Random, most_s: float = 0.5) -> None:
    """Kill one of the victims, a while after there is one."""
    wait_until(lambda: VICTIMS[victim](driver) or not driver.running, f"a {victim} to kill")
    pause(chance, most_s)
    found = sorted(VICTIMS[victim](driver), key=lambda process: process.pid)
    assert driver.running, driver.log[-6000:]
    if found:
        kill(chance.choice(found))


def await_more(home: SidedHome, driver: DriverProcess, more: int = 60) -> None:
    """Wait for so many more outputs."""
    goal = home.outputs + more
    wait_until(lambda: home.outputs >= goal or not driver.running, f"{more} more outputs")
    assert driver.running, driver.log[-6000:]


def verify_by_another_run(home: SidedHome, app: str = "sided", **config: Any) -> None:
    """A run that begins now bootstraps up to the last update: what it answers is the last."""
    home.ask()
    with home.driver(app=app, **config) as driver:
        driver.succeeded()
    home.verify_joined()


@pytest.mark.parametrize(
    ("app", "victim", "kills"),
    [
        pytest.param("sided", "container", 1, id="a container"),
        pytest.param("sided", "container", 8, id="a container, again and again"),
        pytest.param("sided_broadcast", "container", 5, id="a container, broadcast"),
        pytest.param("sided", "worker", 5, id="a worker"),
        pytest.param("sided", "executor", 3, id="an executor"),
        pytest.param("sided_broadcast", "executor", 3, id="an executor, broadcast"),
    ],
)
def test_processes_are_killed_in_a_bootstrap_and_later(tmp_path: Path, app: str, victim: str, kills: int) -> None:
    chance = random.Random(kills)
    home = SidedHome(tmp_path)
    config = CLUSTER if victim == "executor" else {}
    home.update(20_000)
    with home.driver(app=app, until=None, **config) as driver:
        strike(driver, victim, chance, 1.0)  # it bootstraps, or is about to
        with home.flowing():
            for _ in range(kills):
                await_more(home, driver)
                strike(driver, victim, chance)
            await_more(home, driver)
        driver.signal(signal.SIGTERM)
        driver.succeeded()
    verify_by_another_run(home, app, **config)


@pytest.mark.parametrize("kills", [4])
def test_the_driver_is_killed_while_it_bootstraps_and_while_updates_flow(tmp_path: Path, kills: int) -> None:
    chance = random.Random(kills)
    home = SidedHome(tmp_path)
    home.update(20_000)
    with home.flowing():
        for number in range(kills):
            with home.driver(app="sided", until=None) as driver:
                driver.await_containers()
                if number % 2:
                    await_more(home, driver)
                pause(chance, 1.0)
                driver.kill()
    verify_by_another_run(home)


@pytest.mark.parametrize("is_late", [False, True], ids=["while it bootstraps", "afterwards"])
@pytest.mark.parametrize(("value", "said"), [(b'{"do": "raise", "seq": 0}', "the processor refuses"), (b"{", "names")])
def test_a_message_that_fails_ends_the_run_and_is_named(tmp_path: Path, value: bytes, said: str, is_late: bool) -> None:
    home = SidedHome(tmp_path)
    home.update(100)
    home.ask()
    offset = None if is_late else home.update_raw("k3", value)
    with home.driver(app="sided", until=None) as driver:
        if is_late:
            wait_until(lambda: home.outputs >= home.asked or not driver.running, "the outputs")
            offset = home.update_raw("k3", value)
        ended = driver.ended()
    assert ended.status == 1
    for part in (said, f"local.{NAMES}", str(offset), "k3"):
        assert part in ended.text, ended.text
    assert home.outputs == (home.asked if is_late else 0)


def test_a_message_that_cannot_be_processed_may_leave_the_data_at_hand(tmp_path: Path) -> None:
    home = SidedHome(tmp_path)
    home.update(100)
    home.ask()
    with home.driver(app="sided", until=None, **{"side.inputs.on.error": "continue"}) as driver:
        wait_until(lambda: home.outputs >= home.asked or not driver.running, "the outputs")
        home.update_raw("k3", b'{"do": "raise", "seq": 0}')
        wait_until(lambda: "the processor refuses" in driver.log or not driver.running, "the error in the log")
        home.ask()
        wait_until(lambda: home.outputs >= home.asked or not driver.running, "outputs of the data at hand")
        assert driver.running, driver.log[-6000:]
    assert home.answered()


@pytest.mark.parametrize("how", ["again", "compacted"])
def test_the_side_stream_is_another_one_at_the_next_start(tmp_path: Path, how: str) -> None:
    home = SidedHome(tmp_path)
    home.update(3000)
    verify_by_another_run(home)
    if how == "again":
        home.system.admin().delete_stream(NAMES)
        home.create_names()
        home.update(500)
    else:
        home.update(3000)
        home.compact()
        home.update(10)
    home.ask()
    with home.driver(app="sided") as driver:
        driver.succeeded()
    home.verify_last(*(("counted", "newest") if how == "again" else ("newest",)))
