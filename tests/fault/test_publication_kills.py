"""`kill -9` of the driver at every named step of a publication: each message is in the output exactly once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.apps.job_app import Event
from tests.support.faults.plan import Fault
from tests.support.jobs.fault_jobs import FaultHome, executor_env
from tests.support.jobs.home import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.wing("outbox")]
SIGKILLED = -9
MESSAGES = 400
CONFIG = {
    "task.commit.ms": 1,  # after every batch
    "job.batch.max.messages": 40,
    "job.lease.ms": 1500,
    "job.retry.max": 20,
    "systems.local.samza.factory": "tests.support.faults.faulty_local:FaultyLocal",
    "streams.local.totals.output.guarantee": "exactly-once",
    "streams.local.regions.output.guarantee": "exactly-once",
    **executor_env(),
}
IN_DRIVER = (
    "driver.upload.before",
    "driver.upload.after",
    "append.before",
    "append.after",
    "driver.publish.before",
    "driver.publish.after",
    "driver.clean_up.after",
)
IN_CONTAINER = ("writer.progress", "writer.begin", "writer.append", "writer.mark", "writer.commit", "writer.committed")
"""A container stands there while the driver is killed, and goes on afterwards."""
SAMPLE = ("append.after",)
STEPS = (*IN_DRIVER, *IN_CONTAINER)


@pytest.mark.parametrize("steps", [SAMPLE, pytest.param(STEPS, marks=pytest.mark.slow)], ids=["sample", "every step"])
def test_the_driver_is_killed_at_steps_of_a_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: tuple[str, ...]
) -> None:
    home = FaultHome(tmp_path, config=CONFIG)
    for seed, step in enumerate(steps):
        home.publish(MESSAGES, seed=seed)
        do = "kill" if step in IN_DRIVER else "block"
        skip = 0 if step == "writer.progress" else 2  # it is asked for once in an epoch
        home.faults.plan(Fault(step, step, do, skip=skip, gate=step))  # type: ignore[arg-type]
        with home.driver() as driver:
            if do == "block":
                wait_until(lambda: home.faults.is_reached(step) or not driver.running, step)  # noqa: B023
                assert driver.running, driver.log[-6000:]
                driver.kill()
                home.faults.open(step)
            assert driver.ended().status == SIGKILLED, driver.log[-6000:]
        assert not home.faults.left()
    home.faults.plan()
    with home.driver() as driver:
        driver.succeeded()
    home.verify_ended()
    events = [event for partitions in home.published.values() for own in partitions.values() for event in own]
    for stream, field in (("totals", "key"), ("regions", "region")):
        expected = Counter((name, n) for name, count in _counts(events, field).items() for n in range(1, count + 1))
        assert Counter((key, value["count"]) for _, _, key, value in home.messages(stream)) == expected


def _counts(events: list[Event], field: str) -> Counter[str]:
    """Each key has a message for each of its events, with how many they are so far."""
    return Counter(event[field] for event in events)
