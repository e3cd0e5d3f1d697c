"""The lease's permission to start a batch or to begin a commit."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.base.clock import Clock
from penstock.errors import FencedError, PenstockTimeoutError
from penstock.job.lease import LeaseKeeper

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
