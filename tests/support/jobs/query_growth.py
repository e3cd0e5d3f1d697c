"""A streaming query of many small batches, and queries that are started and stopped in one process: what is held after
every few of them. Runs in a side's own process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import penstock.spark as pss
from benchmarks.soak import sample
from penstock.spark.session.session import create_session
from tests.support.jobs.home import wait_until

OUTPUT = "user LONG, n LONG, fired BOOLEAN"
USERS = 50
_PATIENCE_S = 600.0


class Visits(StatefulProcessor):
    """Counts rows, and forgets a user some batches later."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n LONG, padding STRING")
        self.last = handle.getMapState("last", "n LONG", "id LONG", 2_000)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        (before, _) = self.count.get() or (0, "")
        n = before + sum(1 for _ in rows)
        self.count.update((n, "x" * 2_000))
        self.last.updateValue((n,), (n,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1_000)
        yield Row(user=key[0], n=n, fired=False)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        (n, _) = self.count.get() or (0, "")
        yield Row(user=key[0], n=n, fired=True)

    def close(self) -> None:
        pass


def batches(parameters: dict[str, Any]) -> dict[str, Any]:
    """One query: a sample after every `step_batches` batches, while the handler of one waits."""
    work = Path(parameters["work"])
    spark = _session(work)
    holds, goes_on = threading.Event(), threading.Event()
    fired = 0

    def handler(rows: DataFrame, number: int) -> None:
        nonlocal fired
        fired += sum(row.fired for row in rows.collect())
        if number % parameters["step_batches"] == parameters["step_batches"] - 1:
            holds.set()
            goes_on.wait(_PATIENCE_S)
            goes_on.clear()

    query = _start(spark, work, handler)
    samples = []
    for step in range(parameters["steps"]):
        wait_until(lambda: holds.is_set() or not query.isActive, "a batch", _PATIENCE_S)
        if not query.isActive:
            query.awaitTermination()
        samples.append({"batches": (step + 1) * parameters["step_batches"], "figures": _sample(spark, work)})
        holds.clear()
        goes_on.set()
    query.stop()
    spark.stop()
    return {"samples": samples, "fired": fired}


def starts(parameters: dict[str, Any]) -> dict[str, Any]:
    """A query is started and stopped, and its state read, `steps` times; a sample after each time. Every start but the
    first continues the state."""
    work = Path(parameters["work"])
    spark = _session(work)
    samples = []
    handled = threading.Semaphore(0)

    def handler(rows: DataFrame, number: int) -> None:
        rows.collect()
        handled.release()

    for step in range(parameters["steps"]):
        query = _start(spark, work, handler)
        _await(query, handled)
        _await(query, handled)
        _refused(spark, work)
        query.stop()
        assert query.exception() is None
        assert len(pss.read_state(spark, str(work / "jobs"), "count").limit(1).collect()) == 1
        samples.append({"batches": step + 1, "figures": _sample(spark, work)})
    spark.stop()
    return {"samples": samples}


def _await(query: StreamingQuery, handled: threading.Semaphore) -> None:
    """Until a batch was handled."""
    wait_until(lambda: handled.acquire(blocking=False) or not query.isActive, "a batch", _PATIENCE_S)
    assert query.isActive, query.exception()


def _refused(spark: SparkSession, work: Path) -> None:
    """A start that Spark refuses, because the query runs."""
    with pytest.raises(IllegalArgumentException, match="already active"):
        _start(spark, work, print)


def _session(work: Path) -> SparkSession:
    temporary = work / "tmp"
    temporary.mkdir(parents=True)
    os.environ |= {"TMPDIR": str(temporary), "PENSTOCK_HOME": str(work / "home")}
    return create_session(
        "growth",
        {
            "spark.master": "local[2]",
            "spark.driver.memory": "512m",
            "spark.local.dir": str(work / "spark"),
            # Spark describes its last jobs, stages, statements and batches in memory. Those are bounds, but ones that
            # few runs here reach.
            "spark.ui.retainedJobs": "20",
            "spark.ui.retainedStages": "20",
            "spark.ui.retainedTasks": "100",
            "spark.sql.ui.retainedExecutions": "10",
            "spark.sql.streaming.numRecentProgressUpdates": "5",
            "spark.sql.streaming.minBatchesToRetain": "5",
        },
    )


def _start(spark: SparkSession, work: Path, handler: Any) -> StreamingQuery:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4 * USERS).load()
    return (
        pss.transform_with_state(
            source.selectExpr(f"value % {USERS} AS user", "value AS id"),
            processor=Visits(),
            key="user",
            output=OUTPUT,
            time_mode="ProcessingTime",
            root=str(work / "jobs"),
            partitions=2,
            # Not one checkpoint of each hour as well: the job root would grow when the hour strikes.
            config={"task.checkpoint.retained": "10", "job.logged.store.base.dir": str(work / "state")},
        )
        .for_each_batch(handler)
        .option("checkpointLocation", str(work / "location"))
        .queryName("growth")
        .start()
    )


def _sample(spark: SparkSession, work: Path) -> dict[str, dict[str, float]]:
    figures = sample(work)
    context: Any = spark.sparkContext._jsc.sc()
    status = context.getExecutorMemoryStatus()
    used = [status.apply(key)._1() - status.apply(key)._2() for key in _items(status.keys())]
    figures["blocks"] = {"persistent": context.getPersistentRDDs().size(), "memory_bytes": sum(used)}
    figures["files"]["temporary"] = sum(len(names) + len(files) for _, names, files in os.walk(work / "tmp"))
    figures["files"]["home"] = sum(len(files) for _, _, files in os.walk(work / "home"))
    return figures


def _items(found: Any) -> Iterator[Any]:
    each = found.iterator()
    while each.hasNext():
        yield each.next()
