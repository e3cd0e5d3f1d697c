"""The same by Spark's aggregation with its RocksDB state store, whose executors are killed."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.harness import T, wait_for
from benchmarks.queries import began, ended, last_values, progress_of, seconds, session, sink
from benchmarks.standby import EXECUTORS, SETTLE_S, TASKS, VALUE_BYTES, repeating, waits
from benchmarks.state.spark import log_settings

PROBE_S = 0.2


def spark(parameters: dict[str, Any]) -> dict[str, Any]:
    """The same by Spark's aggregation with its RocksDB state store, whose executors are killed."""
    work = Path(parameters["work"])
    files = work / "files"
    files.mkdir(parents=True)
    keys = max(TASKS, parameters["megabytes"] * 2**20 // VALUE_BYTES)
    _write_fill(files, keys)
    to_log, log = log_settings(work, "org.apache.spark.scheduler", "error")
    more = {
        **EXECUTORS,
        **to_log,
        "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
        "spark.master": "local-cluster[2,1,2048]",
        "spark.executor.memory": "2g",
    }
    session_of_side = session(work, 2, TASKS, more)
    query = sink(last_values(session_of_side, files), work / "checkpoint").start()
    _await_query(query, lambda: _rows(query) >= keys, "the fill")
    rounds = []
    number = count()
    probes = ([f"k{key}" for key in range(32)], [b"x" * VALUE_BYTES] * 32)
    with repeating(lambda: _write(files, f"probe-{next(number):06d}", *probes), PROBE_S):
        for _ in range(parameters["repeat"]):
            settled = time.time() + 2 * SETTLE_S
            _await_query(query, lambda: time.time() > settled, "snapshots")  # noqa: B023
            rounds.append(_strike_executor(query, log))
    query.stop()
    session_of_side.stop()
    return {"rounds": rounds, "state_bytes": keys * VALUE_BYTES}


def _strike_executor(query: StreamingQuery, log: Path) -> dict[str, float]:
    """Kill an executor, and wait until the first batch has ended that it had to do with."""
    executors = [process for process in psutil.Process().children(recursive=True) if _is_executor(process)]
    usual = statistics.median(seconds(batch) for batch in _batches(query)[-10:])
    at = time.time()
    random.choice(executors).kill()

    def hit() -> float | None:
        """The end of the first batch that began after the loss, or took so long that the loss was in it."""
        after = [batch for batch in _batches(query) if ended(batch) > at]
        return next((ended(each) for each in after if began(each) > at or seconds(each) > 3 * usual + 0.5), None)

    visible = _await_query(query, hit, "a batch after the loss")
    return waits(at, _noticed(log, at), visible, visible)


def _write_fill(files: Path, keys: int) -> None:
    """The state, in ten files."""
    chance = np.random.default_rng(1)
    for number, part in enumerate(np.array_split(np.arange(keys), 10)):
        raw = chance.bytes(len(part) * VALUE_BYTES)
        values = [raw[n : n + VALUE_BYTES] for n in range(0, len(raw), VALUE_BYTES)]
        _write(files, f"fill-{number}", [f"k{key}" for key in part.tolist()], values)


def _write(files: Path, name: str, keys: list[str], values: list[bytes]) -> None:
    temporary = files / f".{name}.parquet"
    pq.write_table(pa.table({"key": keys, "value": pa.array(values, pa.binary())}), temporary)
    temporary.rename(files / f"{name}.parquet")


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


def _rows(query: StreamingQuery) -> int:
    return sum(batch["numInputRows"] for batch in _batches(query))


def _await_query(query: StreamingQuery, condition: Callable[[], T | None], what: str) -> T:
    def check() -> None:
        if not query.isActive:
            raise RuntimeError(f"the query ended before {what}: {query.exception()}")

    return wait_for(condition, what, check, pause_s=0.1)
