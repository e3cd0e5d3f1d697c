"""One look at a job."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from penstock.admin.checkpoint.facts import checkpoints
from penstock.admin.graph import graph
from penstock.admin.job.metrics import run_of
from penstock.admin.job.status import status
from penstock.admin.jobs import FoundJob
from penstock.api.ssp import SystemStreamPartition
from penstock.dashboard.rates import History, Totals
from penstock.dashboard.view import Document, Seen, job_document
from penstock.metrics.snapshot import Snapshot

Live: TypeAlias = Callable[[], tuple[str, Snapshot]]
"""The id of the run in this process, and its metrics now."""


def look_at(job: FoundJob, history: History, live: Live | None = None) -> Document:
    """The page of a job, now.

    Args:
        job: the job.
        history: the looks before, to which this one is added.
        live: the metrics of a run in this process; None: those in the job's folder count, and the lease is watched.

    Raises:
        CorruptError, IncompatibleError: the log or the lease cannot be read.
        RetryableError: the object store failed.
    """
    found, run = status(job, wait=live is None), run_of(job)
    if live is not None and found.status == "held, not verified":
        found = replace(found, status="running", reason="its driver serves this page")
    if live is not None:
        run_id, metrics = live()
        history.add(Totals.of(run_id, time.time_ns() // 1_000_000, metrics))
    elif run is not None and (history.last is None or run.time_ms != history.last.time_ms):
        history.add(Totals.of(run.run_id, run.time_ms, run.metrics))
    reached: dict[SystemStreamPartition, int] = {}
    for (_, ssp), offset in () if run is None else run.reached.items():
        reached[ssp] = min(offset, reached.get(ssp, offset))
    return job_document(Seen(found, graph(job), checkpoints(job), history, reached))
