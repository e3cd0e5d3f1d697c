"""The events of the queries: Parquet files made from a seed, and what each processor has to make of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

FIRST_MS = 1_356_998_400_000
"""When the first batch begins: 2013-01-01."""
BATCH_MS = 60_000
"""The event time of a batch."""
GAP_MS = 90_000
"""A session ends after so long without an event."""
DELAY_MS = 10_000
LAST = 10
FILES = 2
"""Files of a batch, which Spark reads in parallel."""
SMALL_ROWS = 10
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class QueryWorkload:
    """Batches of equal size, then some of a few rows, then some of none."""

    batches: int = 50
    batch_rows: int = 200_000
    keys: int = 100_000
    small: int = 8
    """Batches of SMALL_ROWS rows, and as many without rows."""
    seed: int = 20130101

    @property
    def sizes(self) -> list[int]:
        """The rows of each batch."""
        return [self.batch_rows] * self.batches + [SMALL_ROWS] * self.small + [0] * self.small

    def first(self, batches: int) -> QueryWorkload:
        """The same with fewer large batches."""
        return QueryWorkload(**{**asdict(self), "batches": batches})

    def columns(self) -> Iterator[tuple[Int64, Int64, Int64]]:
        """For each batch the numbers of the keys, the amounts and the event times. Times are different from each other,
        and those of a batch are above those of the one before."""
        for number, size in enumerate(self.sizes):
            random = np.random.default_rng((self.seed, number))
            times = FIRST_MS + number * BATCH_MS + random.permutation(np.arange(size) * BATCH_MS // max(1, size))
            yield random.integers(0, self.keys, size), random.integers(1, 10_000, size), times.astype(np.int64)

    def write(self, folder: Path) -> None:
        """One step of the query is FILES files. Modification times are a second apart: Spark reads the oldest first."""
        folder.mkdir(parents=True)
        names = np.array([f"key-{number:06d}" for number in range(self.keys)])
        for number, (keys, amounts, times) in enumerate(self.columns()):
            for part in range(FILES):
                mine = slice(part, None, FILES)
                names_of = pa.array(names[keys[mine]], pa.string())
                table = pa.table({"key": names_of, "amount": amounts[mine], "time": times[mine]})
                path = folder / f"{number:04d}-{part}.parquet"
                pq.write_table(table, path)
                second = 1_700_000_000 + number * FILES + part
                os.utime(path, (second, second))

    def all(self) -> tuple[Int64, Int64, Int64]:
        """The columns of all batches."""
        keys, amounts, times = zip(*self.columns(), strict=True)
        return np.concatenate(keys), np.concatenate(amounts), np.concatenate(times)

    def rows_out(self) -> int:
        """Rows that a processor yields that yields one for each key and batch."""
        return sum(len(np.unique(keys)) for keys, _, _ in self.columns())


def expected(kind: str, workload: QueryWorkload) -> dict[str, Any]:
    """The expected output: by key the last row, or all sessions that the watermark has closed."""
    keys, amounts, times = workload.all()
    if kind == "fold":
        counts, sums = np.bincount(keys), np.bincount(keys, weights=amounts)
        return {f"key-{n:06d}": (int(counts[n]), int(sums[n])) for n in np.flatnonzero(counts)}
    order = np.lexsort((amounts, times, keys))  # as the processor orders what has the same time
    keys, amounts, times = keys[order], amounts[order], times[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    found: dict[str, Any] = {}
    for start, end in zip(starts, [*starts[1:], len(keys)], strict=True):
        name, own = f"key-{keys[start]:06d}", slice(max(start, end - LAST), end)
        if kind == "last-ten":
            found[name] = (int(own.stop - own.start), int(amounts[own].sum()))
        else:
            cuts = [start, *(start + 1 + np.flatnonzero(np.diff(times[start:end]) >= GAP_MS)), end]
            found[name] = [(int(times[a]), int(times[b - 1]), int(b - a)) for a, b in pairwise(cuts)]
    return found


def compare(kind: str, workload: QueryWorkload, work: Path) -> dict[str, Any]:
    """Compare what was written with what was expected."""
    table = ds.dataset(work / "output", format="parquet", partitioning="hive").to_table()
    if kind == "sessions":
        return _compare_sessions(workload, table)
    last = table.sort_by("batch").to_pydict()
    found = {key: (n, total) for key, n, total in zip(last["key"], last["n"], last["total"], strict=True)}
    wanted = expected(kind, workload)
    wrong = [key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key)]
    rows = workload.rows_out()
    return {"equal": not wrong and rows == table.num_rows, "rows": table.num_rows, "wrong_keys": len(wrong)}


def _compare_sessions(workload: QueryWorkload, table: pa.Table) -> dict[str, Any]:
    """Sessions that the watermark had passed when the last full batch began are there; others may be; none is wrong."""
    wanted = {(key, *one) for key, own in expected("sessions", workload).items() for one in own}
    rows = table.select(["key", "first", "last", "n"]).to_pydict()
    found = list(zip(rows["key"], rows["first"], rows["last"], rows["n"], strict=True))
    passed = FIRST_MS + (workload.batches - 1) * BATCH_MS - DELAY_MS - GAP_MS
    due = {each for each in wanted if each[2] < passed}
    wrong = len(set(found) - wanted)
    missing = len(due - set(found))
    return {
        "equal": not wrong and not missing and len(found) == len(set(found)),
        "rows": len(found),
        "wrong_keys": wrong + missing,
    }
