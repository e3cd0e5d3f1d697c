"""Polars' group-by over the files of each batch: nothing is kept, and nothing is durable."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.keyed_fold.workload import Workload


def fold(parameters: dict[str, Any]) -> dict[str, Any]:
    """Group the rows of each batch; one entry per batch."""
    import polars as pl

    workload, threads = Workload(**parameters["workload"]), parameters["threads"]
    files = sorted(Path(parameters["files"], "events").iterdir())
    batches = []
    for number, begin in enumerate(range(0, len(files), threads), 1):
        began = time.monotonic()
        events = pl.read_parquet(files[begin : begin + threads])
        events.group_by("key").agg(pl.len().alias("count"), pl.col("amount").sum().alias("sum"))
        took = (time.monotonic() - began) * 1000
        batches.append(
            {
                "batch": number,
                "rows": workload.batch_events,
                "duration_ms": {"triggerExecution": took},
                "ended": time.time(),
            }
        )
    return {"batches": batches}
