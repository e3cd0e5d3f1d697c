"""Changes a job that nobody else runs; makes a copied job folder a separate job."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.admin.job.audit import audited
from penstock.admin.jobs import FoundJob
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import Claim
from penstock.driver.guards.tenure import Tenure
from penstock.errors import PenstockError
from penstock.job.identity import JobIdentity, check_root
from penstock.job.identity import adopt as adopt_folder

logger = logging.getLogger(__name__)


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
    with audited(job, "job adopt") as change, held_job(job, job.log, "adopt"):
        before, after = adopt_folder(job.objects, job.paths, job.config.job.root, moved=moved)
        change.changes |= {"uid": f"{before.uid} -> {after.uid}", "folder": f"{before.folder} -> {after.folder}"}
    return before, after


@contextmanager
def owned_job(found: FoundJob, log: CheckpointLog, *, wanted: bool) -> Iterator[int]:
    """The epoch to act in: of a separate claim under the job's lease; without `wanted`, the present owner's, for
    looking only.

    Raises:
        LeaseHeldError: the job runs; names the holder.
    """
    if not wanted:
        owner = log.read().owner
        yield 0 if owner is None else owner.epoch
        return
    with claimed_job(found, log, "gc") as claim:
        yield claim.epoch


@contextmanager
def claimed_job(found: FoundJob, log: CheckpointLog, command: str) -> Iterator[Claim]:
    """A claim of the job's log, made and held under its lease: the log takes checkpoints of this process alone. It
    keeps the id of a run that has not ended; otherwise its run is named after the command.

    Raises:
        IncompatibleError: the job's folder is a copy of another one. Nothing was claimed.
        LeaseHeldError: the job runs; names the holder. Nothing was claimed.
        CorruptError: the log is damaged where it is needed. Nothing was claimed.
    """
    check_root(found.objects, found.paths, found.config.job.root)
    with held_job(found, log, command) as tenure:
        yield log.claim(tenure.run_id)


@contextmanager
def held_job(found: FoundJob, log: CheckpointLog, command: str) -> Iterator[Tenure]:
    """The job's lease. Raises LeaseHeldError if the job runs; names the holder."""
    tenure = Tenure.begin(found.objects, found.paths, log, found.config.job.lease_ms, f"{command}-")
    try:
        yield tenure
    finally:
        _leave(tenure)


def _leave(tenure: Tenure) -> None:
    """Never fails: the change is done, and a lease that is not released runs out."""
    try:
        tenure.leave()
    except PenstockError as error:
        logger.warning("the lease was not released; it expires by itself: %s", error)
