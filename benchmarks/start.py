"""The time of a start: from the command to the first committed batch, watched from outside, by what is on disk."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson

import penstock as ps
from benchmarks import harness
from benchmarks.jobs import Count, create_stream
from penstock.checkpoint.log import CheckpointLog
from penstock.errors import NotFoundError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store

ENDS = {"bare": "session", "penstock": "first commit", "query": "first commit"}
"""By side, the moment that counts."""
TARGET_SECONDS = 3.0
HELP_SECONDS = 0.3
INPUT, OUTPUT, JOB = "events", "counts", "start"
_POLL_SECONDS = 0.02
_DEADLINE_SECONDS = 300.0
_SESSION = """
import pathlib, sys
from pyspark.sql import SparkSession

threads, work = sys.argv[1], pathlib.Path(sys.argv[2])
builder = SparkSession.builder.master(f"local[{threads}]")
for key, value in {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.local.dir": str(work / "spark"),
    "spark.sql.shuffle.partitions": threads,
    "spark.sql.streaming.stateStore.providerClass":
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
(work / "session").touch()
"""
_TASK = """
spark.sparkContext.parallelize([1], 1).map(lambda x: x + 1).collect()
(work / "task").touch()
spark.stop()
"""
_QUERY = """
events = spark.readStream.schema("key string, amount double").json(str(work / "events"))
writer = events.groupBy("key").count().writeStream.format("noop").outputMode("update")
writer.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def help_seconds(repeat: int) -> float:
    """`penstock --help`, the fastest of some."""
    found = []
    for _ in range(max(3, repeat)):
        began = time.perf_counter()
        command = [sys.executable, "-m", "penstock.cli", "--help"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found.append(time.perf_counter() - began)
    return round(min(found), 3)


def main(given: Sequence[str] | None = None) -> int:
    options = harness.options("start", __doc__, given, repeat=5, threads=2, messages=1000)
    with harness.Bench("start", options) as bench:
        for side in bench.turns(ENDS, options.repeat):
            bench.run(side, f"start:{side}", {}, timeout_s=600)
        sides: dict[str, dict[str, Any]] = {}
        for side, runs in bench.runs.items():
            moments = {name: harness.median([run["moments"] for run in runs], name) for name in runs[0]["moments"]}
            more = statistics.median(
                run["moments"][ENDS[side]] - bare["moments"][ENDS["bare"]]
                for run, bare in zip(runs, bench.runs["bare"], strict=True)
            )
            sides[side] = {"medians": moments, "more_than_bare": more}
            harness.console.print(f"{side}, seconds: {moments}; {more:+.2f} s more than the bare session")
        bench.target(
            "penstock, s more than the bare session", sides["penstock"]["more_than_bare"], at_most=TARGET_SECONDS
        )
        help_s = help_seconds(options.repeat)
        bench.target("penstock --help, s", help_s, at_most=HELP_SECONDS)
        return bench.finish(sides, help_seconds=help_s)


def application() -> ps.StreamApplication:
    """A count for each key, sent on."""
    app = ps.StreamApplication(JOB)
    app.store("counts", key=ps.String(), value=ps.Json())
    events = app.input(f"local.{INPUT}", value=ps.Json())
    by_key = events.partition_by(lambda event: event["key"], key=ps.String())
    counts = by_key.process(partial(Count, "counts"), stores=["counts"])
    counts.send_to(app.output(f"local.{OUTPUT}", key=ps.String(), value=ps.Json()))
    return app


def bare(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A session, and a task in a Python worker."""
    work = Path(parameters["work"])
    command = [sys.executable, "-c", _SESSION + _TASK, str(parameters["threads"]), str(work)]
    return {"moments": _watch(command, {"session": (work / "session").exists, "a task": (work / "task").exists})}


def query(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A streaming query."""
    work = Path(parameters["work"])
    (work / "events").mkdir()
    lines = b"\n".join(_events(parameters["messages"]))
    (work / "events" / "0.json").write_bytes(lines)
    command = [sys.executable, "-c", _SESSION + _QUERY, str(parameters["threads"]), str(work)]
    committed = (work / "checkpoint" / "commits" / "0").exists
    return {"moments": _watch(command, {"session": (work / "session").exists, "first commit": committed})}


def penstock(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """`penstock run`."""
    work, partitions = Path(parameters["work"]), parameters["threads"]
    admin = create_stream(work / "streams", INPUT, partitions, _events(parameters["messages"])).admin()
    config = {
        "job.root": work / "jobs",
        "job.logged.store.base.dir": work / "state",
        "systems.local.path": work / "streams",
        "task.commit.ms": 1,
        "spark.master": f"local[{partitions}]",
        "spark.local.dir": work / "spark",
    }
    command = [sys.executable, "-m", "penstock.cli", "run", "benchmarks.start:application", "--until", "latest"]
    command += [word for key, value in config.items() for word in ("-c", f"{key}={value}")]
    objects = open_store((work / "jobs").as_uri())
    log = CheckpointLog(objects, JobPaths(JOB, "1"))

    def batches() -> int:
        """The last batch in the log; -1 before the start checkpoint."""
        latest = log.read("report").latest
        return -1 if latest is None else latest.batch

    def written() -> bool:
        try:
            return any(ends.upcoming for ends in admin.offsets(OUTPUT).values())
        except NotFoundError:
            return False

    moments = _watch(
        command,
        {
            "claim": lambda: bool(log.read("report").claims),
            "containers ready": lambda: batches() >= 0,
            "first batch": written,
            "first commit": lambda: batches() >= 1,
        },
    )
    admin.close()
    objects.close()
    return {"moments": moments}


def _events(number: int) -> list[bytes]:
    return [orjson.dumps({"key": f"key-{n % 100}", "amount": n / 4}) for n in range(number)]


def _watch(command: list[str], conditions: Mapping[str, Callable[[], bool]]) -> dict[str, float]:
    """Run the command to its end; when each condition was seen to hold, which they come to in this order."""
    environment = dict(os.environ, SPARK_LOCAL_IP="127.0.0.1")
    began = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    moments: dict[str, float] = {}
    waiting = dict(conditions)
    while True:
        ended = process.poll() is not None
        while waiting and next(iter(waiting.values()))():
            moments[next(iter(waiting))] = round(time.monotonic() - began, 3)
            waiting.pop(next(iter(waiting)))
        if ended or time.monotonic() - began > _DEADLINE_SECONDS:
            break
        time.sleep(_POLL_SECONDS)
    if process.wait(30) != 0 or waiting:
        raise RuntimeError(f"{command[:4]} ended with {process.returncode} and without: {', '.join(waiting) or '-'}")
    return moments


if __name__ == "__main__":
    sys.exit(main())
