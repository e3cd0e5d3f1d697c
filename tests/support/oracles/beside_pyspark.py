"""Runs a processor in PySpark, so that the same batches can be run in Penstock's task: equal output, equal state."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from penstock.graph.specs import ApplicationGraph
from penstock.spark.processor.task import ProcessorSpec
from penstock.spark.query.checkpoint_location import CheckpointLocation
from penstock.spark.state_from_spark import entries_of
from penstock.spark.state_import.checkpoint import SparkCheckpoint
from penstock.spark.takeover import Takeover
from tests.support.oracles.processors import OneTask

KEYS: Mapping[str, str] = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "Europe/Berlin",
}
"""A batch is a file, a zone has an hour twice, and the state is that which PySpark needs."""
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


def run_in_pyspark(
    rows: DataFrame,
    location: Path,
    processor: StatefulProcessor,
    key: list[str],
    output: StructType,
    mode: str,
    *,
    form: str = "row",
    initial: DataFrame | None = None,
    changelog: bool = False,
) -> dict[int, list[Row]]:
    """The rows of each batch of a query, which ends when it has read everything.

    Args:
        changelog: whether Spark's own state store keeps changelogs.
    """
    found: dict[int, list[Row]] = {}
    spark = rows.sparkSession
    before = {name: spark.conf.get(name, None) for name in (*KEYS, CHANGELOG)}
    for name, value in {**KEYS, CHANGELOG: str(changelog).lower()}.items():
        spark.conf.set(name, value)
    try:
        groups: Any = rows.groupBy(*key)
        transform = groups.transformWithState if form == "row" else groups.transformWithStateInPandas
        made = transform(processor, output, "append", mode, None if initial is None else initial.groupBy(*key))
        writer = made.writeStream.option("checkpointLocation", str(location))
        query = writer.foreachBatch(lambda df, number: found.update({number: df.collect()}))
        query.trigger(availableNow=True).start().awaitTermination()
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)
    return found


def taken_over(spark: SparkSession, spec: ProcessorSpec, location: Path, batch: int) -> OneTask:
    """A task with the state that PySpark had behind a batch."""
    takeover = Takeover(ApplicationGraph.__new__(ApplicationGraph), spec, imports=True, begins_here=False)
    task = OneTask(spec)
    checkpoint = SparkCheckpoint(CheckpointLocation(spark, str(location)), str(location))
    _, sources = takeover.sources(spark, checkpoint, 0, batch)
    stores = tuple(sources)
    entries: dict[str, dict[bytes, bytes | None]] = {
        name: dict(takeover._heads(sources).get(name, {})) for name in stores
    }
    if sources:
        for row in reduce(DataFrame.unionAll, entries_of(sources, stores, 1)).collect():
            assert bytes(row.key) not in entries[stores[row.part]]
            entries[stores[row.part]][bytes(row.key)] = bytes(row.value)
    for name, found in entries.items():
        task.fill(name, found)
    return task


def shown(value: Any) -> str:
    """A value with its types."""
    if isinstance(value, Row):
        return f"Row{[(name, shown(each)) for name, each in zip(value.__fields__, value, strict=True)]}"
    if isinstance(value, list | tuple | np.ndarray):
        return f"{type(value).__name__}[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{shown(k)}: {shown(v)}' for k, v in value.items())}}}"
    return f"{type(value).__name__}:{value!r}"
