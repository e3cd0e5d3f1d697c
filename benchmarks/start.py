"""The time of a start: from the command to the first committed batch, watched from outside, by what is on disk."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson

import penstock as ps
from benchmarks import harness
from benchmarks.jobs import counts, create_stream, places
from benchmarks.workload import STREAM
from penstock.checkpoint.log import CheckpointLog
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store

SIDES = {"bare": "session", "penstock": "first commit", "query": "first commit"}
"""By side, what it is watched for."""
TARGET_SECONDS = 3.0
HELP_SECONDS = 0.3
JOB = "start"
_POLL_SECONDS = 0.02
_END_SECONDS = 300.0
_SESSION = """
import json, pathlib, sys
from pyspark.sql import SparkSession

work = pathlib.Path(sys.argv[1])
spark = SparkSession.builder.config(map=json.loads(sys.argv[2])).getOrCreate()
(work / "session").touch()
"""
_QUERY = """
events = spark.readStream.schema("key string, amount double").json(str(work / "events"))
writer = events.groupBy("key").count().writeStream.format("noop").outputMode("update")
writer.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def help_seconds(repeat: int) -> float:
    """`penstock --help`, the fastest of some."""
    command = [sys.executable, "-m", "penstock.cli", "--help"]
    step = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
    return round(min(timeit.repeat(step, number=1, repeat=max(3, repeat))), 3)


def application() -> ps.StreamApplication:
    """A count for each key."""
    return counts(JOB, [itemgetter("key")], ["counts"])


def bare(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A session alone."""
    return _watch(_spark(parameters, "spark.stop()"), (Path(parameters["work"]) / "session").exists)


def query(parameters: Mapping[str, Any]) -> dict[str, Any]:
    work = Path(parameters["work"])
    (work / "events").mkdir()
    (work / "events" / "0.json").write_bytes(b"\n".join(_events(parameters["messages"])))
    return _watch(_spark(parameters, _QUERY), (work / "checkpoint" / "commits" / "0").exists)


def penstock(parameters: Mapping[str, Any]) -> dict[str, Any]:
    work, partitions = Path(parameters["work"]), parameters["threads"]
    create_stream(work / "streams", STREAM, partitions, _events(parameters["messages"]))
    config = {**places(work, partitions), "task.commit.ms": 1}
    command = [sys.executable, "-m", "penstock.cli", "run", "benchmarks.start:application", "--until", "latest"]
    command += [word for key, value in config.items() for word in ("-c", f"{key}={value}")]
    with closing(open_store((work / "jobs").as_uri())) as objects:
        log = CheckpointLog(objects, JobPaths(JOB, "1"))
        return _watch(command, lambda: (latest := log.read("report").latest) is not None and latest.batch >= 1)


def _spark(parameters: Mapping[str, Any], script: str) -> list[str]:
    from benchmarks.queries import settings  # not above: Penstock's side does without Spark's SQL

    work, threads = parameters["work"], parameters["threads"]
    own = settings(Path(work), threads, threads)
    return [sys.executable, "-c", _SESSION + script, work, orjson.dumps(own).decode()]


def _events(number: int) -> list[bytes]:
    return [orjson.dumps({"key": f"key-{n % 100}", "amount": n / 4}) for n in range(number)]


def _watch(command: list[str], is_ready: Callable[[], bool]) -> dict[str, float]:
    """Run the command to its end; the seconds until it was ready."""
    began = time.monotonic()
    process = subprocess.Popen(command, env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}, stdin=subprocess.DEVNULL)

    def check() -> None:
        if process.poll() is not None:
            raise RuntimeError(f"{command[:4]} ended with {process.returncode} before it was ready")

    harness.wait_for(is_ready, "the start", check, _POLL_SECONDS)
    ready = time.monotonic() - began
    if process.wait(_END_SECONDS) != 0:
        raise RuntimeError(f"{command[:4]} ended with {process.returncode}")
    return {"ready_s": round(ready, 3)}


@harness.benchmark("start", __doc__, repeat=5, threads=2, messages=1000)
def main(bench: harness.Bench) -> int:
    for side in bench.turns(SIDES, bench.options.repeat):
        bench.run(side, f"start:{side}", {}, timeout_s=600)
    sides: dict[str, dict[str, Any]] = {}
    for side, runs in bench.runs.items():
        pairs = zip(runs, bench.runs["bare"], strict=True)
        more = statistics.median(run["ready_s"] - bare["ready_s"] for run, bare in pairs)
        sides[side] = {"until": SIDES[side], "ready_s": harness.median(runs, "ready_s"), "more_than_bare_s": more}
    harness.show("from the command on", sides, until="", ready_s=".2f", more_than_bare_s="+.2f")
    more = sides["penstock"]["more_than_bare_s"]
    bench.target("penstock, s more than the bare session", more, at_most=TARGET_SECONDS)
    help_s = help_seconds(bench.options.repeat)
    bench.target("penstock --help, s", help_s, at_most=HELP_SECONDS)
    return bench.finish(sides, help_seconds=help_s)
