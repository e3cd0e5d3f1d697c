"""Commands that change a job: only while nobody else runs it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import Claim
from penstock.cli.errors import say
from penstock.cli.jobs import FoundJob
from penstock.errors import PenstockError
from penstock.metadata.lease import Lease, LeaseHolder, LeaseKeeper, acquire


@contextmanager
def owned_job(found: FoundJob, log: CheckpointLog, *, wanted: bool) -> Iterator[int]:
    """The epoch to act in: of a claim of its own under the job's lease; without `wanted`, the present owner's, for
    looking only.

    Raises:
        LeaseHeldError: the job runs; names the holder.
    """
    if not wanted:
        owner = log.read().owner
        yield 0 if owner is None else owner.epoch
        return
    with claimed_job(found, log, uuid.uuid4().hex[:12]) as claim:
        yield claim.epoch


@contextmanager
def claimed_job(found: FoundJob, log: CheckpointLog, run_id: str) -> Iterator[Claim]:
    """A claim of the job's log, made and held under its lease: the log takes checkpoints of this process alone.

    Raises:
        LeaseHeldError: the job runs; names the holder. Nothing was claimed.
        CorruptError: the log is damaged where it is needed. Nothing was claimed.
    """
    lease_ms = found.config.job.lease_ms
    lease = acquire(
        found.objects,
        found.paths,
        LeaseHolder.of_this_process(run_id),
        lease_ms,
        time.monotonic() + 3 * lease_ms / 1000 + 10,
    )
    keeper = LeaseKeeper(lease)
    keeper.start()
    try:
        yield log.claim(run_id)
    finally:
        _leave(lease, keeper)


def _leave(lease: Lease, keeper: LeaseKeeper) -> None:
    """What was done is done, whether the lease is given back or runs out."""
    try:
        keeper.stop(10)
        lease.release()
    except PenstockError as error:
        say(f"warning: the lease was not released and runs out by itself: {error}")
