"""Side inputs and tables of jobs on Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import UserCodeError
from penstock.side.wing import side_inputs_in
from tests.support.apps import side_app
from tests.support.jobs.home import DEADLINE_S, wait_until
from tests.support.jobs.spark_home import SparkHome

pytestmark = pytest.mark.spark
TASKS = 2
TAILS = [f"N{n}" for n in range(20)]


@pytest.fixture
def airport(spark: SparkSession, tmp_path: Path) -> SparkHome:
    streams = {"flights": TASKS, "planes": TASKS, "carriers": 1, "enriched": TASKS}
    return SparkHome(tmp_path, spark, streams, {"job.batch.interval.ms": 50})


def fly(airport: SparkHome, tail: str, number: int) -> None:
    airport.publish("flights", tail, json.dumps({"carrier": "AA", "n": number}).encode())


def enriched(airport: SparkHome) -> dict[int, tuple[str | None, str | None]]:
    """Flight -> its plane and the carrier's name."""
    return {value["n"]: (value["plane"], value["name"]) for _, value, _ in airport.read("enriched")}


def test_side_inputs_before_and_while_the_job_runs(airport: SparkHome) -> None:
    for tail in TAILS[:-1]:  # one is unknown
        airport.publish("planes", tail, f"plane of {tail}".encode())
    airport.publish("carriers", "AA", b"American")
    for number, tail in enumerate(TAILS):
        fly(airport, tail, number)
    with airport.start(side_app.enriched()) as job:
        wait_until(lambda: len(enriched(airport)) == len(TAILS) or not job.is_active, "the first flights")
        expected = {n: (None if tail == TAILS[-1] else f"plane of {tail}", "American") for n, tail in enumerate(TAILS)}
        assert enriched(airport) == expected
        airport.publish("planes", TAILS[0], b"another plane")
        airport.publish("planes", TAILS[1], None)
        airport.publish("carriers", "AA", b"Envoy")
        number = len(TAILS)

        def shown() -> bool:
            """True if a flight that takes off now shows everything."""
            nonlocal number
            before = number
            for tail in TAILS[:2]:
                fly(airport, tail, number)
                number += 1
            wait_until(lambda: number - 1 in enriched(airport) or not job.is_active, "a flight")
            found = enriched(airport)
            return (found.get(before), found.get(before + 1)) == (("another plane", "Envoy"), (None, "Envoy"))

        wait_until(shown, "the updates", DEADLINE_S)
        caught_up = [("carriers", "local.carriers.0", 0), *(("planes", f"local.planes.{n}", 0) for n in range(TASKS))]
        wait_until(
            lambda: [(each.store, each.partition, each.lag) for each in side_inputs_in(job.metrics())] == caught_up,
            "the lag in the metrics",
        )


@pytest.mark.slow
def test_a_message_that_does_not_decode_ends_a_run(airport: SparkHome) -> None:
    job = airport.start(side_app.enriched())
    wait_until(lambda: job.phase == "running", "the first epoch")
    airport.publish("planes", TAILS[0], b"\xff")
    with pytest.raises(UserCodeError) as raised:
        job.await_termination(DEADLINE_S)
    failed = raised.value.failed
    assert (failed.store, failed.stream, failed.offset, failed.key) == ("planes", "local.planes", 0, TAILS[0])
    assert "input `local.planes`: the value b'\\xff' of key 'N0' cannot be read by ps.String()" in failed.reason


class Look(ps.StreamTask):
    """Emits what the store has under the message's key, and how much it has."""

    def init(self, context: ps.TaskContext) -> None:
        self.planes = context.store("planes")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        found = [self.planes.get(envelope.key), len(list(self.planes.all()))]
        collector.send("local.found", key=envelope.key, value=found)


def test_a_task_with_side_inputs_of_the_configuration(spark: SparkSession, tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    app = ps.TaskApplication("look", Look)
    app.input("local.asked")
    app.store("planes")
    app.store("own")
    app.output("local.found")
    config = {
        "stores.planes.side.inputs": "local.planes",
        "stores.planes.side.inputs.processor.factory": "tests.support.apps.side_app:Seats",
        "app.extra": "1",
    }
    home = SparkHome(tmp_path, spark, dict.fromkeys(("asked", "planes", "found"), 2), config)
    for partition in range(2):
        planes = [(f"N{n}".encode(), json.dumps({"seats": n, "lost": n == 3}).encode()) for n in range(10)]
        home.append("planes", partition, *planes)
        home.append("asked", partition, (b"N3", b"0"), (b"N5", b"0"))
    home.run(app)
    assert [value for _, value, _ in home.read("found")] == [[None, 9], [6, 9]] * 2
