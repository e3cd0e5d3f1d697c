"""Changing a job: only while nobody else runs it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.admin.jobs import FoundJob
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import Claim
from penstock.driver.guards.tenure import Tenure
from penstock.errors import PenstockError
from penstock.job.identity import check_root

logger = logging.getLogger(__name__)


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
    """What was done is done, whether the lease is given back or runs out."""
    try:
        tenure.leave()
    except PenstockError as error:
        logger.warning("the lease was not released; it expires by itself: %s", error)
