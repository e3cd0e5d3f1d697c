"""Commands that change a job: only while nobody else runs it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.checkpoint.log import CheckpointLog
from penstock.cli.jobs import FoundJob
from penstock.metadata.lease import LeaseHolder, LeaseKeeper, acquire


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
    run_id = uuid.uuid4().hex[:12]
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
        yield log.claim(run_id).epoch
    finally:
        keeper.stop(10)
        lease.release()
