"""One look at a job."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from penstock.admin.checkpoint.facts import checkpoints
from penstock.admin.job.metrics import run_of
from penstock.admin.job.status import JobStatus, status
from penstock.admin.jobs import FoundJob
from penstock.admin.shown_graph import graph
from penstock.dashboard.rates import History, Totals
from penstock.dashboard.verdict import unread
from penstock.dashboard.view import Document, Seen, job_document
from penstock.errors import CorruptError, IncompatibleError
from penstock.metrics.snapshot import Snapshot

Live: TypeAlias = Callable[[], tuple[str, Snapshot]]
"""A text that distinguishes the start of the run in this process, and its metrics now."""


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
    found = status(job, wait=live is None)
    if live is not None and found.status == "held, not verified":
        found = replace(found, status="running", reason="its driver serves this page")
    _add(job, found, history, live)
    shown = None
    with suppress(CorruptError, IncompatibleError):  # nothing depends on it
        shown = graph(job)
    return job_document(Seen(found, shown, checkpoints(job), history))


def _add(job: FoundJob, found: JobStatus, history: History, live: Live | None) -> None:
    now_ms = time.time_ns() // 1_000_000
    left = unread(found)
    if left is not None and not found.has_ended:
        history.lags.append((now_ms, float(sum(left.values()))))
    if live is not None:
        start, metrics = live()
        history.add(Totals.of(start, now_ms, metrics))
        return
    with suppress(CorruptError, IncompatibleError):
        run = run_of(job)
        is_old = run is None or (found.phase is not None and run.began_ms != found.phase.began_ms)
        if run is None or is_old or (history.last is not None and run.time_ms == history.last.time_ms):
            return
        history.add(Totals.of(f"{run.run_id} {run.began_ms}", run.time_ms, run.metrics))
