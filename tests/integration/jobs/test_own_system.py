"""A job on Spark that reads and writes a user's own system: one whose offsets have gaps and that does not fence."""

from __future__ import annotations

import logging
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from examples import folder_system
from examples.folder_system import FolderSystem
from penstock.api.ssp import SystemStreamPartition
from penstock.driver.show.progress import JobProgress
from penstock.testing.system_contract import append, read_all
from tests.support.jobs.home import DEADLINE_S

pytestmark = pytest.mark.spark


class Count(ps.StreamTask):
    """Counts the messages of each key."""

    def init(self, context: ps.TaskContext) -> None:
        self.counts = context.store("counts")

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        count = self.counts.get(envelope.key, 0) + 1
        self.counts.put(envelope.key, count)
        collector.emit(key=envelope.key, value=count)


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> None:
    for module in (folder_system, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)


def counting_app() -> ps.StreamApplication:
    app = ps.StreamApplication("counting")
    app.store("counts", key=ps.String(), value=ps.Json())
    (
        app.input("far.words", value=ps.String())
        .partition_by(str, key=ps.String())
        .process(Count, stores=["counts"])
        .send_to(app.output("far.counts", key=ps.String(), value=ps.Json()))
    )
    return app


def test_a_job_on_a_system_of_ones_own(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    system = FolderSystem("far", tmp_path / "streams")
    system.admin().create_stream("words", 3)
    config: dict[str, object] = {
        "job.root": str(tmp_path / "jobs"),
        "job.logged.store.base.dir": str(tmp_path / "state"),
        "systems.local.path": str(tmp_path / "local"),
        "systems.far.samza.factory": "examples.folder_system:FolderSystem",
        "systems.far.folder": str(tmp_path / "streams"),
        "job.batch.max.messages": 60,
    }
    chance, words = random.Random(1), [f"word-{n}" for n in range(20)]
    published: Counter[str] = Counter()

    def publish_and_run(number: int) -> JobProgress:
        for _ in range(number):
            word = chance.choice(words)
            published[word] += 1
            where = SystemStreamPartition("far", "words", chance.randrange(3))
            append(system, where, [(0, None, word.encode())])
        with caplog.at_level(logging.WARNING):
            job = counting_app().run(config, spark=spark, until="latest")
            assert job.await_termination(DEADLINE_S)
        assert job.progress is not None
        return job.progress

    for number in (200, 50):
        progress = publish_and_run(number)
        assert progress.total_input_rows == number, "offsets are positions in a file, and are not counted"
    assert "far.counts` does not fence writers" in caplog.text
    partitions = range(system.admin().partition_count("counts"))
    found = [m for n in partitions for m in read_all(system, SystemStreamPartition("far", "counts", n))]
    assert len(found) == 250
    last = {(key or b"").decode(): int(value or b"0") for _, _, key, value, *_ in found}
    assert last == published
