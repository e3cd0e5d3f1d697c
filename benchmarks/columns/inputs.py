"""The events in files: for each batch, a file for each partition."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.keyed_fold.workload import Workload, key_name


def write_files(workload: Workload, folder: Path, partitions: int) -> Path:
    """Write the events as Parquet and as lines of JSON, in `<form>/events`. Modification times are a second apart:
    Spark reads the oldest files first."""
    numbers, amounts = workload.columns()
    names = pa.array([key_name(number) for number in range(workload.keys)], pa.string())
    for form in ("parquet", "json"):
        (folder / form / "events").mkdir(parents=True)
    size = workload.batch_events // partitions
    for number, begin in enumerate(range(0, workload.events, size)):
        part = slice(begin, begin + size)
        table = pa.table({"key": names.take(pa.array(numbers[part])), "amount": amounts[part]})
        paths = {form: folder / form / "events" / f"{number:05d}.{form}" for form in ("parquet", "json")}
        pq.write_table(table, paths["parquet"])
        paths["json"].write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in table.to_pylist()))
        for path in paths.values():
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return folder


def totals_of(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """The count and the sum of each key, by its number."""
    numbers, amounts = workload.columns()
    counts = np.bincount(numbers, minlength=workload.keys)
    return counts, np.bincount(numbers, weights=amounts, minlength=workload.keys)
