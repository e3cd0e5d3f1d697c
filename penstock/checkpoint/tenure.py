"""Holding a job: the lease, renewed in the background, and the run that its holder continues."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress

from penstock.checkpoint.log import CheckpointLog
from penstock.errors import PenstockError, RetryableError
from penstock.metadata.lease import LeaseHolder, LeaseKeeper, acquire
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.paths import JobPaths

_LEAVE_SECONDS = 10


class Tenure:
    """A job that this process holds, until `leave`.

    The run id is read while the lease is held: a run that ended while this process waited for the lease is not
    continued.
    """

    def __init__(self, keeper: LeaseKeeper, run_id: str) -> None:
        self.keeper = keeper
        self.run_id = run_id
        """A run is one submission: a restart keeps its id until a checkpoint says that the run ended."""

    @classmethod
    def begin(
        cls, objects: ObjectStore, paths: JobPaths, log: CheckpointLog, lease_ms: int, prefix: str = ""
    ) -> Tenure:
        """Take the lease and find out which run this is. Nothing is claimed.

        Args:
            lease_ms: `job.lease.ms`, in milliseconds. It waits at most three times as long, and ten seconds.
            prefix: what the id of a new run begins with.

        Raises:
            LeaseHeldError: the job runs; names the holder.
            PenstockTimeoutError: the lease was not free in time.
            RetryableError: the store failed.
        """
        new_run = f"{prefix}{uuid.uuid4().hex[:12]}"
        deadline = time.monotonic() + 3 * lease_ms / 1000 + 10
        lease = acquire(objects, paths, LeaseHolder.of_this_process(new_run), lease_ms, deadline)
        tenure = cls(LeaseKeeper(lease), new_run)
        tenure.keeper.start()
        try:
            # Whether a fault in the log stops the run is decided later.
            tenure.run_id = log.read("report").unfinished_run or new_run
            if tenure.run_id != new_run:
                lease.name_run(tenure.run_id)
                with suppress(RetryableError):  # the next renewal says it as well
                    lease.renew()
        except BaseException:
            with suppress(PenstockError):
                tenure.leave()
            raise
        return tenure

    def leave(self) -> None:
        """Give the lease back. Raises PenstockError if that failed: it then runs out by itself."""
        self.keeper.stop(_LEAVE_SECONDS)
        self.keeper.lease.release()
