"""Timers of tasks: microseconds to set, replace, cancel and fire one, while a million wait."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import penstock as ps
from benchmarks import harness
from penstock.batch.batch import Batch
from penstock.graph.serdes import timers_place
from penstock.graph.stores import StoreSpec
from penstock.metrics.registry import MetricsRegistry
from penstock.runtime.operators.task_timers import TaskTimers
from penstock.runtime.timers import oldest_timers
from penstock.state.engines.open import WriteBehindEngine
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.state.stores.build import build_store

FIGURES = {
    "in_process": (
        *("set_first_us", "set_last_us", "replace_us", "cancel_us"),
        *("oldest_us", "fire_first_us", "fire_last_us"),
    ),
    "spark": ("set_last_us", "fire_first_us"),
}
"""By side. `first` and `last`: while none, or all others, wait; for firing, the other way round."""
_CACHE_BYTES, _BUFFER_BYTES = 32 << 20, 16 << 20


def main(given: Sequence[str] | None = None) -> int:
    options = harness.options(
        "timers", __doc__, given, timers=1_000_000, batch=100_000, repeat=3, spark=False, spark_timers=200_000
    )
    with harness.Bench("timers", options) as bench:
        cores = bench.machine["cores"]
        parameters = {
            "in_process": {},
            "spark": {"timers": options.spark_timers, "threads": cores},
        }
        for side in bench.turns(parameters if options.spark else ["in_process"], options.repeat):
            bench.run(side, f"timers:{side}", parameters[side])
        sides = {
            side: {figure: harness.median(runs, figure) for figure in FIGURES[side]}
            for side, runs in bench.runs.items()
        }
        harness.show("microseconds, median", sides, **dict.fromkeys(FIGURES["in_process"], ",.2f"))
        return bench.finish(sides)


class _Task:
    """The timers of a task, batch by batch."""

    def __init__(self, folder: Path, writer: ThreadPoolExecutor) -> None:
        engine = RocksDbEngine(folder, block_cache_bytes=_CACHE_BYTES, write_buffer_bytes=_BUFFER_BYTES)
        self._engine = WriteBehindEngine(engine, writer, _BUFFER_BYTES)
        spec = StoreSpec("t.timers", ps.Bytes(), ps.Bytes())
        self.store = build_store(spec, self._engine, 100_000, time_ms=0)
        self.timers = TaskTimers("t", ps.String(), timers_place("t"), self.store, MetricsRegistry("Partition 0"))

    def batch(self, calls: Callable[[], int]) -> float:
        """Microseconds of each of the calls of a batch, with its share of the end of the batch."""
        began = time.perf_counter()
        overlay = self.store.begin(0)
        self.timers.begin()
        number = calls()
        self._engine.apply(overlay.take())
        self._engine.settle()
        return (time.perf_counter() - began) / max(1, number) * 1e6

    def close(self) -> None:
        """End."""
        self._engine.close()


def in_process(parameters: dict[str, Any]) -> dict[str, float]:
    """Set all, replace and cancel some, and fire the rest, batch by batch."""
    number, size = parameters["timers"], min(parameters["batch"], parameters["timers"])
    chance = random.Random(1)
    times = [chance.randrange(10 * number) for _ in range(number)]
    keys = [f"aircraft-{n:09}" for n in range(number)]
    chance.shuffle(keys)
    with ThreadPoolExecutor(1) as writer:
        task = _Task(Path(parameters["work"]) / "store", writer)
        timers = task.timers

        def schedule(these: Iterable[tuple[str, int]]) -> int:
            count = 0
            for key, time_ms in these:
                timers.schedule(key, time_ms, "", "event")
                count += 1
            return count

        def cancel(these: Iterable[str]) -> int:
            count = 0
            for key in these:
                timers.cancel(key, "", "event")
                count += 1
            return count

        def fire(up_to_ms: int) -> int:
            fired = 0
            for timer in timers.after_messages(Batch(1, 1, 0, firing={"t": up_to_ms}, held={"t": -1})):
                timers.expired(timer)
                fired += 1
            return fired

        pairs = list(zip(keys, times, strict=True))
        parts = [pairs[start : start + size] for start in range(0, number, size)]
        set_us = [task.batch(lambda part=part: schedule(part)) for part in parts]  # type: ignore[misc]
        some = chance.sample(range(number), max(1, number // 20))
        replace_us = task.batch(lambda: schedule((keys[n], times[n] + 1) for n in some))
        cancel_us = task.batch(lambda: cancel(keys[n] for n in some))
        began = time.perf_counter()
        for _ in range(100):
            oldest_timers(task.store)
        oldest_us = (time.perf_counter() - began) / 100 * 1e6
        fire_us, left = [], number - len(some)
        while oldest_timers(task.store) != (None, None):
            fire_us.append(task.batch(lambda: fire(10 * number + 1)))
        assert len(fire_us) >= left / 100_000
        task.close()
    return {
        "set_first_us": set_us[0],
        "set_last_us": set_us[-1],
        "replace_us": replace_us,
        "cancel_us": cancel_us,
        "oldest_us": oldest_us,
        "fire_first_us": fire_us[0],
        "fire_last_us": fire_us[-1],
    }


def spark(parameters: dict[str, Any]) -> dict[str, float]:
    """A timer for each key, and the same query without timers."""
    with_timers, without = (_spark_batches(parameters, timers=timers) for timers in (True, False))
    per_timer = 1000 / parameters["timers"]
    return {
        "set_last_us": (with_timers[0] - without[0]) * per_timer,
        "fire_first_us": (sum(with_timers[1:]) - sum(without[1:])) * per_timer,
    }


def _spark_batches(parameters: dict[str, Any], *, timers: bool) -> list[float]:
    """Milliseconds of each batch: one row of each key, then one row whose time is later than all timers, then none."""
    from pyspark.sql import functions as F  # noqa: N812 - PySpark's own name for it

    from benchmarks.queries import Stateful, in_time, read, session, sink, to_the_end

    class Remind(Stateful):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.seen = handle.getValueState("seen", "at long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            for row in rows:
                self.seen.update((row.time,))
                if timers and row.time < 1_000_000:
                    self.handle.registerTimer(row.time + 60_000)
            return iter(())

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
            return iter(())

    work = Path(parameters["work"]) / ("timers" if timers else "none")
    session_ = session(work, parameters["threads"], parameters["threads"])
    files = work / "files"
    rows = session_.range(parameters["timers"]).select(
        F.concat(F.lit("aircraft-"), "id").alias("key"), (F.col("id") % 1_000).alias("time")
    )
    rows.coalesce(1).write.parquet(str(files))
    late = session_.createDataFrame([("late", 10_000_000)], "key string, time long")
    late.coalesce(1).write.mode("append").parquet(str(files))
    events = in_time(read(session_, "key string, time long", str(files)), 0)
    reminded = events.groupBy("key").transformWithState(Remind(), "key string", "Append", "EventTime")
    found = to_the_end(sink(reminded, work / "checkpoint", "append"))
    session_.stop()
    return [float(progress["durationMs"]["addBatch"]) for progress in found if "addBatch" in progress["durationMs"]]


if __name__ == "__main__":
    sys.exit(main())
