"""The events of the windows: made from a seed, written in every form a side reads, and put into windows plainly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.keyed_fold.workload import STREAM, Inputs, key_name
from penstock.admin.stream.publish import PublishOptions, publish
from penstock.system.local import LocalSystem

MINUTE_MS = 60_000
BOUND_MS = 10_000
"""The bound of the watermark: events that are not late are out of order by less."""
FIRST_MS = 1_356_998_400_000
"""When the first batch begins: 2013-01-01."""
_LATE_BY_MS = 5 * MINUTE_MS
_IN_TIME_BATCHES = 2
"""Nothing is late in the first two batches: no watermark is known."""
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Panes:
    """A count and a mean for each key and minute, ordered by both."""

    keys: Int64
    starts: Int64
    counts: Int64
    means: Float64

    @classmethod
    def ordered(cls, keys: Int64, starts: Int64, counts: Int64, means: Float64) -> Panes:
        """In any order."""
        order = np.lexsort((keys, starts))
        return cls(keys[order], starts[order], counts[order], means[order])

    @classmethod
    def of_rows(cls, rows: list[tuple[str, int, int, float]]) -> Panes:
        """Rows of (key, start of the minute, count, mean)."""
        names, starts, counts, means = zip(*rows, strict=True) if rows else ((), (), (), ())
        keys = np.array([int(name.removeprefix("key-")) for name in names], np.int64)
        return cls.ordered(keys, np.array(starts, np.int64), np.array(counts, np.int64), np.array(means, np.float64))


@dataclass(frozen=True, slots=True)
class WindowWorkload:
    """Numbers of events, batches and keys; a batch has the events of `batch_ms` of event time."""

    events: int = 1_600_000
    batches: int = 8
    keys: int = 100_000
    batch_ms: int = MINUTE_MS
    late_share: float = 0.05
    seed: int = 20130101

    @property
    def batch_events(self) -> int:
        """Events of one batch."""
        return self.events // self.batches

    def check(self, threads: int) -> None:
        """Exit unless all batches are equal."""
        if self.events % (self.batches * threads):
            raise SystemExit("--events must be a multiple of --batches times --threads, so that all batches are equal")

    def first(self, batches: int) -> WindowWorkload:
        """The same without the later batches."""
        return WindowWorkload(**{**asdict(self), "events": self.batch_events * batches, "batches": batches})

    def columns(self) -> Iterator[tuple[Int64, Int64, Float64, npt.NDArray[np.bool_]]]:
        """For each batch the key numbers, event times and amounts of its events, in order, and which are late.

        Amounts are whole quarters: their sums are exact in any order, so that every side must end with equal means.
        """
        for number in range(self.batches):
            random = np.random.default_rng((self.seed, number))
            size, start = self.batch_events, FIRST_MS + number * self.batch_ms
            keys = random.integers(0, self.keys, size, dtype=np.int64)
            amounts = random.integers(1, 40_000, size) / 4.0
            times = start + np.arange(size, dtype=np.int64) * self.batch_ms // size
            times -= random.integers(0, BOUND_MS, size)
            late = random.random(size) < (self.late_share if number >= _IN_TIME_BATCHES else 0)
            times[late] -= max(_LATE_BY_MS, 3 * self.batch_ms)
            yield keys, times, amounts, late

    def panes(self) -> Panes:
        """The panes that every side must emit."""
        found = [(k[~late], t[~late], a[~late]) for k, t, a, late in self.columns()]
        keys, times, amounts = (np.concatenate(column) for column in zip(*found, strict=True))
        minutes = times // MINUTE_MS
        first = minutes.min()
        cells, cell = np.unique((minutes - first) * self.keys + keys, return_inverse=True)
        counts = np.bincount(cell)
        starts = (cells // self.keys + first) * MINUTE_MS
        return Panes.ordered(cells % self.keys, starts, counts, np.bincount(cell, weights=amounts) / counts)


def write_window_inputs(workload: WindowWorkload, folder: Path, partitions: int, spark_short: int) -> Inputs:
    """Write the events as a local stream; as Parquet for Penstock's columns, a file for each batch and partition; and
    for Spark as JSON lines and Parquet, a file a batch, and as Parquet with the first batches only (`parquet-short`).
    Spark's end with a file of one later event, which closes all windows."""
    inputs = Inputs(folder)
    system = LocalSystem("local", str(inputs.streams))
    system.admin().create_stream(STREAM, partitions)
    for form in ("json", "parquet", "parquet-short", "columns/events"):
        inputs.files(form).mkdir(parents=True)
    names = [key_name(number) for number in range(workload.keys)]
    for number, (keys, times, amounts, _) in enumerate(workload.columns()):
        shown = [names[key] for key in keys.tolist()]
        lines = _write_lines(inputs, number, shown, times.tolist(), amounts.tolist())
        forms = ("parquet", "parquet-short") if number < spark_short else ("parquet",)
        for form in forms:
            _write_table(inputs, form, number, shown, times.tolist(), amounts.tolist())
        for part in range(partitions):
            some = slice(part, None, partitions)
            place = number * partitions + part
            _write_table(inputs, "columns/events", place, shown[some], times[some].tolist(), amounts[some].tolist())
        publish(system, STREAM, str(lines), PublishOptions())
    last = [FIRST_MS + (workload.batches + 60) * max(workload.batch_ms, MINUTE_MS)]
    _write_lines(inputs, workload.batches, names[:1], last, [0.25])
    for form in ("parquet", "parquet-short"):
        _write_table(inputs, form, workload.batches, names[:1], last, [0.25])
    return inputs


def _write_lines(inputs: Inputs, number: int, keys: list[str], times: list[int], amounts: list[float]) -> Path:
    path = inputs.files("json") / f"{number:04d}.json"
    rows = (orjson.dumps({"key": k, "time": t, "amount": a}) for k, t, a in zip(keys, times, amounts, strict=True))
    path.write_bytes(b"\n".join(rows) + b"\n")
    _stamp(path, number)
    return path


def _write_table(
    inputs: Inputs, form: str, number: int, keys: list[str], times: list[int], amounts: list[float]
) -> None:
    path = inputs.files(form) / f"{number:04d}.parquet"
    pq.write_table(pa.table({"key": pa.array(keys, pa.string()), "time": times, "amount": amounts}), path)
    _stamp(path, number)


def _stamp(path: Path, number: int) -> None:
    """Spark reads the oldest file first, and looks at seconds."""
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def compare_panes(found: Panes, expected: Panes) -> dict[str, Any]:
    """The number of panes on both sides, and True if all of them are equal."""
    equal = all(
        np.array_equal(mine, theirs)
        for mine, theirs in (
            (found.keys, expected.keys),
            (found.starts, expected.starts),
            (found.counts, expected.counts),
            (found.means, expected.means),
        )
    )
    return {
        "equal": equal,
        "panes": len(found.keys),
        "expected_panes": len(expected.keys),
        "messages": int(found.counts.sum()),
        "expected_messages": int(expected.counts.sum()),
    }
