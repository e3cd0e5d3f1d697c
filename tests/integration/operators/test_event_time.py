"""Event time on Spark: extracted once, through exchanges, in checkpoints; windows in a row, and the end of a stream."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from penstock.batch.watermarks import TIME
from penstock.drain.requests import DRAIN
from tests.support.apps import windowed_app
from tests.support.jobs.home import wait_until
from tests.support.jobs.spark_home import SparkHome

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PARTITIONS = 2
HOUR_MS, DAY_MS = windowed_app.HOUR_MS, windowed_app.DAY_MS
Visit = dict[str, Any]


class Home(SparkHome):
    visits: list[Visit]

    def come(self, visits: list[Visit]) -> None:
        self.spread("visits", visits)
        self.visits += visits

    def by_windows(self, *, close: bool) -> ps.Job:
        return self.run(windowed_app.windowed(), close=close)


@pytest.fixture
def home(spark: SparkSession, tmp_path: Path) -> Home:
    streams = dict.fromkeys(("visits", "hours", "days"), 2)
    home = Home(tmp_path, spark, streams, {"job.batch.max.messages": 100, "job.batch.target.ms": 0})
    home.visits = []
    return home


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


def test_windows_in_a_row_over_two_runs_that_close_once(home: Home) -> None:
    home.come(visits_of(0, 400))
    job = home.by_windows(close=False)
    stopped = home.checkpoints("windowed")[-1]
    assert stopped.ended == "stopped"
    assert stopped.section(TIME).event_times.keys() == {0, 1}
    assert 0 < len(list(home.read("hours"))) < len(oracle(home.visits)[0])
    assert job.progress is not None
    (source,) = job.progress.sources
    assert source.watermark is not None
    assert source.watermark >= stopped.section(TIME).watermarks["visits"]
    home.come(visits_of(1, 300))
    home.by_windows(close=True)
    last = home.checkpoints("windowed")[-1]
    assert (last.ended, last.section(TIME).watermarks, last.section(TIME).event_times) == ("end-of-stream", {}, {})
    assert [str(ssp) for ssp in last.ended_inputs] == ["local.visits.0", "local.visits.1"]
    hours, days = oracle(home.visits)
    assert {(who, pane["from"]): pane["visits"] for who, pane, _ in home.read("hours")} == dict(hours)
    assert {pane["from"]: pane["visits"] for _, pane, _ in home.read("days")} == dict(days)
    assert len(list(home.read("hours"))) == len(hours), "each on time, and once"
    assert all(pane["from"] <= timestamp <= pane["from"] + HOUR_MS for _, pane, timestamp in home.read("hours"))


def test_after_the_end_event_time_begins_again(home: Home) -> None:
    home.come(visits_of(1, 50))
    home.by_windows(close=True)
    home.come(visits_of(0, 50))
    home.by_windows(close=True)
    panes = Counter((who, pane["from"]) for who, pane, _ in home.read("hours"))
    assert set(panes) == set(oracle(home.visits)[0]), "nothing was late"


def test_a_drain_and_the_run_after_it_count_every_visit_once(home: Home) -> None:
    """In panes of a part of an hour each, where the drain came in the middle of it."""
    home.come(visits_of(0, 400))
    job = home.start(windowed_app.windowed())
    wait_until(lambda: job.progress is not None, "a batch has ended")
    job.drain()
    assert job.phase == "drained"
    drained = home.checkpoints("windowed")[-1]
    assert (drained.ended, drained.stores, len(drained.section(DRAIN).answered)) == ("drained", {}, 1)
    read = sum(sum(own.values()) for own in drained.next_offsets.values())
    assert 0 < read <= 400
    assert sum(pane["visits"] for _, pane, _ in home.read("hours")) == read
    home.come(visits_of(1, 100))
    home.by_windows(close=True)
    hours: Counter[tuple[str, int]] = Counter()
    for who, pane, _ in home.read("hours"):
        hours[who, pane["from"]] += pane["visits"]
    assert hours == oracle(home.visits)[0]
