"""The demo for people with PySpark jobs: one processor in PySpark and in Penstock, with the rows per second of each."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import penstock.spark as pss
from examples.flights.data import flights
from examples.processors.processor import KEY, OUTPUT, Routes
from examples.running import HOME
from penstock.spark.session.session import find_java

BATCHES = 8
TIMES = 4
"""How often the input repeats the flights of the year."""
Totals: TypeAlias = dict[tuple[str, str], tuple[int, int]]
Start: TypeAlias = Callable[[DataFrame, Callable[[DataFrame, int], None], Path], Any]


def main() -> None:
    """Run the demo. Exit status 1 if the results differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", type=int, default=None, help="use only this many flights")
    arguments = parser.parse_args()
    home = (HOME / "demo-pyspark").resolve()
    shutil.rmtree(home, ignore_errors=True)
    wanted, rows = write_flights(home / "flights", arguments.flights)
    print(f"{rows:,} flights in {BATCHES} batches, {len(wanted):,} pairs of aircraft and airport", flush=True)
    spark = session(home)
    rates: dict[str, float] = {}
    for name, start in ENGINES.items():
        line = Line(name, rates)
        query = start(events(spark, home), line.handler(home / name / "output"), home / name)
        while query.isActive:
            line.show(query.recentProgress)
            time.sleep(0.5)
        query.awaitTermination()
        rates[name] = line.show(query.recentProgress)
        print(flush=True)
        if last_totals(spark, home / name / "output") != wanted:
            sys.exit(f"{name}: the totals differ from a plain computation")
    spark.stop()
    print("both have the totals of a plain computation", flush=True)
    ratio = rates["Penstock"] / rates["PySpark"]
    print(f"Penstock is {ratio:.1f} times as fast in the batches after the second", flush=True)


def write_flights(folder: Path, limit: int | None) -> tuple[Totals, int]:
    """Write two files for each batch. Returns the expected totals and the number of flights."""
    known = [(f["tailnum"], f["dest"], f["distance"]) for f in flights() if f["tailnum"] is not None][:limit] * TIMES
    totals: Totals = {}
    for tailnum, dest, distance in known:
        count, miles = totals.get((tailnum, dest), (0, 0))
        totals[tailnum, dest] = (count + 1, miles + distance)
    folder.mkdir(parents=True)
    for number in range(2 * BATCHES):
        columns = zip(*known[number :: 2 * BATCHES], strict=True)
        path = folder / f"{number:02d}.parquet"
        pq.write_table(pa.table(list(columns), names=["tailnum", "dest", "distance"]), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads the oldest first
    return totals, len(known)


def session(home: Path) -> SparkSession:
    """A local Spark session, with Spark's fastest state store for PySpark's own state."""
    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # PySpark would use the `python3` on the path
    store = "spark.sql.streaming.stateStore"
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    builder: Any = SparkSession.builder
    for key, value in {
        "spark.master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(home / "spark"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.worker.idleTimeoutSeconds": "1205",
        "spark.python.worker.killOnIdleTimeout": "true",
        "spark.authenticate": "true",
        "spark.sql.shuffle.partitions": "2",
        f"{store}.providerClass": provider,
        f"{store}.rocksdb.changelogCheckpointing.enabled": "true",
    }.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def events(spark: SparkSession, home: Path) -> DataFrame:
    """The flights as a stream: two files a batch."""
    source = spark.readStream.schema("tailnum STRING, dest STRING, distance LONG").option("maxFilesPerTrigger", 2)
    return source.parquet(str(home / "flights"))


def in_penstock(df: DataFrame, handler: Callable[[DataFrame, int], None], home: Path) -> Any:
    """The query with its state in Penstock."""
    return (
        pss.transform_with_state(df, processor=Routes(), key=KEY, output=OUTPUT, root=str(home / "root"), partitions=2)
        .for_each_batch(handler)
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def in_pyspark(df: DataFrame, handler: Callable[[DataFrame, int], None], home: Path) -> Any:
    """The query with its state in PySpark."""
    return (
        df.groupBy(*KEY)
        .transformWithState(Routes(), OUTPUT, "Update", "None")
        .writeStream.outputMode("update")
        .foreachBatch(handler)
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


ENGINES: Mapping[str, Start] = {"PySpark": in_pyspark, "Penstock": in_penstock}
"""PySpark comes first because the JVM gets faster for a minute or so: PySpark runs that long, and Penstock does not."""


class Line:
    """The line with the rows per second of both engines."""

    def __init__(self, name: str, before: Mapping[str, float]) -> None:
        self._name = name
        self._before = dict(before)
        self._shown = -1

    def handler(self, output: Path) -> Callable[[DataFrame, int], None]:
        """A handler that writes the rows of each batch."""

        def write(df: DataFrame, batch: int) -> None:
            df.write.mode("overwrite").parquet(str(output / f"batch={batch}"))

        return write

    def show(self, progress: list[Any]) -> float:
        """Print the line. Returns the rows per second of the batches after the second."""
        done = [each for each in progress if each.numInputRows]
        counted = done[2:] or done
        spent_ms = sum(each.durationMs["triggerExecution"] for each in counted)
        rate = sum(each.numInputRows for each in counted) / spent_ms * 1000 if spent_ms else 0.0
        if len(done) != self._shown:
            self._shown = len(done)
            parts = [f"{name}: {each:,.0f} rows/s" for name, each in {**self._before, self._name: rate}.items()]
            again, end = ("\r", "") if sys.stdout.isatty() else ("", "\n")
            print(f"{again}{'   '.join(parts)}   (batch {len(done)} of {BATCHES})   ", end=end, flush=True)
        return rate


def last_totals(spark: SparkSession, output: Path) -> Totals:
    """The last totals that were written for each key."""
    rows = spark.read.parquet(str(output)).orderBy("batch").collect()
    return {(row.tailnum, row.dest): (row.flights, row.miles) for row in rows}


if __name__ == "__main__":
    main()
