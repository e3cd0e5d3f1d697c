"""One look at a job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from penstock.admin.checkpoint.facts import checkpoints
from penstock.admin.job.metrics import run_of
from penstock.admin.job.status import JobStatus, status
from penstock.admin.jobs import FoundJob
from penstock.admin.shown_graph import graph
from penstock.base.retry import SYSTEM_CLOCK
from penstock.dashboard.rates import STALE_MS, History, Totals
from penstock.dashboard.tables import Document
from penstock.dashboard.verdict import unread, unread_by_input
from penstock.dashboard.view import Seen, job_document
from penstock.errors import CorruptError, IncompatibleError
from penstock.job.shown import RunWork
from penstock.metrics.snapshot import Snapshot

Live: TypeAlias = Callable[[], tuple[str, Snapshot, RunWork] | None]
"""A text that distinguishes the start of the run in this process, its metrics and its work now; None before it is
there."""


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
    work = _add(job, found, history, live)
    shown = None
    with suppress(CorruptError, IncompatibleError):  # nothing depends on it
        shown = graph(job)
    return job_document(Seen(found, shown, checkpoints(job), history, SYSTEM_CLOCK.now_ms(), work))


def _add(job: FoundJob, found: JobStatus, history: History, live: Live | None) -> RunWork:
    """Adds a look to the history. Returns the work of the run, if it is that of now."""
    now_ms, work = SYSTEM_CLOCK.now_ms(), RunWork()
    if found.phase is None:
        history.forget()  # it does not run, or another start has just begun
    now = None if live is None else live()
    if now is not None:
        history.add(Totals.of(now[0], now_ms, now[1]))
        work = now[2]
    elif live is None:
        with suppress(CorruptError, IncompatibleError):
            run = run_of(job)
            is_of_phase = run is not None and (found.phase is None or run.driver == found.phase.driver)
            if run is not None and is_of_phase and (history.last is None or run.time_ms != history.last.time_ms):
                history.add(Totals.of(run.driver, run.time_ms, run.metrics))
            if run is not None and found.phase is not None and is_of_phase and now_ms - run.time_ms < STALE_MS:
                work = run.work
    history.saw_inputs(now_ms, unread_by_input(found))
    left = unread(found)
    if left is not None and found.phase is not None and found.phase.phase == "running":
        history.saw(now_ms, float(sum(left.values())))
    return work
