"""A container on Spark is killed while it loads a new version: no output shows a mixture, and the version comes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.driver.job import Job
from tests.support.apps import pushed_app
from tests.support.jobs.home import wait_until
from tests.support.jobs.spark_home import SparkHome
from tests.support.processes.inspection import containers_here

pytestmark = [pytest.mark.spark, pytest.mark.slow]
TASKS = 2
TAILS = [f"N{number}" for number in range(20)]


class Flights(SparkHome):
    """A thread appends flights, and all that came out is read."""

    flown = 0

    def fly(self) -> int:
        """A flight of each plane. Returns the number of the last one."""
        for tail in TAILS:
            self.publish("flights", tail, json.dumps({"carrier": "AA", "n": self.flown}).encode())
            self.flown += 1
        return self.flown - 1

    def enriched(self) -> Iterator[tuple[int, Any, Any]]:
        """The number of each flight, the version of its plane, and its carrier's name."""
        for _, value, _ in self.read("enriched"):
            yield value["n"], value["plane"]["version"], value["name"]


def push_planes(folder: Path, version: int, others: int) -> None:
    place = folder / "planes" / f"v{version}"
    place.mkdir(parents=True)
    tails = TAILS + [f"X{number}" for number in range(others)]
    table = pa.table({"tailnum": tails, "version": [version] * len(tails)})
    pq.write_table(table, place / "part-0.parquet")
    (place / "_SUCCESS").touch()


def push_carriers(folder: Path) -> None:
    (folder / "carriers").mkdir()
    (folder / "carriers" / "all.csv").write_text("carrier,name\nAA,American\n")
    (folder / "carriers" / "_SUCCESS").touch()


def loads_or_uses(job: Job, version: int) -> bool:
    return any(table.table == "planes" and version in {table.loading, table.in_use} for table in job.tables)


def test_a_container_is_killed_while_a_new_version_comes(spark: SparkSession, tmp_path: Path) -> None:
    flights = Flights(tmp_path, spark, {"flights": TASKS, "enriched": TASKS}, {"tables.poll.ms": 50})
    push_planes(tmp_path, 1, 0)
    push_carriers(tmp_path)
    first = flights.fly()
    others = containers_here()
    with flights.start(pushed_app.enriched(tmp_path)) as job:
        wait_until(lambda: first in {n for n, *_ in flights.enriched()} or not job.is_active, "the first flights")
        landed = threading.Event()

        def keep_flying() -> None:
            while not landed.wait(0.05):
                flights.fly()

        flying = threading.Thread(target=keep_flying)
        flying.start()
        try:
            push_planes(tmp_path, 2, 50_000)
            wait_until(lambda: loads_or_uses(job, 2) or not job.is_active, "the second version")
            rewinds = job.metrics().total("rewinds")
            next(each for each in containers_here() if each not in others).kill()
            wait_until(lambda: job.metrics().total("rewinds") > rewinds or not job.is_active, "a new epoch")
            wait_until(lambda: any(version == 2 for _, version, _ in flights.enriched()), "a flight with version 2")
        finally:
            landed.set()
            flying.join()
        last = flights.fly()
        wait_until(lambda: last in {n for n, *_ in flights.enriched()} or not job.is_active, "the last flights")
    found = list(flights.enriched())
    assert {n for n, *_ in found} == set(range(last + 1))
    assert {(version, name) for _, version, name in found} == {(1, "American"), (2, "American")}
    assert {version for n, version, _ in found if n > last - len(TAILS)} == {2}
