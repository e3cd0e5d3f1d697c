"""Makes a copied job folder a separate job."""

from __future__ import annotations

from penstock.admin.job.audit import audited
from penstock.admin.job.ownership import held_job
from penstock.admin.jobs import FoundJob
from penstock.checkpoint.log import CheckpointLog
from penstock.job.identity import JobIdentity
from penstock.job.identity import adopt as adopt_folder


def adopt(job: FoundJob, *, moved: bool = False) -> tuple[JobIdentity, JobIdentity]:
    """Make a copied job folder a separate job, which can be started beside the original.

    Args:
        job: the job in the copied folder.
        moved: the folder was moved and its old place is empty. It remains the same job.

    Returns:
        The identity before and after. They are equal if the folder is not a copy.

    Raises:
        LeaseHeldError: the job runs.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     before, after = admin.adopt(job)
        ...     before == after
        True
    """
    with audited(job, "job adopt") as change, held_job(job, CheckpointLog(job.objects, job.paths), "adopt"):
        before, after = adopt_folder(job.objects, job.paths, job.config.job.root, moved=moved)
        change.changes |= {"uid": f"{before.uid} -> {after.uid}", "folder": f"{before.folder} -> {after.folder}"}
    return before, after
