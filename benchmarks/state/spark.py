"""The same commits, restores and losses by Spark's RocksDB state store: what runs in the side's own process.

A streaming query keeps the last value of each key: `groupBy("key").agg(last("value"))`, in one partition, but for
losses. Each file is a batch, each batch a commit of the keys in it.
"""

from __future__ import annotations

import random
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import queries, standby
from benchmarks.harness import T, repeating, wait_for
from benchmarks.queries import CHANGELOG, STATE, last_values, progress_of, session, sink, to_the_end
from benchmarks.state.job import ENTRY_BYTES, VERIFIED_KEYS, Entries, StateContent, settle, time_cp, write_entries

_KEPT = {"spark.sql.streaming.minBatchesToRetain": "1000000"}
"""Nothing is deleted while a benchmark runs, so that what was written can be counted at the end."""
_NO_SNAPSHOTS = {f"{STATE}.minDeltasForSnapshot": "1000000", f"{STATE}.maintenanceInterval": "5s"}
"""Only changelogs; the maintenance, which then only closes the stores of queries that ended, comes soon."""
_PROBE_S = 0.2
_LOGGER = "org.apache.spark.sql.execution.streaming.state"
"""RocksDB's logger has the store's id in its name, so that only the package can be named."""
_LINE = re.compile(r"(\d+) RocksDB .*\]: (Loading \d+ with|replaying changelog from|Loaded \d+)")


def commits(parameters: dict[str, Any]) -> dict[str, Any]:
    """Fill a state, then commit series of changes, a batch each."""
    work, fill = Path(parameters["work"]), parameters["fill"]
    spark = session(work, parameters["threads"], 1, _KEPT)
    checkpoint = work / "checkpoint"
    batches = _run(spark, Path(parameters["files"]), checkpoint)
    counts = iter(batches[fill:])
    series = []
    for one in parameters["series"]:
        own = [next(counts) for _ in range(parameters["warm_up"] + one["commits"])][parameters["warm_up"] :]
        series.append(_series(one, own, checkpoint))
    verified = _verify(spark, checkpoint, batches[-1], parameters)
    spark.stop()
    return {"series": series, "verified": verified}


def _series(wanted: Mapping[str, int], batches: list[dict[str, Any]], checkpoint: Path) -> dict[str, Any]:
    operators = [batch["stateOperators"][0] for batch in batches]
    if any(operator["numRowsUpdated"] != wanted["changed"] for operator in operators):
        raise AssertionError(f"a batch did not change {wanted['changed']} keys: {operators}")
    return {
        **wanted,
        "net_bytes": wanted["commits"] * wanted["changed"] * ENTRY_BYTES,
        "delta_bytes": sum(_changelog(checkpoint, batch["batchId"]).stat().st_size for batch in batches),
        "times": [
            {
                # Spark commits in the task: what it waits for is all of it.
                "wait_ms": operator["commitTimeMs"],
                "durable_ms": operator["commitTimeMs"],
                "updates_ms": operator["allUpdatesTimeMs"],
            }
            for operator in operators
        ],
    }


def loads(parameters: dict[str, Any]) -> dict[str, Any]:
    """Fill a state with a snapshot at its end; then, after so many changelogs, copy its files and start a query that
    loads it, in turn."""
    work, fill = Path(parameters["work"]), parameters["fill"]
    to_log, log = log_settings(work)
    spark = session(work, parameters["threads"], 1, {**_KEPT, **_NO_SNAPSHOTS, **to_log, CHANGELOG: "false"})
    checkpoint, files = work / "checkpoint", work / "files"
    files.mkdir()
    waiting = iter(sorted(Path(parameters["files"]).iterdir()))
    (*_, last) = _run(spark, _give(files, waiting, fill), checkpoint)
    spark.conf.set(CHANGELOG, "true")
    probe = StateContent()
    list(probe.add(1))
    points = list[dict[str, Any]]()
    for made, deltas in pairwise([0, *sorted(parameters["deltas"])]):
        if deltas > made:
            (*_, last) = _run(spark, _give(files, waiting, deltas - made), checkpoint)
        rounds = [_copy_and_load(spark, work, log, probe.change(1), parameters) for _ in range(parameters["repeat"])]
        if any(one["replayed"] != deltas for one in rounds):
            raise AssertionError(f"Spark did not replay {deltas} changelogs: {rounds}")
        points.append({"deltas": deltas, "rounds": rounds})
    compared = _verify(spark, checkpoint, last, parameters)
    spark.stop()
    final = points[-1]["rounds"][0]
    final["verified"] = compared if final["verified"] is None else False
    return {"points": points}


def log_settings(folder: Path, logger: str = _LOGGER, level: str = "info") -> tuple[dict[str, str], Path]:
    """Make a new JVM log what a logger says, with the milliseconds, to a file: Spark's settings, and the file."""
    log, properties = folder / "jvm.log", folder / "log4j2.properties"
    lines = {
        "rootLogger.level": "error",
        "rootLogger.appenderRef.file.ref": "file",  # without an appender, Spark would put its own settings in place
        "appender.file.type": "File",
        "appender.file.name": "file",
        "appender.file.fileName": log,
        "appender.file.layout.type": "PatternLayout",
        "appender.file.layout.pattern": "%d{UNIX_MILLIS} %c{1}: %m%n",
        "logger.file.name": logger,
        "logger.file.level": level,
        "logger.file.additivity": "false",
        "logger.file.appenderRef.file.ref": "file",
    }
    properties.write_text("\n".join(f"{key}={value}" for key, value in lines.items()))
    return {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={properties}"}, log


def first_load(lines: Iterable[str]) -> tuple[int, int] | None:
    """The milliseconds until a store could be read, and the changelogs that were replayed, in the first load that was
    logged to its end."""
    start, replayed = None, 0
    for match in filter(None, map(_LINE.match, lines)):
        moment, what = int(match[1]), match[2]
        if what.startswith("Loading"):
            start, replayed = moment, 0
        elif what.startswith("replaying"):
            replayed += 1
        elif start is not None:
            return moment - start, replayed
    return None


def _copy_and_load(
    spark: SparkSession, work: Path, log: Path, entries: Entries, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Copy the state's files; then load them by a batch of one key, in a checkpoint that is thrown away."""
    checkpoint, probed, files = work / "checkpoint", work / "probed", work / "files"
    cp_seconds = time_cp(checkpoint / "state", work / "copied")
    settle([checkpoint])
    # Hard links: Spark writes new files only.
    subprocess.run(["cp", "-al", str(checkpoint), str(probed)], check=True)
    file = write_entries(files, len(list(files.iterdir())), entries)
    logged = log.stat().st_size
    (batch,) = _run(spark, files, probed)
    file.unlink()
    shutil.rmtree(probed)
    # Another thread of Spark logs the load, perhaps after the batch has ended.
    load_ms, replayed = wait_for(lambda: first_load(log.read_bytes()[logged:].decode().splitlines()), "a logged load")
    return {
        "cp_seconds": cp_seconds,
        "restore_seconds": load_ms / 1000,
        "replayed": replayed,
        "verified": None if _has_all_keys(batch, parameters) else False,
    }


def _give(folder: Path, waiting: Iterator[Path], count: int) -> Path:
    """Let the query see the next files."""
    for _ in range(count):
        file = next(waiting)
        (folder / file.name).hardlink_to(file)
    return folder


def _run(spark: SparkSession, files: Path, checkpoint: Path) -> list[dict[str, Any]]:
    """A new run of the query over the files that it has not read, a file a batch; the progress of each batch."""
    return [one for one in to_the_end(sink(last_values(spark, files), checkpoint)) if one["numInputRows"]]


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
    content = StateContent()
    expected: Entries = {}
    for entries in content.add(parameters["keys"]):
        expected |= entries
    for changed in parameters["counts"]:
        expected |= content.change(changed)
    rows = spark.read.format("statestore").load(str(checkpoint)).select("key.key", "value.last").collect()
    return {key.encode(): bytes(value) for key, value in rows} == expected


def losses(parameters: dict[str, Any]) -> dict[str, Any]:
    """Fill a state of two executors, and kill one of them again and again."""
    work = Path(parameters["work"])
    keys = max(standby.TASKS, parameters["megabytes"] * 2**20 // standby.VALUE_BYTES)
    numbers, files = count(), work / "files"
    content = StateContent(standby.VALUE_BYTES)
    for entries in content.add(keys, -(-keys // 10)):
        write_entries(files, next(numbers), entries)
    to_log, log = log_settings(work, "org.apache.spark.scheduler", "error")
    more = {
        **standby.EXECUTORS,
        **to_log,
        f"{STATE}.maintenanceInterval": "5s",
        "spark.master": "local-cluster[2,1,2048]",
        "spark.executor.memory": "2g",
    }
    spark = session(work, 2, standby.TASKS, more)
    query = sink(last_values(spark, files), work / "checkpoint").start()
    _await_query(query, lambda: sum(batch["numInputRows"] for batch in progress_of(query)) >= keys, "the fill")
    rounds = []
    probes = content.change(min(keys, 32))
    with repeating(lambda: write_entries(files, next(numbers), probes), _PROBE_S):
        for _ in range(parameters["repeat"]):
            settled = time.time() + 2 * standby.SETTLE_S
            _await_query(query, lambda: time.time() > settled, "snapshots")  # noqa: B023
            rounds.append(_strike_executor(query, log))
    query.stop()
    spark.stop()
    return {"rounds": rounds, "state_bytes": keys * standby.VALUE_BYTES}


def _strike_executor(query: StreamingQuery, log: Path) -> dict[str, float]:
    """Kill an executor, and wait until the first batch has ended that it had to do with."""
    executors = [process for process in psutil.Process().children(recursive=True) if _is_executor(process)]
    usual = statistics.median(queries.seconds(batch) for batch in _batches(query)[-10:])
    at = time.time()
    random.choice(executors).kill()

    def hit() -> float | None:
        """The end of the first batch that began after the loss, or took so long that the loss was in it."""
        for batch in _batches(query):
            is_long = queries.seconds(batch) > 3 * usual + 0.5
            if queries.began(batch) > at or (is_long and queries.ended(batch) > at):
                return queries.ended(batch)
        return None

    visible = _await_query(query, hit, "a batch after the loss")
    return standby.waits(at, _noticed(log, at), visible, visible)


def _noticed(log: Path, moment: float) -> float | None:
    """When Spark logged that it had lost an executor, after a moment."""
    for line in log.read_text().splitlines():
        at, _, text = line.partition(" ")
        if ": Lost executor" in text and float(at) / 1000 > moment:
            return float(at) / 1000
    return None


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _batches(query: StreamingQuery) -> list[dict[str, Any]]:
    return [batch for batch in progress_of(query) if batch["numInputRows"]]


def _await_query(query: StreamingQuery, condition: Callable[[], T | None], what: str) -> T:
    def check() -> None:
        if not query.isActive:
            raise RuntimeError(f"the query ended before {what}: {query.exception()}")

    return wait_for(condition, what, check, pause_s=0.1)
