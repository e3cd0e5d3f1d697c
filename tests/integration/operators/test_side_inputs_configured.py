"""A StreamTask on Spark whose side inputs and processor the configuration names."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from tests.support.jobs.spark_home import SparkHome

pytestmark = pytest.mark.spark


class Look(ps.StreamTask):
    """Emits what the store has under the message's key, and how much it has."""

    def init(self, context: ps.TaskContext) -> None:
        self.planes = context.store("planes")

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
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
