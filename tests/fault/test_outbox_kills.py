"""`kill -9` of containers, PySpark workers and executors, on Spark: each message is in the output exactly once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.apps.job_app import Event
from tests.support.faults.chaos import Victims, chaos
from tests.support.faults.plan import Fault
from tests.support.jobs.fault_jobs import FaultHome, executor_env
from tests.support.jobs.home import DriverProcess, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]
MESSAGES = 400
CONFIG = {
    "task.commit.ms": 1,  # after every batch
    "job.batch.max.messages": 40,
    "job.lease.ms": 1500,
    "job.retry.max": 100,
    "systems.local.samza.factory": "tests.support.faults.faulty_local:FaultyLocal",
    "streams.local.totals.output.guarantee": "exactly-once",
    "streams.local.regions.output.guarantee": "exactly-once",
    **executor_env(),
}
IN_CONTAINER = ("writer.progress", "writer.begin", "writer.append", "writer.mark", "writer.commit", "writer.committed")


def test_containers_are_killed_at_each_step_of_a_publication(tmp_path: Path) -> None:
    home = FaultHome(tmp_path, config=CONFIG)
    home.publish(MESSAGES, seed=8)
    home.faults.plan(*(Fault(step, step, "kill", skip=2 + number) for number, step in enumerate(IN_CONTAINER)))
    with home.driver() as driver:
        driver.succeeded()
    assert not home.faults.left()
    verify_once(home)


def test_containers_stand_still_with_the_files_of_outputs_locked(tmp_path: Path) -> None:
    """The next epoch kills them before it fences the outputs, which would wait for the locks."""
    local = {"systems.local.samza.factory": "tests.support.faults.faulty_local:LockingLocal"}
    home = FaultHome(tmp_path, config={**CONFIG, **local, "container.lost.ms": 2000})
    home.publish(MESSAGES, seed=9)
    home.faults.plan(Fault("stands", "writer.commit", "block", skip=2))
    with home.driver() as driver:
        wait_until(lambda: home.faults.is_reached("stands") or not driver.running, "a transaction that is open")
        stopped = driver.containers()
        for container in stopped:
            container.suspend()
        driver.succeeded()
        assert not any(container.is_running() for container in stopped)
    verify_once(home)


CLUSTER = {"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "1g", "spark.ui.enabled": "false"}


@pytest.mark.parametrize(
    ("seed", "kills", "master", "victims"),
    [
        (1, 3, {"spark.master": "local[2,4]"}, DriverProcess.workers),
        (2, 5, {"spark.master": "local[2]"}, DriverProcess.workers),
        (3, 4, CLUSTER, DriverProcess.workers),
        (4, 2, CLUSTER, DriverProcess.executors),
    ],
    ids=["workers", "workers without attempts", "workers of executors", "executors"],
)
def test_processes_of_spark_are_killed_within_batches(
    tmp_path: Path, seed: int, kills: int, master: dict[str, str], victims: Victims
) -> None:
    """With `local[2,4]` Spark runs a task again, beside what its first attempt left in an outbox; otherwise the batch
    is run again, in a new epoch where a container went with its executor."""
    messages = 250 * (kills + 1)
    home = FaultHome(tmp_path, config=CONFIG)
    home.publish(messages, seed=seed)
    with chaos(home, seed, **master) as attack:
        attack.start()
        struck = 0
        for moment in attack.moments(kills, messages):
            struck += attack.await_moment(moment) and attack.strike(victims, "process of Spark")
        attack.finish()
        assert struck == kills
        verify_once(home)


def verify_once(home: FaultHome) -> None:
    """The state, and each message of the outputs once."""
    home.verify_ended()
    events = [event for partitions in home.published.values() for own in partitions.values() for event in own]
    for stream, field in (("totals", "key"), ("regions", "region")):
        expected = Counter((name, n) for name, count in _counts(events, field).items() for n in range(1, count + 1))
        assert Counter((key, value["count"]) for _, _, key, value in home.messages(stream)) == expected


def _counts(events: list[Event], field: str) -> Counter[str]:
    """Each key has a message for each of its events, with how many they are so far."""
    return Counter(event[field] for event in events)
