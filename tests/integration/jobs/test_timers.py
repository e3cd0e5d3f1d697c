"""Timers on Spark: they fire without messages, and after kills and restarts, once each in the state."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.apps import job_app
from tests.support.jobs.home import Home, wait_until

pytestmark = pytest.mark.spark
EVENTS = 40


class TimerHome(Home):
    """A job with timers."""

    def publish_events(self, first: int, at_ms: int) -> None:
        """Events of ascending times; their timers in processing time are due from `at_ms` on."""
        for partition in range(2):
            numbers = range(first + partition, first + EVENTS, 2)
            events = [{"t": 100 * n, "k": f"k{n % 5}", "n": n, "at": at_ms + n} for n in numbers]
            self.append_raw(partition, [json.dumps(event).encode() for event in events])

    def reminders(self, domain: str) -> set[int]:
        """The timers of a domain that have fired."""
        return {int(name.split()[1]) for name in self.last_values("reminders") if name.startswith(domain)}


def test_timers_fire_without_messages(spark: SparkSession, tmp_path: Path) -> None:
    home = TimerHome(tmp_path)
    home.publish_events(0, int(time.time() * 1000) + 2_000)
    job = job_app.timers_app().run(home.config, spark=spark)
    every, passed = set(range(EVENTS)), set(range(EVENTS - 2))
    wait_until(lambda: job.exception or home.reminders("processing") == every, "timers in processing time")
    wait_until(lambda: job.exception or home.reminders("event") == passed, "timers that the watermark has passed")
    job.stop()
    home.config["job.name"] = "timers"
    fired: dict[str, Any] = {**home.stored("fired")}
    assert fired == dict.fromkeys([f"processing {n}" for n in every] + [f"event {n}" for n in passed], 1)


@pytest.mark.slow
def test_timers_fire_without_messages_and_once_each_after_kills(tmp_path: Path) -> None:
    home = TimerHome(tmp_path, job_name="timers")
    now_ms = int(time.time() * 1000)
    home.publish_events(0, now_ms)
    driver = home.driver(app="timers", until=None)
    wait_until(lambda: home.reminders("processing") == set(range(EVENTS)), "timers in processing time")
    wait_until(lambda: home.reminders("event") == set(range(EVENTS - 2)), "timers that the watermark has passed")
    for container in driver.await_containers():
        container.send_signal(signal.SIGKILL)
    home.publish_events(EVENTS, now_ms)
    wait_until(lambda: len(home.reminders("event")) == 2 * EVENTS - 2, "timers after the loss of the containers")
    later_ms = int(time.time() * 1000) + 3_000
    home.publish_events(2 * EVENTS, later_ms)
    wait_until(lambda: len(home.reminders("event")) == 3 * EVENTS - 2, "timers of the last events")
    wait_until(lambda: home.all_committed, "a commit of all events")
    driver.kill()
    home.driver(app="timers").succeeded()
    assert [record.ended for record in home.checkpoints][-1] == "end-of-stream"
    fired: dict[str, Any] = {**home.stored("fired")}
    assert set(fired.values()) == {1}
    assert len(fired) == 2 * 3 * EVENTS
