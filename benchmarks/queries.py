"""Spark's own queries: what the sides of several benchmarks share, the keyed fold, and the windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own name for it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.harness import DRIVER_MEMORY
from benchmarks.workload import BOUND_MS, MINUTE_MS, WindowWorkload, Workload, compare, compare_files
from penstock.spark.session.session import find_java

STATE = "spark.sql.streaming.stateStore"
CHANGELOG = f"{STATE}.rocksdb.changelogCheckpointing.enabled"
_TOTALS = "key string, count long, sum double"
PANE = ("key", "minute", "count", "mean")


class Stateful(StatefulProcessor):
    """A processor that has nothing to close."""

    def close(self) -> None:
        """Nothing is open."""


class Fold(Stateful):
    """Running count and sum per key. One read and one write of the state for all rows of a key in a batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.totals = handle.getValueState("totals", "count long, sum double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        count, total = self.totals.get() or (0, 0.0)
        for row in rows:
            count += 1
            total += row.amount
        self.totals.update((count, total))
        yield Row(key=key[0], count=count, sum=total)


class PandasFold(Fold):
    """The same, with one frame for all rows of a key in a batch."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        import pandas as pd

        count, total = self.totals.get() or (0, 0.0)
        for frame in rows:
            count += len(frame)
            total += float(frame["amount"].sum())
        self.totals.update((count, total))
        yield pd.DataFrame({"key": [key[0]], "count": [count], "sum": [total]})


class Minutes(Stateful):
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


def settings(work: Path, threads: int, partitions: int) -> dict[str, str]:
    """RocksDB with changelog checkpointing; all else as Spark has it, but for what all sides share."""
    return {
        "spark.master": f"local[{threads}]",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(work / "spark"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        f"{STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        CHANGELOG: "true",
    }


def session(work: Path, threads: int, partitions: int, more: Mapping[str, str] | None = None) -> SparkSession:
    """A session with these settings, and `more`."""
    find_java()
    both: dict[Any, Any] = {**settings(work, threads, partitions), **(more or {})}
    spark: SparkSession = SparkSession.builder.config(map=both).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read(spark: SparkSession, schema: str, files: str, a_batch: int = 1, form: str = "parquet") -> DataFrame:
    """A stream of files, so many of them a batch."""
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", a_batch)
    return reader.format(form).load(files)


def last_values(spark: SparkSession, files: Path) -> DataFrame:
    """The last value of each key, from files that are a batch each."""
    return read(spark, "key string, value binary", str(files)).groupBy("key").agg(F.last("value").alias("value"))


def in_time(events: DataFrame, bound_ms: int) -> DataFrame:
    """The same with a watermark, by the column `time`."""
    timed = events.withColumn("at", F.timestamp_millis("time"))
    return timed.withWatermark("at", f"{bound_ms} milliseconds")


def sink(frame: DataFrame, checkpoint: Path, mode: str = "update", form: str = "noop", **options: str) -> Any:
    """A writer of a query whose rows go nowhere, unless `form` says otherwise."""
    options = {"checkpointLocation": str(checkpoint), **options}
    return frame.writeStream.format(form).outputMode(mode).options(**options)


def progress_of(query: StreamingQuery) -> list[dict[str, Any]]:
    """Spark's report of each batch of a query."""
    return [orjson.loads(each.json) for each in query.recentProgress]


def began(progress: Mapping[str, Any]) -> float:
    """When a batch began, in epoch seconds."""
    return datetime.fromisoformat(progress["timestamp"]).timestamp()


def seconds(progress: Mapping[str, Any]) -> float:
    """The time that a batch took."""
    return float(progress["durationMs"]["triggerExecution"] / 1000)


def ended(progress: Mapping[str, Any]) -> float:
    """When a batch ended, in epoch seconds."""
    return began(progress) + seconds(progress)


def to_the_end(writer: Any) -> list[dict[str, Any]]:
    """Run a query over all that is there; what Spark has said of its batches."""
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return progress_of(query)


def run(spark: SparkSession, writer: Any, rows: int | None = None) -> dict[str, Any]:
    """Run a query over all that is there, and stop the session; one entry per batch, or per batch of so many rows."""
    batches = [
        {
            "batch": each["batchId"] + 1,
            "rows": each["numInputRows"],
            "duration_ms": each["durationMs"],
            "ended": ended(each),
        }
        for each in to_the_end(writer)
        if "addBatch" in each["durationMs"] and rows in (None, each["numInputRows"])
    ]
    spark.stop()
    return {"batches": batches}


def fold(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the keyed fold over the files; one entry per batch. `operator` says through what."""
    work, threads = Path(parameters["work"]), parameters["threads"]
    spark = session(work, threads, threads)
    schema, form = "key string, amount double", parameters["form"]
    by_key = read(spark, schema, parameters["files"], parameters.get("files_a_batch", 1), form).groupBy("key")
    if parameters["operator"] == "transformWithState":
        totals = by_key.transformWithState(Fold(), _TOTALS, "Update", "None")
    elif parameters["operator"] == "transformWithStateInPandas":
        totals = by_key.transformWithStateInPandas(PandasFold(), _TOTALS, "Update", "None")
    else:
        totals = by_key.agg(F.count("*").alias("count"), F.sum("amount").alias("sum"))
    return run(spark, sink(totals, work / "checkpoint"), parameters["batch_messages"])


def verify_fold(parameters: dict[str, Any]) -> dict[str, Any]:
    """Read the state of the last committed batch with Spark's own reader, and compare every key."""
    work, threads = Path(parameters["work"]), parameters["threads"]
    spark = session(work, threads, threads)
    reader = spark.read.format("statestore")
    if parameters["operator"].startswith("transformWithState"):
        reader = reader.option("stateVarName", "totals")
    state = reader.load(str(work / "checkpoint")).select(F.col("key.key").alias("key"), "value.*").toArrow()
    spark.stop()
    counts, sums = (state.column(number).to_numpy() for number in (1, 2))
    return compare(Workload(**parameters["workload"]), state["key"].to_pylist(), counts, sums)


def windows(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the windows over the files, one a batch; one entry per batch of the events. `operator` says through what."""
    work, threads = Path(parameters["work"]), parameters["threads"]
    spark = session(work, threads, threads)
    schema = "key string, time long, amount double"
    events = in_time(read(spark, schema, parameters["files"], form=parameters["form"]), BOUND_MS)
    if parameters["operator"] == "transformWithState":
        panes = events.groupBy("key").transformWithState(
            Minutes(), "key string, minute long, count long, mean double", "Append", "EventTime"
        )
    else:
        minutes = events.groupBy(F.window("at", f"{MINUTE_MS} milliseconds"), "key")
        found = minutes.agg(F.count("*").alias("count"), F.avg("amount").alias("mean"))
        panes = found.withColumn("minute", F.unix_millis("window.start")).select(*PANE)
    writer = sink(panes, work / "checkpoint", "append", "parquet", path=str(work / "panes"))
    return run(spark, writer, parameters["batch_messages"])


def verify_windows(parameters: dict[str, Any]) -> dict[str, Any]:
    """Read what was written, and compare it with a plain computation."""
    return compare_files(WindowWorkload(**parameters["workload"]), Path(parameters["work"]) / "panes", PANE)
