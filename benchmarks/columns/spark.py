"""The keyed fold through Spark's own stateful operators: what runs in the side's own process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own name for it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.columns.inputs import totals_of
from benchmarks.keyed_fold.spark import session, to_the_end
from benchmarks.keyed_fold.workload import Workload


class Fold(StatefulProcessor):
    """Running count and sum per key, with one frame for all rows of a key in a batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.totals = handle.getValueState("totals", "count long, sum double")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        count, total = self.totals.get() or (0, 0.0)
        for frame in rows:
            count += len(frame)
            total += float(frame["amount"].sum())
        self.totals.update((count, total))
        yield pd.DataFrame({"key": [key[0]], "count": [count], "sum": [total]})

    def close(self) -> None:
        """Nothing is open."""


def fold(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the fold over the files, as many a batch as there are partitions; one entry per batch."""
    work, threads = Path(parameters["work"]), parameters["threads"]
    spark = session(work, threads, threads)
    events = (
        spark.readStream.schema("key string, amount double")
        .option("maxFilesPerTrigger", threads)
        .format(parameters["form"])
        .load(f"{parameters['files']}/events")
    )
    query = (
        _operator(parameters["operator"], events)
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    batches = [batch for batch in to_the_end(query) if batch["rows"]]
    spark.stop()
    return {"batches": batches}


def _operator(name: str, events: DataFrame) -> DataFrame:
    by_key = events.groupBy("key")
    if name == "transformWithStateInPandas":
        return by_key.transformWithStateInPandas(Fold(), "key string, count long, sum double", "Update", "None")
    return by_key.agg(F.count("*").alias("count"), F.sum("amount").alias("sum"))


def verify(parameters: dict[str, Any]) -> dict[str, Any]:
    """Read the state of the last committed batch with Spark's own reader, and compare every key."""
    workload, work = Workload(**parameters["workload"]), Path(parameters["work"])
    spark = session(work, parameters["threads"], parameters["threads"])
    reader = spark.read.format("statestore")
    if parameters["operator"] == "transformWithStateInPandas":
        reader = reader.option("stateVarName", "totals")
    state = reader.load(str(work / "checkpoint")).select(F.col("key.key").alias("key"), "value.*").toArrow()
    spark.stop()
    counts, sums = totals_of(workload)
    found_counts, found_sums = np.zeros_like(counts), np.zeros_like(sums)
    numbers = [int(key[4:]) for key in state["key"].to_pylist()]
    found_counts[numbers] = state.column(1).to_numpy()
    found_sums[numbers] = state.column(2).to_numpy()
    wrong = int(((found_counts != counts) | (found_sums != sums)).sum())
    return {"equal": not wrong, "keys": len(numbers), "wrong_keys": wrong}
