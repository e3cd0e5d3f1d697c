"""Side inputs on Spark: a partitioned and a broadcast one, updated while the job runs, against a plain program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import UserCodeError
from penstock.side.shown import side_inputs_in
from penstock.system.base import OffsetRange
from penstock.system.local import LocalSystem
from penstock.system.partitioner import partition_of
from tests.support.apps import side_app
from tests.support.jobs.home import DEADLINE_S, wait_until

pytestmark = pytest.mark.spark
TASKS = 2
TAILS = [f"N{n}" for n in range(20)]


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> None:
    cloudpickle.register_pickle_by_value(side_app)


class Airport:
    """The streams and the job root of one test."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = {
            "job.root": str(folder / "jobs"),
            "job.logged.store.base.dir": str(folder / "state"),
            "systems.local.path": str(folder / "streams"),
            "job.batch.interval.ms": 50,
        }
        self.system = LocalSystem("local", str(folder / "streams"))
        for stream, partitions in {"flights": TASKS, "planes": TASKS, "carriers": 1, "enriched": TASKS}.items():
            self.system.admin().create_stream(stream, partitions)
        self.writer = self.system.writer(None)

    def publish(self, stream: str, key: str, value: bytes | None) -> None:
        partitions = self.system.admin().partition_count(stream)
        ssp = SystemStreamPartition("local", stream, partition_of(key.encode(), partitions))
        self.writer.append(ssp, [(5, key.encode(), value)])

    def fly(self, tail: str, carrier: str, number: int) -> None:
        self.publish("flights", tail, json.dumps({"carrier": carrier, "n": number}).encode())

    def enriched(self) -> dict[int, tuple[str | None, str | None]]:
        """Flight -> its plane and the carrier's name."""
        found = {}
        for partition, ends in self.system.admin().offsets("enriched").items():
            ssp = SystemStreamPartition("local", "enriched", partition)
            for chunk in self.system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 1000):
                for _, _, _, data, *_ in chunk:
                    value = json.loads(data or b"")
                    found[value["n"]] = value["plane"], value["name"]
        return found


def test_side_inputs_before_and_while_the_job_runs(spark: SparkSession, tmp_path: Path) -> None:
    airport = Airport(tmp_path)
    for tail in TAILS[:-1]:  # one is unknown
        airport.publish("planes", tail, f"plane of {tail}".encode())
    airport.publish("carriers", "AA", b"American")
    for number, tail in enumerate(TAILS):
        airport.fly(tail, "AA", number)
    with side_app.enriched().run(airport.config, spark=spark) as job:
        wait_until(lambda: len(airport.enriched()) == len(TAILS) or not job.is_active, "the first flights")
        expected = {n: (None if tail == TAILS[-1] else f"plane of {tail}", "American") for n, tail in enumerate(TAILS)}
        assert airport.enriched() == expected
        airport.publish("planes", TAILS[0], b"another plane")
        airport.publish("planes", TAILS[1], None)
        airport.publish("carriers", "AA", b"Envoy")
        number = len(TAILS)

        def shown() -> bool:
            """True if a flight that takes off now shows everything."""
            nonlocal number
            before = number
            for tail in TAILS[:2]:
                airport.fly(tail, "AA", number)
                number += 1
            wait_until(lambda: number - 1 in airport.enriched() or not job.is_active, "a flight")
            found = airport.enriched()
            return (found.get(before), found.get(before + 1)) == (("another plane", "Envoy"), (None, "Envoy"))

        wait_until(shown, "the updates", DEADLINE_S)
        caught_up = [("carriers", "local.carriers.0", 0), *(("planes", f"local.planes.{n}", 0) for n in range(TASKS))]
        wait_until(
            lambda: [(each.store, each.partition, each.lag) for each in side_inputs_in(job.metrics())] == caught_up,
            "the lag in the metrics",
        )


@pytest.mark.slow
def test_a_message_that_does_not_decode_ends_a_run(spark: SparkSession, tmp_path: Path) -> None:
    airport = Airport(tmp_path)
    job = side_app.enriched().run(airport.config, spark=spark)
    wait_until(lambda: job.phase == "running", "the first epoch")
    airport.publish("planes", TAILS[0], b"\xff")
    with pytest.raises(UserCodeError) as raised:
        job.await_termination(DEADLINE_S)
    failed = raised.value.failed
    assert (failed.store, failed.stream, failed.offset, failed.key) == ("planes", "local.planes", 0, TAILS[0])
    assert "input `local.planes`: the value b'\\xff' of key 'N0' cannot be read by ps.String()" in failed.reason
