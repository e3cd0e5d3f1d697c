"""The keyed fold through Spark's own stateful operators: what runs in the side's own process."""

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
from benchmarks.keyed_fold.workload import Totals, Workload, compare
from penstock.spark.session.session import find_java

PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_STATE = "spark.sql.streaming.stateStore"
CHANGELOG = f"{_STATE}.rocksdb.changelogCheckpointing.enabled"


class Fold(StatefulProcessor):
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

    def close(self) -> None:
        """Nothing is open."""


def session(work: Path, threads: int, partitions: int, more: Mapping[str, str] | None = None) -> SparkSession:
    """RocksDB with changelog checkpointing; all else as Spark has it, but for what all sides share, and `more`."""
    find_java()
    settings = {
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
        f"{_STATE}.providerClass": PROVIDER,
        CHANGELOG: "true",
        **(more or {}),
    }
    builder: Any = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def fold(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the fold over the files, one a batch; one entry per batch. `operator` says through what."""
    work = Path(parameters["work"])
    spark = session(work, parameters["threads"], parameters["partitions"])
    events = (
        spark.readStream.schema("key string, amount double")
        .option("maxFilesPerTrigger", 1)
        .format(parameters["form"])
        .load(parameters["files"])
    )
    operators = {"aggregation": _aggregation, "transformWithState": _transform_with_state}
    query = (
        operators[parameters["operator"]](events)
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    batches = [batch for batch in to_the_end(query) if batch["rows"]]
    spark.stop()
    return {"batches": batches}


def to_the_end(query: StreamingQuery) -> list[dict[str, Any]]:
    """Every batch of a query that ends by itself."""
    query.awaitTermination()
    progress = [orjson.loads(each.json) for each in query.recentProgress]
    return [
        {
            "batch": each["batchId"] + 1,
            "rows": each["numInputRows"],
            "duration_ms": each["durationMs"],
            "ended": datetime.fromisoformat(each["timestamp"]).timestamp()
            + each["durationMs"]["triggerExecution"] / 1000,
        }
        for each in progress
        if "addBatch" in each["durationMs"]
    ]


def _aggregation(events: DataFrame) -> DataFrame:
    return events.groupBy("key").agg(F.count("*").alias("count"), F.sum("amount").alias("sum"))


def _transform_with_state(events: DataFrame) -> DataFrame:
    return events.groupBy("key").transformWithState(Fold(), "key string, count long, sum double", "Update", "None")


def verify(parameters: dict[str, Any]) -> dict[str, Any]:
    """Read the state of the last committed batch with Spark's own reader, and compare every key."""
    workload = Workload(**parameters["workload"])
    work = Path(parameters["work"])
    spark = session(work, parameters["threads"], parameters["partitions"])
    reader = spark.read.format("statestore")
    if parameters["operator"] == "transformWithState":
        reader = reader.option("stateVarName", "totals")
    state = reader.load(str(work / "checkpoint")).select("key.key", "value.*")
    totals: Totals = {row[0]: (row[1], row[2]) for row in state.collect()}
    spark.stop()
    return compare(totals, workload.totals())
