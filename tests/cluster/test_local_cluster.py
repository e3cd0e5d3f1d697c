"""On a cluster of two executors, each a JVM of its own: executors and workers are killed, totals stay right."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.support.faults.chaos import Chaos, chaos
from tests.support.jobs.home import DriverProcess, Home, kill, wait_until
from tests.support.processes import class_archive

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MASTER = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.extraJavaOptions": class_archive.java_options(),
    "spark.executor.memory": "1g",
    "spark.ui.enabled": "false",
    "job.retry.max": 20,
}
DYNAMIC = {
    "spark.executor.cores": 1,
    "spark.executor.instances": 2,
    "spark.dynamicAllocation.enabled": True,
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
}
DECOMMISSIONING = {"spark.decommission.enabled": True, "spark.storage.decommission.enabled": True}
MESSAGES = 4000
CHECKSUM_KEYS = ("enabled", "enableFullRetryOnMismatch", "enableQueryLevelRollbackOnMismatch")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.publish(MESSAGES, seed=7)
    return home


def test_a_job_on_two_executors(home: Home) -> None:
    with chaos(home, 1, **MASTER) as attack:
        driver = attack.start()
        driver.await_output(200)
        containers = driver.containers()
        assert len(driver.executors()) == 2
        assert len({p.cmdline()[-1] for p in containers}) == 2, "containers on both executors"
        attack.finish()


@pytest.mark.parametrize(("seed", "allocation"), [(1, {}), (2, DYNAMIC)], ids=["fixed", "dynamic"])
def test_executors_are_killed(home: Home, seed: int, allocation: dict[str, object]) -> None:
    with chaos(home, seed, **MASTER, **allocation) as attack:
        attack.start()
        struck = 0
        for moment in attack.moments(2, MESSAGES):
            struck += attack.await_moment(moment) and attack.strike(DriverProcess.executors, "executor")
        attack.finish()
        assert struck == 2
    assert len(home.log.claims) >= 2


def test_both_executors_are_killed_at_once(home: Home) -> None:
    with chaos(home, 3, **MASTER) as attack:
        driver = attack.start()
        assert attack.await_moment(600)
        for executor in driver.executors():
            kill(executor)
        attack.finish()


def test_executors_are_decommissioned(home: Home) -> None:
    """SIGPWR is how the hook before a pod's SIGTERM has Spark decommission its executor. The second one may have come
    in the place of the first, and have no container yet."""
    with chaos(home, 6, **MASTER, **DECOMMISSIONING) as attack:
        driver = attack.start()
        for moment in attack.moments(2, MESSAGES):
            assert attack.await_moment(moment)
            wait_until(lambda: len(driver.executors()) == 2 or not driver.running, "both executors")
            told = attack.chance.choice(driver.executors())
            attack.told.append(f"SIGPWR to executor {told.pid} after {home.length('totals')} messages of output")
            told.send_signal(signal.SIGPWR)
            wait_until(lambda: not told.is_running(), "the executor to end by itself")  # noqa: B023
        attack.finish()
        assert len(home.log.claims) > 1, "containers were lost"


def test_pyspark_workers_of_executors_are_killed(home: Home) -> None:
    with chaos(home, 4, **MASTER) as attack:
        attack.start()
        for moment in attack.moments(5, MESSAGES):
            if attack.await_moment(moment):
                attack.strike(DriverProcess.workers, "PySpark worker")
        attack.finish()


def test_a_shuffle_fetch_fails_after_one_consumer_read_the_old_rows(tmp_path: Path) -> None:
    """Two containers on each executor, one Spark task at a time. While the first two stand in user code, having read
    everything, the map output of one executor is removed: the other two cannot fetch it, and Spark runs a part of the
    stage before again, under new tokens."""
    home = Home(tmp_path, partitions=4, job_batch_max_messages=1200)
    gate = tmp_path / "gate"
    home.publish(400, seed=1)
    for key in range(40):
        home.append(key % 4, [{"key": f"k{key}", "n": 1, "do": "slow", "gate": str(gate)}])
    home.publish(400, seed=2)
    cluster = {"spark.master": "local-cluster[2,2,1024]", "spark.task.cpus": 2, "spark.local.dir": str(tmp_path / "s")}
    # Spark 4.1 and later can notice that the new rows differ, and run the consumers again by itself: here it may not.
    cluster |= {f"spark.sql.shuffle.orderIndependentChecksum.{key}": "false" for key in CHECKSUM_KEYS}
    with chaos(home, 1, **{**MASTER, **cluster}) as attack:
        driver = attack.start()
        wait_until(
            lambda: (gate.exists() and len(list(gate.iterdir())) == 2) or not driver.running,
            "both to stand in user code",
        )
        files = sorted((tmp_path / "s").rglob("shuffle_*.data"))
        folder = next(part for part in files[0].parents if part.name.startswith("blockmgr-"))
        lost = [file for file in files if folder in file.parents]
        assert 0 < len(lost) < len(files)
        for file in lost:
            file.unlink()
        attack.told.append(f"removed {len(lost)} of {len(files)} files of map output")
        attack.finish()
        assert re.search("read another attempt of|reported twice|did not read exactly", driver.log)
    assert len(home.log.claims) == 1, "no container was lost"


def test_an_executor_dies_while_a_stage_is_half_done(tmp_path: Path) -> None:
    """Its map output is gone with its container, while the other executor's container stands in user code."""
    home = Home(tmp_path, job_batch_max_messages=800)
    for number in range(3):
        home.publish(300, seed=number)
        gate = str(tmp_path / f"gate-{number}")
        home.append(number % 2, [{"key": "k1", "n": 1, "do": "slow", "gate": gate}])
    home.publish(300, seed=9)
    with chaos(home, 5, **MASTER) as attack:
        driver = attack.start()
        for number in range(3):
            await_gate(attack, tmp_path / f"gate-{number}")
            executors = sorted(driver.executors(), key=lambda p: p.pid)
            if executors:
                kill(executors[number % len(executors)])
                attack.told.append(f"killed executor {number % len(executors)} while a stage was half done")
        attack.finish()


def await_gate(attack: Chaos, gate: Path) -> None:
    """Wait until an event's process has reached its gate, in the middle of a stage."""
    driver = attack.driver
    assert driver is not None
    wait_until(lambda: gate.exists() or not driver.running, f"{gate.name} to be reached")
