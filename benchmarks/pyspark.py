"""PySpark's StatefulProcessor: the same classes through transformWithState and through Penstock."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

import penstock.spark as pss
from benchmarks import harness
from benchmarks.figures import COLUMNS, cpu_us_per_row, judge, summary
from benchmarks.queries import Fold, PandasFold, Stateful, in_time, read, run, session, sink
from benchmarks.workload import BOUND_MS, FIRST_MS, MINUTE_MS, WindowWorkload, key_name, write_inputs

GAP_MS = 90_000
"""A session ends after so long without an event."""
LAST = 10
TOTALS = "key string, count long, sum double"
SESSIONS = "key string, first long, last long, n long"
FILES = 2
"""Files of a batch, which Spark reads in parallel."""
SMALL_ROWS = 10


class LastTen(Stateful):
    """The ten latest amounts, in a list."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.latest = handle.getListState("latest", "time long, amount double")

    def keep(self, more: Iterable[tuple[int, float]]) -> tuple[int, float]:
        """Put these among the latest ones. Returns how many those are now, and their sum."""
        found = [*map(tuple, self.latest.get()), *more]
        found.sort()
        del found[:-LAST]
        self.latest.put(found)
        return len(found), float(sum(amount for _, amount in found))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        count, total = self.keep((row.time, row.amount) for row in rows)
        yield Row(key=key[0], count=count, sum=total)


class PandasLastTen(LastTen):
    """The same with DataFrames of pandas."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        count, total = self.keep(pair for frame in rows for pair in zip(frame["time"], frame["amount"], strict=True))
        yield pd.DataFrame({"key": [key[0]], "count": [count], "sum": [total]})


class Sessions(Stateful):
    """Sessions in event time, each with a timer that ends it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.open = handle.getValueState("open", "first long, last long, n long")

    def extend(self, times: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        """Put events into sessions. Yields the sessions that ended before the last one."""
        session = self.open.get()
        before = None if session is None else session[1] + GAP_MS
        for at in sorted(times):
            if session is not None and at - session[1] >= GAP_MS:
                yield session
                session = None
            session = (at, at, 1) if session is None else (session[0], at, session[2] + 1)
        if session is not None:
            self.open.update(session)
            if before is not None:
                self.handle.deleteTimer(before)
            self.handle.registerTimer(session[1] + GAP_MS)

    def end(self) -> Iterator[tuple[int, int, int]]:
        """End the open session. Yields it, if there is one."""
        session = self.open.get()
        if session is not None:
            self.open.clear()
            yield session

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for first, last, n in self.extend(row.time for row in rows):
            yield Row(key=key[0], first=first, last=last, n=n)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        for first, last, n in self.end():
            yield Row(key=key[0], first=first, last=last, n=n)


class PandasSessions(Sessions):
    """The same with DataFrames of pandas."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        return _frames(key, self.extend(at for frame in rows for at in frame["time"]))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        return _frames(key, self.end())


def _frames(key: Any, sessions: Iterator[tuple[int, int, int]]) -> Iterator[Any]:
    for first, last, n in sessions:
        yield pd.DataFrame({"key": [key[0]], "first": [first], "last": [last], "n": [n]})


PROCESSORS: dict[str, tuple[type[Any], type[Any], str, str, str]] = {
    "fold": (Fold, PandasFold, TOTALS, "None", "Update"),
    "last-ten": (LastTen, PandasLastTen, TOTALS, "None", "Update"),
    "sessions": (Sessions, PandasSessions, SESSIONS, "EventTime", "Append"),
}
"""By kind: the processor in the row form and the pandas form, the schema of its rows, the time and output mode."""
KINDS = [f"{kind}{form}" for kind in PROCESSORS for form in ("", "-pandas")]
ENGINES = ("penstock", "pyspark")
TARGETS = [(f"penstock, {kind}", f"pyspark, {kind}", 15.0 if kind == "fold" else 8.0) for kind in KINDS]

FILE_SYSTEM = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
"""Spark writes its logs to a local disk without a program for each file."""


def figures(workload: QueryWorkload, run: harness.SideRun) -> dict[str, Any]:
    """The large batches, and milliseconds of those of a few rows and of none."""
    batches = run.result["batches"][: workload.batches]
    rest = [each["duration_ms"]["triggerExecution"] for each in run.result["batches"][workload.batches :]]
    return {
        "batches": batches,
        "small_ms": rest[: workload.small],
        "empty_ms": rest[workload.small : 2 * workload.small],
        "cpu_us_per_row": cpu_us_per_row(run, batches),
    }


def small_ms(runs: Sequence[harness.Run], name: str) -> float:
    """The median of the small batches after the first one."""
    return float(statistics.median(ms for run in runs for ms in run[name][1:] or [0]))


@dataclass(frozen=True, slots=True)
class QueryWorkload(WindowWorkload):
    """Batches of equal size, none of them late, then some of a few rows, then some of none."""

    events: int = 10_000_000
    batches: int = 50
    late_share: float = 0.0
    small: int = 8
    """Batches of SMALL_ROWS rows, and as many without rows."""

    @property
    def sizes(self) -> list[int]:
        return [self.batch_events] * self.batches + [SMALL_ROWS] * self.small + [0] * self.small


def expected(kind: str, workload: QueryWorkload) -> set[tuple[Any, ...]]:
    """The expected rows: the last one of each key, or all sessions, whether the watermark has closed them or not."""
    keys, times, amounts, _ = map(np.concatenate, zip(*workload.by_batch(), strict=True))
    if kind == "fold":
        counts, sums = np.bincount(keys), np.bincount(keys, weights=amounts)
        return {(key_name(int(n)), int(counts[n]), float(sums[n])) for n in np.flatnonzero(counts)}
    order = np.lexsort((amounts, times, keys))  # as the processor orders what has the same time
    keys, amounts, times = keys[order], amounts[order], times[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    found = set[tuple[Any, ...]]()
    for start, end in zip(starts, [*starts[1:], len(keys)], strict=True):
        name, own = key_name(int(keys[start])), slice(max(start, end - LAST), end)
        if kind == "last-ten":
            found.add((name, int(own.stop - own.start), float(amounts[own].sum())))
        else:
            cuts = [start, *(start + 1 + np.flatnonzero(np.diff(times[start:end]) >= GAP_MS)), end]
            found |= {(name, int(times[a]), int(times[b - 1]), int(b - a)) for a, b in pairwise(cuts)}
    return found


def compare(kind: str, workload: QueryWorkload, work: Path) -> dict[str, Any]:
    """Compare the last row of each key; or all sessions: those that the watermark had passed when the last full batch
    began are there, others may be, and none comes twice."""
    table = ds.dataset(work / "output", format="parquet", partitioning="hive").to_table().sort_by("batch")
    rows = zip(*(column.to_pylist() for column in table.drop_columns("batch").columns), strict=True)
    due = wanted = expected(kind, workload)
    if kind == "sessions":
        passed = FIRST_MS + (workload.batches - 1) * MINUTE_MS - BOUND_MS - GAP_MS
        due = {each for each in wanted if each[2] < passed}
        found = set(rows)
        count = len(found)
    else:
        found = set({row[0]: row for row in rows}.values())
        count = sum(len(np.unique(keys)) for keys, *_ in workload.by_batch())  # one for each key and batch
    wrong = len(found - wanted) + len(due - found)
    return {"equal": not wrong and count == table.num_rows, "rows": table.num_rows, "wrong_rows": wrong}


def query(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the query over all files; one entry for each batch."""
    work, engine = Path(parameters["work"]), parameters["engine"]
    is_pandas = parameters["kind"].endswith("-pandas")
    of_rows, of_frames, output, mode, output_mode = PROCESSORS[parameters["kind"].removesuffix("-pandas")]
    processor = of_frames if is_pandas else of_rows
    more = FILE_SYSTEM if parameters["by_file_system"] else {}
    spark = session(work, parameters["threads"], parameters["threads"], more)
    events = in_time(read(spark, "key string, time long, amount double", parameters["files"], FILES), BOUND_MS)

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(str(work / "output" / f"batch={batch}"))

    if engine == "penstock":
        transformed = pss.transform_with_state(
            events,
            processor=processor(),
            key="key",
            output=output,
            time_mode=mode,
            root=str(work / "root"),
            partitions=parameters["threads"],
            form="pandas" if is_pandas else "row",
        )
        writer: Any = transformed.for_each_batch(write).option("checkpointLocation", str(work / "checkpoint"))
    else:
        by_key = events.groupBy("key")
        transform = by_key.transformWithStateInPandas if is_pandas else by_key.transformWithState
        made = transform(processor(), output, output_mode, mode)
        writer = sink(made, work / "checkpoint", output_mode.lower()).foreachBatch(write)
    return run(spark, writer)


@harness.benchmark(
    "pyspark", __doc__, kinds=KINDS, engines=list(ENGINES), batches=50, rows=200_000, keys=100_000, small=8,
    short_batches=4, repeat=1, threads=2, by_file_system=False,
)  # fmt: skip
def main(bench: harness.Bench) -> int:
    options = bench.options
    workloads: Mapping[str, QueryWorkload] = {
        engine: QueryWorkload(options.rows * batches, batches, options.keys, small=options.small)
        for engine, batches in (("penstock", options.batches), ("pyspark", min(options.short_batches, options.batches)))
    }
    for engine, workload in workloads.items():
        write_inputs(workload.tables(), bench.work / engine, FILES, ["parquet/events"])
    sides = [(kind, engine) for kind in options.kinds for engine in options.engines]
    for kind, engine in bench.turns(sides, options.repeat):
        workload = workloads[engine]
        files = str(bench.work / engine / "parquet" / "events")
        verify = partial(compare, kind.removesuffix("-pandas"), workload)
        given_to_side = {"kind": kind, "engine": engine, "files": files}
        own = partial(figures, workload)
        bench.run(f"{engine}, {kind}", "pyspark:query", given_to_side, figures=own, verify=verify)
    found = {
        side: {**summary(runs), **{f"{size}_batch_ms": small_ms(runs, f"{size}_ms") for size in ("small", "empty")}}
        for side, runs in bench.runs.items()
    }
    harness.show("queries", found, **COLUMNS, small_batch_ms=",.0f", empty_batch_ms=",.0f")
    return bench.finish(found, ratios=judge(bench, found, TARGETS))
