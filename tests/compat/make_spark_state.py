"""Writes the golden files under golden/spark_state/: the state of real queries, and what Spark itself reads of it.

    python -m tests.compat.make_spark_state FOLDER [CASE ...]

Golden files are written once and never again; run it for another folder to look at what another Spark writes. The cases
of transformWithState need the package `protobuf`. Each `<case>/` holds a checkpoint without what it does not take to
read the state, and `expected.json`: store or variable -> batch -> entries, as Spark's own `statestore` source says.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from tests.support.stores.spark_state import plain

_CONF = "spark.sql.streaming.stateStore."
_FEEDS = 5
_BEFORE_SNAPSHOT = 3
_DEADLINE_S = 30


@dataclass(frozen=True)
class Case:
    """A query, and how Spark is told to keep its state."""

    query: Callable[[DataFrame], DataFrame]
    codec: str
    format_version: int
    partitions: int
    mode: str
    variables: tuple[str, ...] = ()
    stores: tuple[str, ...] = ("default",)


def _aggregation(source: DataFrame) -> DataFrame:
    """Every type there is, and nulls."""
    n, odd = f.col("n"), f.col("i") % 2 == 1
    columns = {
        "boolean": odd,
        "byte": n.cast("byte"),
        "short": n.cast("short"),
        "int": -f.col("i"),
        "long": n * 10_000_000_000,
        "float": (n / 4).cast("float"),
        "string": f.concat(f.lit("grüße-"), n),
        "binary": f.unhex(f.concat(f.lit("00ff"), f.lpad(n.cast("string"), 2, "0"))),
        "date": f.date_add(f.lit("1969-12-30").cast("date"), f.col("i")),
        "timestamp": f.col("ts"),
        "ntz": f.to_timestamp_ntz(f.lit("2024-02-29 12:00:00.123456")),
        "small": (-n).cast("decimal(12,2)"),
        "large": (-n * 12345678901).cast("decimal(38,4)") * 1000000007,
        "array": f.array(f.col("i"), f.lit(None), f.col("i") + 1),
        "texts": f.array(f.lit("a"), f.lit(None), f.col("k")),
        "nested": f.struct("n", "k", f.struct(odd.alias("odd"))),
        "null": f.when(odd, n),
    }
    maxima = [f.max(column).alias(name) for name, column in columns.items()]
    pairs = f.first(f.create_map(f.lit("x"), n, f.lit("y"), f.lit(None))).alias("map")
    return source.groupBy("k").agg(f.count("*").alias("c"), f.avg("i").alias("avg"), *maxima, pairs)


def _windows(source: DataFrame) -> DataFrame:
    return source.withWatermark("ts", "1 hour").groupBy(f.window("ts", "2 minutes"), "k").agg(f.sum("i").alias("s"))


def _join(source: DataFrame) -> DataFrame:
    left = source.withWatermark("ts", "1 hour").select("k", "ts", "i")
    right = source.withWatermark("ts", "1 hour").select(f.col("k").alias("rk"), f.col("ts").alias("rts"), "n")
    return left.join(right, f.expr("k = rk AND rts BETWEEN ts AND ts + INTERVAL 1 MINUTE"))


def _with_state(source: DataFrame) -> DataFrame:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Processor(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._handle = handle
            self._total = handle.getValueState("total", "c long, last string")
            self._seen = handle.getListState("seen", "i int, k string")
            self._last = handle.getMapState("last", "p int", "n long")
            self._kept = handle.getValueState("kept", "x double", ttlDurationMs=1_000_000_000_000)

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            taken = list(rows)
            count = self._total.get()[0] if self._total.exists() else 0
            self._total.update((count + len(taken), taken[-1].k))
            for row in taken:
                self._seen.appendValue((row.i, row.k))
                self._last.updateValue((row.i % 2,), (row.n,))
            self._kept.update((1.5,))
            if key[0] == "key-3" and count > 2:
                self._total.clear()
            if key[0] == "key-4" and count > 3:
                self._seen.clear()
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1_000_000_000)
            yield Row(k=key[0], c=count)

        def close(self) -> None:
            pass

    return source.groupBy("k").transformWithState(
        statefulProcessor=Processor(),
        outputStructType="k string, c long",
        outputMode="Update",
        timeMode="processingTime",
    )


_SIDES = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")
_MAP = "last"
_VARIABLES = ("total", "seen", _MAP, "kept")
CASES = {
    "agg-lz4": Case(_aggregation, "lz4", 1, 2, "update"),
    "window-zstd": Case(_windows, "zstd", 1, 1, "update"),
    "join-lz4-ids": Case(_join, "lz4", 2, 1, "append", stores=_SIDES),
    "tws-lz4": Case(_with_state, "lz4", 1, 1, "update", variables=_VARIABLES),
    "tws-zstd-ids": Case(_with_state, "zstd", 2, 1, "update", variables=_VARIABLES),
}


def make(spark: SparkSession, name: str, folder: Path) -> None:
    """Run the query of a case in the folder; leaves `checkpoint/` and `expected.json`."""
    case = CASES[name]
    for key, value in (
        (_CONF + "compression.codec", case.codec),
        (_CONF + "checkpointFormatVersion", case.format_version),
        (_CONF + "minDeltasForSnapshot", 2),
        ("spark.sql.shuffle.partitions", case.partitions),
    ):
        spark.conf.set(key, str(value))
    checkpoint = folder / "checkpoint"
    for number in range(_FEEDS):
        if number == _BEFORE_SNAPSHOT:
            _await_snapshots(checkpoint, case)
            spark.conf.set(_CONF + "minDeltasForSnapshot", "100")  # what follows stays changelogs
        _feed(folder / "in", number)
        _run(case.query(_source(spark, folder / "in")), case.mode, checkpoint)
    (folder / "expected.json").write_text(json.dumps(_expected(spark, case, checkpoint), indent=1) + "\n")


def _source(spark: SparkSession, folder: Path) -> DataFrame:
    schema = "k string, i int, n long, ts timestamp"
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder))


def _feed(folder: Path, number: int) -> None:
    """`key-1` and so on; every second key only in the first feeds, so that it lies in snapshots alone."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"k": None if i == 9 else f"key-{i % 7}", "i": i, "n": number, "ts": f"2024-01-01T00:{number:02}:00Z"}
        for i in range(number, number + 9)
        if number < 2 or i % 2 == 0
    ]
    (folder / f"{number:03}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _run(result: DataFrame, mode: str, checkpoint: Path) -> None:
    writer = result.writeStream.outputMode(mode).format("noop").option("checkpointLocation", str(checkpoint))
    writer.trigger(once=True).start().awaitTermination()


def _await_snapshots(checkpoint: Path, case: Case) -> None:
    """Uploads are the maintenance thread's."""
    folders = [
        checkpoint / "state" / "0" / str(partition) / ("" if store == "default" else store)
        for partition in range(case.partitions)
        for store in case.stores
    ]
    deadline = time.monotonic() + _DEADLINE_S
    while not all(any(folder.glob("[0-9]*.zip")) for folder in folders):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no snapshot in one of {folders} after {_DEADLINE_S} s")
        time.sleep(0.05)


def _expected(spark: SparkSession, case: Case, checkpoint: Path) -> dict[str, dict[str, list[Any]]]:
    batches = sorted(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    found: dict[str, dict[str, list[Any]]] = {}
    for what in case.variables or case.stores:
        option = "stateVarName" if case.variables else "storeName"
        flat = str(what == _MAP).lower()
        reader = spark.read.format("statestore").option(option, what).option("flattenCollectionTypes", flat)
        found[what] = {
            str(batch): sorted(_entry(row) for row in reader.option("batchId", batch).load(str(checkpoint)).collect())
            for batch in batches
        }
    return found


def _entry(row: Row) -> str:
    columns = {name: plain(value) for name, value in row.asDict().items()}
    partition = columns.pop("partition_id")
    if "user_map_key" in columns:  # the state store has both keys as one
        columns = {"key": [columns["key"], columns["user_map_key"]], "value": columns["user_map_value"]}
    return json.dumps([partition, *columns.values()], ensure_ascii=False)


def _session() -> SparkSession:
    # In the zone of the JVM, Python's datetimes are those of UTC.
    os.environ["TZ"] = "UTC"
    time.tzset()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": "-Duser.timezone=UTC -XX:TieredStopAtLevel=1",
        _CONF + "providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        _CONF + "rocksdb.changelogCheckpointing.enabled": "true",
        _CONF + "maintenanceInterval": "100ms",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _keep(made: Path, target: Path) -> None:
    """Keep the files needed to read the state."""
    shutil.copytree(made / "checkpoint", target / "checkpoint", ignore=shutil.ignore_patterns(".*", "*.crc", "sources"))
    shutil.copy(made / "expected.json", target)


def main() -> None:
    """Make the cases that are named, or all."""
    target = Path(sys.argv[1])
    spark = _session()
    for name in sys.argv[2:] or list(CASES):
        work = target / f".{name}"
        make(spark, name, work)
        _keep(work, target / name)
        shutil.rmtree(work)
    spark.stop()


if __name__ == "__main__":
    main()
