"""The graph of a job, from outside its process."""

from __future__ import annotations

from penstock.admin.jobs import FoundJob
from penstock.job.shown import JobGraph, graph_board


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
