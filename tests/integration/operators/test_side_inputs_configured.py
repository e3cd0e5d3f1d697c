"""A StreamTask on Spark whose side inputs and processor the configuration names."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import OffsetRange
from penstock.system.local import LocalSystem
from tests.support.apps import side_app

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
    for module in (side_app, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)
    app = ps.TaskApplication("look", Look)
    app.input("local.asked")
    app.store("planes")
    app.store("own")
    app.output("local.found")
    system = LocalSystem("local", str(tmp_path / "streams"))
    for stream in ("asked", "planes", "found"):
        system.admin().create_stream(stream, 2)
    writer = system.writer(None)
    for partition in range(2):
        planes = [(0, f"N{n}".encode(), json.dumps({"seats": n, "lost": n == 3}).encode()) for n in range(10)]
        writer.append(SystemStreamPartition("local", "planes", partition), planes)
        writer.append(SystemStreamPartition("local", "asked", partition), [(0, b"N3", b"0"), (0, b"N5", b"0")])
    config = {
        "job.root": str(tmp_path / "jobs"),
        "job.logged.store.base.dir": str(tmp_path / "state"),
        "systems.local.path": str(tmp_path / "streams"),
        "stores.planes.side.inputs": "local.planes",
        "stores.planes.side.inputs.processor.factory": "tests.support.apps.side_app:Seats",
        "app.extra": "1",
    }
    assert app.run(config, spark=spark, until="latest").await_termination(120)
    found = []
    for partition, ends in system.admin().offsets("found").items():
        ssp = SystemStreamPartition("local", "found", partition)
        for chunk in system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 100):
            found += [json.loads(value or b"") for _, _, _, value, *_ in chunk]
    assert found == [[None, 9], [6, 9]] * 2
