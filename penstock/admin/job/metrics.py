"""A job's metrics, from outside its process."""

from __future__ import annotations

from penstock.admin.jobs import FoundJob
from penstock.errors import NotFoundError
from penstock.job.shown_metrics import MetricsBoard
from penstock.metrics.snapshot import Snapshot


def metrics_of(job: FoundJob) -> Snapshot:
    """The metrics of a running job some seconds ago, or those at the end of its last run.

    Raises:
        NotFoundError: no run has put any yet.
        CorruptError: they cannot be read.
        IncompatibleError: a newer Penstock put them.
        RetryableError: the object store failed.
    """
    found = MetricsBoard(job.objects, job.paths).get()
    if found is None:
        raise NotFoundError(
            f"job {job.paths.root} has no metrics yet: a run writes them to the job's folder every ten seconds and "
            "when it ends"
        )
    return found.metrics
