"""Time to live on Spark: entries expire by the batch time, in containers that are killed, from run to run."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import penstock as ps
from penstock import admin
from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import OffsetRange
from penstock.system.local import LocalSystem
from tests.support.jobs.home import DEADLINE_S

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

    def process(
        self, envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, coordinator: ps.TaskCoordinator
    ) -> None:
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


def counts(system: LocalSystem, run: int) -> list[tuple[str, list[int]]]:
    """The output of a run: the messages of a partition come in its order, and each run has as many."""
    found = []
    for partition, ends in system.admin().offsets("out").items():
        ssp = SystemStreamPartition("local", "out", partition)
        sent = [m for chunk in system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 1000) for m in chunk]
        size = len(sent) // run
        found += [((key or b"").decode(), json.loads(value or b"")) for _, _, key, value, *_ in sent[-size:]]
    return sorted(found)


@pytest.mark.slow
def test_entries_expire_from_run_to_run(spark: SparkSession, tmp_path: Path) -> None:
    """Entries of one store live for a millisecond: the second run finds none. Another store gets a time to live in the
    second run, and keeps what it has. All backends hold the same, and the index fits."""
    config = {
        "job.root": str(tmp_path / "jobs"),
        "job.logged.store.base.dir": str(tmp_path / "state"),
        "systems.local.path": str(tmp_path / "streams"),
        "stores.backup.factories": "changelog-files,blob",
        "job.batch.max.messages": 15,
        "job.batch.target.ms": 0,
        "task.commit.ms": 1,
    }
    system = LocalSystem("local", str(tmp_path / "streams"))
    for stream in ("in", "out"):
        system.admin().create_stream(stream, 2)
    writer = system.writer(None)
    for run, day_ms in ((1, None), (2, DAY_MS)):
        began_ms = time.time_ns() // 1_000_000
        for partition in range(2):
            values = [(5, None, json.dumps(key).encode()) for key in KEYS[partition::2]]
            writer.append(SystemStreamPartition("local", "in", partition), values)
        job = application(day_ms).run(config, spark=spark, until="latest")
        assert job.await_termination(DEADLINE_S)
        assert counts(system, run) == [(key, [1, run, run]) for key in sorted(KEYS)]
        with admin.open_job("ttl", overrides=config) as found:
            last = admin.read_checkpoint(found)
            assert last.batch_time_ms >= began_ms
            assert admin.verify(found).agrees
            with admin.open_state(found, "day") as store:
                assert {entry.key: entry.value for entry in store.scan()} == dict.fromkeys(KEYS, run)
    writer.close()
