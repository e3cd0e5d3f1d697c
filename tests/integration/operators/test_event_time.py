"""Event time on Spark: extracted once, through exchanges, in checkpoints; windows in a row, and the end of a stream."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.watermarks import TIME
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.drain.requests import DRAIN
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.system.base import OffsetRange
from penstock.system.local import LocalSystem
from tests.support.apps import windowed_app
from tests.support.jobs.home import DEADLINE_S, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PARTITIONS = 2
HOUR_MS, DAY_MS = windowed_app.HOUR_MS, windowed_app.DAY_MS
Visit = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> None:
    cloudpickle.register_pickle_by_value(windowed_app)


class Home:
    """The streams and the job root of one test."""

    def __init__(self, folder: Path) -> None:
        self.config = {
            "job.root": str(folder / "jobs"),
            "job.logged.store.base.dir": str(folder / "state"),
            "systems.local.path": str(folder / "streams"),
            "job.batch.interval.ms": 20,
            "job.batch.max.messages": 100,
            "job.batch.target.ms": 0,
        }
        self.folder = folder
        self.system = LocalSystem("local", str(folder / "streams"))
        for stream in ("visits", "hours", "days"):
            self.system.admin().create_stream(stream, PARTITIONS)
        self.visits: list[Visit] = []

    def publish(self, visits: list[Visit]) -> None:
        writer = self.system.writer(None)
        for partition in range(PARTITIONS):
            records = [(5, None, json.dumps(visit).encode()) for visit in visits[partition::PARTITIONS]]
            writer.append(SystemStreamPartition("local", "visits", partition), records)
        self.visits += visits

    def read(self, stream: str) -> list[tuple[str, Any, int]]:
        found = []
        for partition, ends in self.system.admin().offsets(stream).items():
            ssp = SystemStreamPartition("local", stream, partition)
            for chunk in self.system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 1000):
                found += [((k or b"").decode(), json.loads(v or b""), timestamp) for _, timestamp, k, v, *_ in chunk]
        return sorted(found, key=repr)

    @property
    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        log = CheckpointLog(FileObjectStore(self.folder / "jobs"), JobPaths("windowed", "1"))
        return log.read().checkpoints

    def run(self, spark: SparkSession, *, close: bool) -> ps.Job:
        job = windowed_app.windowed().run(self.config, spark=spark, until="latest", close=close)
        assert job.await_termination(DEADLINE_S)
        return job


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def visits_of(seed: int, count: int) -> list[Visit]:
    """In the order of their times but for half an hour, over some days."""
    chance = random.Random(seed)
    first = 1_700_000_000_000 + seed * 1000 * 600_000
    return [
        {"who": f"w{chance.randrange(7)}", "at": first + n * 600_000 + chance.randrange(HOUR_MS // 2)}
        for n in range(count)
    ]


def oracle(visits: list[Visit]) -> tuple[Counter[tuple[str, int]], Counter[int]]:
    """Visits by person and hour, and by day."""
    hours = Counter((visit["who"], visit["at"] // HOUR_MS * HOUR_MS) for visit in visits)
    days = Counter(visit["at"] // DAY_MS * DAY_MS for visit in visits)
    return hours, days


def test_windows_in_a_row_over_two_runs_that_close_once(spark: SparkSession, home: Home) -> None:
    home.publish(visits_of(0, 400))
    job = home.run(spark, close=False)
    stopped = home.checkpoints[-1]
    assert stopped.ended == "stopped"
    assert stopped.section(TIME).event_times.keys() == {0, 1}
    assert 0 < len(home.read("hours")) < len(oracle(home.visits)[0])
    assert job.progress is not None
    (source,) = job.progress.sources
    assert source.watermark is not None
    assert source.watermark >= stopped.section(TIME).watermarks["visits"]
    home.publish(visits_of(1, 300))
    home.run(spark, close=True)
    last = home.checkpoints[-1]
    assert (last.ended, last.section(TIME).watermarks, last.section(TIME).event_times) == ("end-of-stream", {}, {})
    assert [str(ssp) for ssp in last.ended_inputs] == ["local.visits.0", "local.visits.1"]
    hours, days = oracle(home.visits)
    assert {(who, pane["from"]): pane["visits"] for who, pane, _ in home.read("hours")} == dict(hours)
    assert {pane["from"]: pane["visits"] for _, pane, _ in home.read("days")} == dict(days)
    assert len(home.read("hours")) == len(hours), "each on time, and once"
    assert all(pane["from"] <= timestamp <= pane["from"] + HOUR_MS for _, pane, timestamp in home.read("hours"))


def test_after_the_end_event_time_begins_again(spark: SparkSession, home: Home) -> None:
    home.publish(visits_of(1, 50))
    home.run(spark, close=True)
    home.publish(visits_of(0, 50))
    home.run(spark, close=True)
    panes = Counter((who, pane["from"]) for who, pane, _ in home.read("hours"))
    assert set(panes) == set(oracle(home.visits)[0]), "nothing was late"


def test_a_drain_and_the_run_after_it_count_every_visit_once(spark: SparkSession, home: Home) -> None:
    """In panes of a part of an hour each, where the drain came in the middle of it."""
    home.publish(visits_of(0, 400))
    job = windowed_app.windowed().run(home.config, spark=spark)
    wait_until(lambda: job.progress is not None, "a batch has ended")
    job.drain()
    assert job.phase == "drained"
    drained = home.checkpoints[-1]
    assert (drained.ended, drained.stores, len(drained.section(DRAIN).answered)) == ("drained", {}, 1)
    read = sum(sum(own.values()) for own in drained.next_offsets.values())
    assert 0 < read <= 400
    assert sum(pane["visits"] for _, pane, _ in home.read("hours")) == read
    home.publish(visits_of(1, 100))
    home.run(spark, close=True)
    hours: Counter[tuple[str, int]] = Counter()
    for who, pane, _ in home.read("hours"):
        hours[who, pane["from"]] += pane["visits"]
    assert hours == oracle(home.visits)[0]
