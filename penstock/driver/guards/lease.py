"""Holds a job for one run.

The tenure renews the lease in the background, and knows the run that its holder continues. The gate gives the lease's
permission to start a batch or to begin a commit.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from penstock.base.retry import Clock
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.errors import ConfigError, FencedError, PenstockError, PenstockTimeoutError, RetryableError
from penstock.job.lease import LeaseHolder, LeaseKeeper, acquire
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore

_LOOK_SECONDS = 0.05


class LeaseGate:
    """Holds back a driver whose lease was not renewed in time, and ends one that has lost it."""

    def __init__(self, keeper: LeaseKeeper, lease_ms: int, clock: Clock) -> None:
        self._keeper = keeper
        self._lease_ms = lease_ms
        self._clock = clock

    def check_commit(self) -> None:
        """Raise FencedError if the lease is lost."""
        if self._keeper.lease.lost is not None:
            raise FencedError(f"{self._keeper.lease.lost}. This run stops")

    def await_batch(self, stop: threading.Event, look: Callable[[], None]) -> bool:
        """Wait until a batch may start. False if `stop` was set meanwhile; `look` is called from time to time.

        Raises:
            FencedError: the lease is lost.
            PenstockTimeoutError: it was not renewed for three times `job.lease.ms` and ten seconds.
        """
        lease = self._keeper.lease
        limit_s = 3 * self._lease_ms / 1000 + 10
        deadline = self._clock.monotonic() + limit_s
        while not lease.may_start_batch():
            if lease.lost is not None:
                raise FencedError(f"{lease.lost}. This run stops; what it did since its last checkpoint does not count")
            if self._clock.monotonic() > deadline:
                raise PenstockTimeoutError(
                    f"the lease of the job could not be renewed for {limit_s:.0f} s (job.lease.ms is "
                    f"{self._lease_ms}), so no batch may start. The last failure: "
                    f"{self._keeper.failure or 'none, the store has not answered yet'}"
                )
            look()
            if self._clock.wait(stop, _LOOK_SECONDS):
                return False
        return True


logger = logging.getLogger(__name__)
_LEAVE_SECONDS = 10


class Tenure:
    """A job that this process holds, until `leave`.

    The run id is read while the lease is held: a run that ended while this process waited for the lease is not
    continued.
    """

    def __init__(self, keeper: LeaseKeeper, run_id: str) -> None:
        self.keeper = keeper
        self.run_id = run_id

    @classmethod
    def begin(
        cls,
        objects: ObjectStore,
        paths: JobPaths,
        log: CheckpointLog,
        lease_ms: int,
        prefix: str = "",
        named: str | None = None,
    ) -> Tenure:
        """Take the lease and find out which run this is. Nothing is claimed.

        Args:
            lease_ms: `job.lease.ms`, in milliseconds. It waits at most three times as long, and ten seconds.
            prefix: what the id of a new run begins with.
            named: `app.run.id`; None if it is not set.

        Raises:
            ConfigError: the run of that name has drained.
            LeaseHeldError: the job runs; names the holder.
            PenstockTimeoutError: the lease was not free in time.
            RetryableError: the store failed.
        """
        new_run = named or f"{prefix}{uuid.uuid4().hex[:12]}"
        deadline = time.monotonic() + 3 * lease_ms / 1000 + 10
        lease = acquire(objects, paths, LeaseHolder.of_this_process(new_run), lease_ms, deadline)
        tenure = cls(LeaseKeeper(lease), new_run)
        tenure.keeper.start()
        try:
            # Whether a fault in the log stops the run is decided later.
            tenure.run_id = run_of_start(log.read("report"), named) or new_run
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
        """Give the lease back. Raises PenstockError if that failed: the lease then expires."""
        self.keeper.stop(_LEAVE_SECONDS)
        self.keeper.lease.release()


def run_of_start(view: LogView, named: str | None) -> str | None:
    """The id of the run that a start belongs to, by the log; None: a new one without a name.

    Without a name, a run goes on until a checkpoint says that it ended, or another run claims the log. A named run goes
    on with each start of that name, also after a stop: whoever moves a deployment to another host stops it. Only once
    it has drained, it is over: the program that drained may not begin again by being restarted.

    Args:
        view: the log, read under the lease.
        named: `app.run.id`; None if it is not set.

    Raises:
        ConfigError: the run of that name has drained, and no run has come since.
    """
    unfinished, latest = view.unfinished_run, view.latest
    if named is None:
        return unfinished
    if latest is not None and (latest.run_id, latest.ended) == (named, "drained"):
        raise ConfigError(
            f"run `{named}` has drained, so it does not start again. Set `app.run.id` to the name of the new deployment"
        )
    if unfinished not in (None, named):
        logger.info("run %s begins; run %s, which had not ended, is over", named, unfinished)
    return named
