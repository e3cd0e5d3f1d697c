"""Time to live on Spark: entries expire by the batch time, in containers that are killed, from run to run."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from penstock import admin
from tests.support.jobs.spark_home import SparkHome

pytestmark = pytest.mark.spark
DAY_MS = 24 * 3_600_000
KEYS = [f"k{n}" for n in range(40)]


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Count(ps.StreamTask):
    """Counts the messages of a key in three stores, which keep it for a moment, for a day and forever."""

    def init(self, context: ps.TaskContext) -> None:
        self.stores = [context.store(name) for name in ("moment", "day", "forever")]

    def process(self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: Any) -> None:
        counts = [store.get(envelope.key, 0) + 1 for store in self.stores]
        for store, count in zip(self.stores, counts, strict=True):
            store[envelope.key] = count
        collector.emit(key=envelope.key, value=counts)


def application(day_ms: int | None) -> ps.StreamApplication:
    app = ps.StreamApplication("ttl")
    app.store("moment", ttl_ms=1, value=ps.Long())
    app.store("day", ttl_ms=day_ms, value=ps.Long())
    app.store("forever", value=ps.Long())
    counts = (
        app.input("local.in")
        .partition_by(str, id="by-value")
        .process(Count, stores=["moment", "day", "forever"], id="count")
    )
    counts.send_to(app.output("local.out"), id="out")
    return app


@pytest.mark.slow
def test_entries_expire_from_run_to_run(spark: SparkSession, tmp_path: Path) -> None:
    """Entries of one store live for a millisecond: the second run finds none. Another store gets a time to live in the
    second run, and keeps what it has. All backends hold the same, and the index fits."""
    config = {
        "stores.backup.factories": "changelog-files,blob",
        "job.batch.max.messages": 15,
        "job.batch.target.ms": 0,
        "task.commit.ms": 1,
    }
    home = SparkHome(tmp_path, spark, {"in": 2, "out": 2}, config)
    came: Counter[str] = Counter()
    for run, day_ms in ((1, None), (2, DAY_MS)):
        began_ms = time.time_ns() // 1_000_000
        home.spread("in", KEYS)
        home.run(application(day_ms))
        sent = Counter(json.dumps([key, counts]) for key, counts, _ in home.read("out"))
        assert sent - came == Counter(json.dumps([key, [1, run, run]]) for key in KEYS)
        came = sent
        with admin.open_job("ttl", overrides=home.config) as found:
            last = admin.read_checkpoint(found)
            assert last.batch_time_ms >= began_ms
            assert admin.verify(found).agrees
            with admin.open_state(found, "day") as store:
                assert {entry.key: entry.value for entry in store.scan()} == dict.fromkeys(KEYS, run)
