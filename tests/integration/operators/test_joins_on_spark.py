"""Joins on Spark: in a row, in two stages, over a run that stops and one that closes the streams."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.apps import joined_app
from tests.support.jobs.spark_home import SparkHome

pytestmark = pytest.mark.spark
PARTITIONS = 2
HOUR_MS = joined_app.HOUR_MS
INPUTS = ("arrivals", "departures", "gates")
Event = dict[str, Any]


@pytest.fixture
def home(spark: SparkSession, tmp_path: Path) -> SparkHome:
    streams = dict.fromkeys((*INPUTS, "turnarounds", "gated"), 2)
    return SparkHome(tmp_path, spark, streams, {"job.batch.max.messages": 150, "job.batch.target.ms": 0})


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


def test_joins_in_a_row_over_two_runs(home: SparkHome) -> None:
    events = events_of(0, 300)
    for name, some in events.items():
        home.spread(name, some)
    home.run(joined_app.joined(), close=False)
    assert 0 < len(list(home.read("gated"))) < oracle(events)[1].total()
    for name, some in events_of(1, 200).items():
        home.spread(name, some)
        events[name] += some
    home.run(joined_app.joined(), close=True)
    pairs, gated = oracle(events)
    assert Counter((v["arrival"], v["departure"], at) for _, v, at in home.read("turnarounds")) == pairs
    assert Counter((v["arrival"], v["departure"], v["gate"], at) for _, v, at in home.read("gated")) == gated
