"""A job's metrics and graph, from outside its process, and the parts of its status that come from them."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.admin.jobs import FoundJob
from penstock.errors import NotFoundError
from penstock.job.shown import JobGraph, MetricsBoard, ShownRun, graph_board
from penstock.metrics.snapshot import CounterValue, Snapshot

_WAY = "batches-"


def run_of(job: FoundJob) -> ShownRun | None:
    """The metrics of the job's last run, with the moment at which they were those; None if no run has put any. Raises
    as `metrics_of`."""
    return MetricsBoard(job.objects, job.paths).get()


def metrics_of(job: FoundJob) -> Snapshot:
    """The metrics of a running job some seconds ago, or those at the end of its last run.

    Raises:
        NotFoundError: no run has put any yet.
        CorruptError: they cannot be read.
        IncompatibleError: a newer Penstock put them.
        RetryableError: the object store failed.
    """
    found = run_of(job)
    if found is None:
        raise NotFoundError(
            f"job {job.paths.root} has no metrics yet: a run writes them to the job's folder every ten seconds and "
            "when it ends"
        )
    return found.metrics


def ways_in(metrics: Snapshot) -> Mapping[str, int]:
    """The batches of a run with a latency target by their way, named as `JobProgress.way`."""
    return {
        key.name.removeprefix(_WAY): value.count
        for key, value in sorted(metrics.items())
        if isinstance(value, CounterValue) and key.group == "job" and key.name.startswith(_WAY)
    }


def graph(job: FoundJob) -> JobGraph | None:
    """The stages of the job's last run, and what flows between them and the streams; None if no run has shown any.

    Args:
        job: the job.

    Raises:
        CorruptError: it cannot be read.
        IncompatibleError: a newer Penstock wrote it.
        RetryableError: the object store failed.

    Example:
        >>> with admin.open_job("flights") as job:  # doctest: +SKIP
        ...     [(each.source, each.target) for each in admin.graph(job).edges]
        [('local.trips', 0), (0, 1)]
    """
    return graph_board(job.objects, job.paths).get()
