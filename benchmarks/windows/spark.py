"""Count and mean for each key and minute through Spark's own operators: what runs in the side's own process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own name for it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.keyed_fold.spark import session, to_the_end
from benchmarks.windows.workload import BOUND_MS, MINUTE_MS, Panes, WindowWorkload, compare_panes

_PANE = "key string, minute long, count long, mean double"


class Minutes(StatefulProcessor):
    """Count and sum of each minute of a key, and a timer for its end. One read and one write for each minute in a
    batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.minutes = handle.getMapState("minutes", "minute long", "count long, sum double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        found: dict[int, tuple[int, float]] = {}
        for row in rows:
            minute = row.time // MINUTE_MS * MINUTE_MS
            count, total = found.get(minute, (0, 0.0))
            found[minute] = (count + 1, total + row.amount)
        for minute, (count, total) in found.items():
            before = self.minutes.getValue((minute,))
            if before is None:
                self.handle.registerTimer(minute + MINUTE_MS)
                before = (0, 0.0)
            self.minutes.updateValue((minute,), (before[0] + count, before[1] + total))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        minute = expiredTimerInfo.getExpiryTimeInMs() - MINUTE_MS
        count, total = self.minutes.getValue((minute,)) or (0, 0.0)
        self.minutes.removeKey((minute,))
        yield Row(key=key[0], minute=minute, count=count, mean=total / count)

    def close(self) -> None:
        """Nothing is open."""


def windows(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run over the files, one a batch; one entry per batch of the events. `operator` says through what."""
    work = Path(parameters["work"])
    spark = session(work, parameters["threads"], parameters["partitions"])
    events = (
        spark.readStream.schema("key string, time long, amount double")
        .option("maxFilesPerTrigger", 1)
        .format(parameters["form"])
        .load(parameters["files"])
        .withColumn("at", F.timestamp_millis("time"))
        .withWatermark("at", f"{BOUND_MS} milliseconds")
    )
    operators = {"aggregation": _aggregation, "transformWithState": _transform_with_state}
    query = (
        operators[parameters["operator"]](events)
        .writeStream.format("parquet")
        .outputMode("append")
        .option("path", str(work / "panes"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    batches = [batch for batch in to_the_end(query) if batch["rows"] == parameters["batch_messages"]]
    spark.stop()
    return {"batches": batches}


def _aggregation(events: DataFrame) -> DataFrame:
    minutes = events.groupBy(F.window("at", f"{MINUTE_MS} milliseconds"), "key")
    panes = minutes.agg(F.count("*").alias("count"), F.avg("amount").alias("mean"))
    return panes.select("key", F.unix_millis("window.start").alias("minute"), "count", "mean")


def _transform_with_state(events: DataFrame) -> DataFrame:
    return events.groupBy("key").transformWithState(Minutes(), _PANE, "Append", "EventTime")


def verify(parameters: dict[str, Any]) -> dict[str, Any]:
    """Read what was written with Spark's own reader, and compare it with a plain computation."""
    work = Path(parameters["work"])
    spark = session(work, parameters["threads"], parameters["partitions"])
    panes = spark.read.schema(_PANE).parquet(str(work / "panes")).toArrow()
    spark.stop()
    names = panes.column("key").to_pylist()
    found = Panes.ordered(
        np.array([int(name.removeprefix("key-")) for name in names], np.int64),
        *(panes.column(name).to_numpy() for name in ("minute", "count", "mean")),
    )
    return compare_panes(found, WindowWorkload(**parameters["workload"]).panes())
