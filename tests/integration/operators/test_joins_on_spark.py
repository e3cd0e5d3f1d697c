"""Joins on Spark: in a row, in two stages, over a run that stops and one that closes the streams."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import OffsetRange
from penstock.system.local import LocalSystem
from tests.support.apps import joined_app
from tests.support.jobs.home import DEADLINE_S

pytestmark = pytest.mark.spark
PARTITIONS = 2
HOUR_MS = joined_app.HOUR_MS
INPUTS = ("arrivals", "departures", "gates")
Event = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> None:
    cloudpickle.register_pickle_by_value(joined_app)


class Home:
    """The streams and the job root of one test."""

    def __init__(self, folder: Path) -> None:
        self.config = {
            "job.root": str(folder / "jobs"),
            "job.logged.store.base.dir": str(folder / "state"),
            "systems.local.path": str(folder / "streams"),
            "job.batch.interval.ms": 20,
            "job.batch.max.messages": 150,
            "job.batch.target.ms": 0,
        }
        self.system = LocalSystem("local", str(folder / "streams"))
        for stream in (*INPUTS, "turnarounds", "gated"):
            self.system.admin().create_stream(stream, PARTITIONS)
        self.events: dict[str, list[Event]] = {name: [] for name in INPUTS}

    def publish(self, events: dict[str, list[Event]]) -> None:
        writer = self.system.writer(None)
        for stream, some in events.items():
            for partition in range(PARTITIONS):
                records = [(5, None, json.dumps(event).encode()) for event in some[partition::PARTITIONS]]
                writer.append(SystemStreamPartition("local", stream, partition), records)
            self.events[stream] += some

    def read(self, stream: str) -> list[tuple[str, Any, int]]:
        found = []
        for partition, ends in self.system.admin().offsets(stream).items():
            ssp = SystemStreamPartition("local", stream, partition)
            for chunk in self.system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 1000):
                found += [((k or b"").decode(), json.loads(v or b""), timestamp) for _, timestamp, k, v, *_ in chunk]
        return found

    def run(self, spark: SparkSession, *, close: bool) -> None:
        job = joined_app.joined().run(self.config, spark=spark, until="latest", close=close)
        assert job.await_termination(DEADLINE_S)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def events_of(seed: int, count: int) -> dict[str, list[Event]]:
    """In the order of their times but for half an hour, over some days; those of a later seed are later."""
    chance = random.Random(seed)
    first = 1_700_000_000_000 + seed * 1000 * 600_000
    return {
        name: [
            {
                "n": f"{name}-{seed}-{n}",
                "at": first + n * 600_000 + chance.randrange(HOUR_MS // 2),
                "tailnum": f"N{chance.randrange(12)}",
                "airport": f"A{chance.randrange(4)}",
            }
            for n in range(count)
        ]
        for name in INPUTS
    }


def oracle(events: dict[str, list[Event]]) -> tuple[Counter[tuple[Any, ...]], Counter[tuple[Any, ...]]]:
    """(arrival, departure, timestamp) of all pairs, and (arrival, departure, gate, timestamp)."""
    pairs = []
    for arrival in events["arrivals"]:
        partners = [
            each
            for each in events["departures"]
            if each["tailnum"] == arrival["tailnum"] and 0 <= each["at"] - arrival["at"] <= 6 * HOUR_MS
        ]
        pairs += [(arrival, each["n"], each["at"]) for each in partners]
        if not partners:
            pairs.append((arrival, None, arrival["at"] + 6 * HOUR_MS))
    gated: Counter[tuple[Any, ...]] = Counter()
    for arrival, departure, at in pairs:
        gates = [g for g in events["gates"] if g["airport"] == arrival["airport"] and abs(g["at"] - at) <= HOUR_MS]
        gated.update((arrival["n"], departure, gate["n"], max(at, gate["at"])) for gate in gates)
        if not gates:
            gated[arrival["n"], departure, None, at + HOUR_MS] += 1
    return Counter((arrival["n"], departure, at) for arrival, departure, at in pairs), gated


def test_joins_in_a_row_over_two_runs(spark: SparkSession, home: Home) -> None:
    home.publish(events_of(0, 300))
    home.run(spark, close=False)
    some = len(home.read("gated"))
    assert 0 < some < oracle(home.events)[1].total()
    home.publish(events_of(1, 200))
    home.run(spark, close=True)
    pairs, gated = oracle(home.events)
    assert Counter((v["arrival"], v["departure"], at) for _, v, at in home.read("turnarounds")) == pairs
    assert Counter((v["arrival"], v["departure"], v["gate"], at) for _, v, at in home.read("gated")) == gated
