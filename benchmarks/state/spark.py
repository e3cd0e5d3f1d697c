"""The same commits and restores by Spark's RocksDB state store: what runs in the side's own process.

A streaming query keeps the last value of each key, in one partition: `groupBy("key").agg(last("value"))`. Each file is
a batch, each batch a commit of the keys in it.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own name for it

from benchmarks.keyed_fold.spark import CHANGELOG, session
from benchmarks.state.content import KEY_BYTES, Entries, StateContent, StateInputs, write_entries
from benchmarks.state.loads import Load, first_load, log_settings
from benchmarks.state.penstock import VERIFIED_KEYS, time_cp
from benchmarks.state.penstock import settle as settle_files

_LOGGED_S = 10.0
_STATE = "spark.sql.streaming.stateStore"
_KEPT = {"spark.sql.streaming.minBatchesToRetain": "1000000"}
"""Nothing is deleted while a benchmark runs, so that what was written can be counted at the end."""
_NO_SNAPSHOTS = {f"{_STATE}.minDeltasForSnapshot": "1000000", f"{_STATE}.maintenanceInterval": "5s"}
"""Only changelogs; the maintenance, which then only closes the stores of queries that ended, comes soon."""

_CHECKPOINT = ("rocksdbCommitFlushLatency", "rocksdbCommitCheckpointLatency")
"""The time of a commit for a checkpoint of RocksDB, which the maintenance uploads as a snapshot."""


def commits(parameters: dict[str, Any]) -> dict[str, Any]:
    """Fill a state, then commit series of changes, a batch each."""
    work, inputs = Path(parameters["work"]), _inputs(parameters)
    spark = session(work, parameters["threads"], 1, _KEPT)
    checkpoint = work / "checkpoint"
    batches = _run(spark, inputs.folder, checkpoint)
    filled = _ended(batches[inputs.fill - 1])
    counts = iter(batches[inputs.fill :])
    series = []
    for one in parameters["series"]:
        own = [next(counts) for _ in range(parameters["warm_up"] + one["commits"])][parameters["warm_up"] :]
        series.append(_series(one, own, checkpoint, parameters["value_bytes"]))
    snapshots = [path for kind in ("zip", "sst", "log") for path in _state_files(checkpoint, kind)]
    late = [path.stat() for path in snapshots if path.stat().st_mtime >= filled]
    verified = _verify(spark, checkpoint, batches[-1], parameters)
    spark.stop()
    return {
        "fill_seconds": filled - _began(batches[0]),
        "series_seconds": _ended(batches[-1]) - filled,
        "series": series,
        "snapshots": sum(1 for path in _state_files(checkpoint, "zip") if path.stat().st_mtime >= filled),
        "snapshot_bytes": sum(stat.st_size for stat in late),
        "verified": verified,
    }


def _series(wanted: Mapping[str, int], batches: list[dict[str, Any]], checkpoint: Path, size: int) -> dict[str, Any]:
    operators = [(batch, batch["stateOperators"][0]) for batch in batches]
    if any(operator["numRowsUpdated"] != wanted["changed"] for _, operator in operators):
        raise AssertionError(f"a batch did not change {wanted['changed']} keys: {operators}")
    return {
        **wanted,
        "net_bytes": wanted["commits"] * wanted["changed"] * (KEY_BYTES + size),
        "delta_bytes": sum(_changelog(checkpoint, batch["batchId"]).stat().st_size for batch in batches),
        "times": [
            {
                # Spark commits in the task: what it waits for is all of it.
                "wait_ms": operator["commitTimeMs"],
                "durable_ms": operator["commitTimeMs"],
                "updates_ms": operator["allUpdatesTimeMs"],
                "batch_ms": batch["durationMs"]["triggerExecution"],
                "beside_snapshot": any(operator["customMetrics"][name] > 0 for name in _CHECKPOINT),
                "metrics": {
                    name.removeprefix("rocksdb"): value
                    for name, value in operator["customMetrics"].items()
                    if name.startswith(("rocksdbCommit", "rocksdbChangeLog"))
                },
            }
            for batch, operator in operators
        ],
    }


def loads(parameters: dict[str, Any]) -> dict[str, Any]:
    """Fill a state with a snapshot at its end; then, after so many changelogs, copy its files and start a query that
    loads it, in turn."""
    work, inputs = Path(parameters["work"]), _inputs(parameters)
    to_log, log = log_settings(work)
    spark = session(work, parameters["threads"], 1, {**_KEPT, **_NO_SNAPSHOTS, **to_log, CHANGELOG: "false"})
    checkpoint, files = work / "checkpoint", work / "files"
    files.mkdir()
    waiting = (inputs.file(number) for number in range(inputs.fill + inputs.changes))
    (*_, last) = _run(spark, _give(files, waiting, inputs.fill), checkpoint)
    spark.conf.set(CHANGELOG, "true")
    probe = StateContent(parameters["value_bytes"])
    list(probe.add(1))
    made, points = 0, list[dict[str, Any]]()
    for deltas in sorted(parameters["deltas"]):
        if deltas > made:
            (*_, last) = _run(spark, _give(files, waiting, deltas - made), checkpoint)
        made = deltas
        rounds = [_copy_and_load(spark, work, log, probe.change(1), parameters) for _ in range(parameters["repeat"])]
        if any(one["replayed"] != deltas for one in rounds):
            raise AssertionError(f"Spark did not replay {deltas} changelogs: {rounds}")
        points.append({"deltas": deltas, "durable_bytes": _state_bytes(checkpoint), "rounds": rounds})
    compared = _verify(spark, checkpoint, last, parameters)
    spark.stop()
    final = points[-1]["rounds"][0]
    final["verified"] = compared if final["verified"] is None else False
    return {"points": points}


def _first_load(log: Path, behind: int) -> Load:
    """The first load in the log behind these bytes. Another thread of Spark logs it, perhaps after the batch has
    ended."""
    deadline = time.monotonic() + _LOGGED_S
    while True:
        try:
            return first_load(log.read_bytes()[behind:].decode().splitlines())
        except ValueError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _copy_and_load(
    spark: SparkSession, work: Path, log: Path, entries: Entries, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Copy the state's files; then load them by a batch of one key, in a checkpoint that is thrown away."""
    checkpoint, probed, files = work / "checkpoint", work / "probed", work / "files"
    cp_seconds = time_cp(checkpoint / "state", work / "copied", parameters["page_cache"])
    settle_files([checkpoint], parameters["page_cache"])
    # Hard links: Spark writes new files only.
    subprocess.run(["cp", "-al", str(checkpoint), str(probed)], check=True)
    number = len(list(files.iterdir()))
    file = files / f"{number:06d}.parquet"
    write_entries(file, entries, number)
    logged = log.stat().st_size
    began = time.perf_counter()
    (batch,) = _run(spark, files, probed)
    seconds = time.perf_counter() - began
    file.unlink()
    shutil.rmtree(probed)
    load = _first_load(log, logged)
    return {
        "cp_seconds": cp_seconds,
        "restore_seconds": load.load_ms / 1000,
        "start_seconds": seconds,
        "snapshot_ms": load.snapshot_ms,
        "replayed": load.replayed,
        "verified": None if _has_all_keys(batch, parameters) else False,
    }


def _began(batch: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(batch["timestamp"]).timestamp()


def _ended(batch: Mapping[str, Any]) -> float:
    seconds: float = batch["durationMs"]["triggerExecution"] / 1000
    return _began(batch) + seconds


def _inputs(parameters: Mapping[str, Any]) -> StateInputs:
    return StateInputs(Path(parameters["files"]), parameters["fill"], parameters["changes"])


def _give(folder: Path, waiting: Iterator[Path], count: int) -> Path:
    """Let the query see the next files."""
    for _ in range(count):
        file = next(waiting)
        (folder / file.name).hardlink_to(file)
    return folder


def _run(spark: SparkSession, files: Path, checkpoint: Path) -> list[dict[str, Any]]:
    """A new run of the query over the files that it has not read, a file a batch; the progress of each batch."""
    events = spark.readStream.schema("key string, value binary").option("maxFilesPerTrigger", 1).parquet(str(files))
    query = (
        events.groupBy("key")
        .agg(F.last("value").alias("value"))
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = [orjson.loads(one.json) for one in query.recentProgress]
    return [one for one in progress if one["numInputRows"]]


def _state_files(checkpoint: Path, kind: str) -> list[Path]:
    return [path for path in (checkpoint / "state").rglob(f"*.{kind}") if not path.name.startswith(".")]


def _state_bytes(checkpoint: Path) -> int:
    return sum(path.stat().st_size for path in _state_files(checkpoint, "*"))


def _changelog(checkpoint: Path, batch: int) -> Path:
    """The changelog of the only partition of the only operator; the first batch, 0, makes version 1."""
    return checkpoint / "state" / "0" / "0" / f"{batch + 1}.changelog"


def _has_all_keys(batch: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    """True if the state has as many keys after the batch as were written."""
    keys: int = parameters["keys"]
    return bool(batch["stateOperators"][0]["numRowsTotal"] == keys)


def _verify(
    spark: SparkSession, checkpoint: Path, last: Mapping[str, Any], parameters: Mapping[str, Any]
) -> bool | None:
    """True if the state after the last batch equals the input, by Spark's own reader. Of a large state only the
    number of keys is looked at; None if that is right."""
    if not _has_all_keys(last, parameters):
        return False
    if parameters["keys"] > VERIFIED_KEYS:
        return None
    content = StateContent(parameters["value_bytes"])
    expected: dict[bytes, bytes | None] = {}
    for entries in content.add(parameters["keys"]):
        expected |= entries.as_dict()
    for count in parameters["counts"]:
        expected |= content.change(count).as_dict()
    rows = spark.read.format("statestore").load(str(checkpoint)).select("key.key", "value.last").collect()
    return {key.encode(): bytes(value) for key, value in rows} == expected
