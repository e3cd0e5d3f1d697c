"""The background services of a container in one epoch: each has one owner, which starts and stops it."""

from __future__ import annotations

import logging
import time

from penstock.batch.batch import Batch
from penstock.metrics.snapshot import Snapshot

logger = logging.getLogger(__name__)


class Service:
    """Work of a container from the opening of an epoch until the container leaves it. By default it does nothing.

    A service is never started again: the next epoch makes another one. Its methods but `status` and `metrics` are
    called by one thread at a time.
    """

    name: str

    def start(self) -> None:
        """Begin. All services that were added before are running."""

    def start_run(self, batch: Batch) -> None:
        """Prepare for this run of a batch. Services that were added later have ended what they did for earlier runs."""

    def wind_down(self, timeout_s: float) -> None:
        """Let work that makes the next start quicker end within that time: the run has ended well, and `stop`
        follows."""

    def stop(self) -> None:
        """Stop and join the work. All services that were added before are still running."""

    def status(self) -> str:
        """The present work in a few words; empty if there is none. Called by any thread."""
        return ""

    def metrics(self) -> Snapshot:
        """Called by any thread, after `stop` as well."""
        return Snapshot()


class Services:
    """The services of one epoch, stopped in the reverse of the order in which they were added.

    Used by one thread; `status` and `metrics` by any.
    """

    def __init__(self) -> None:
        self._all: list[Service] = []
        self._running: list[Service] = []

    def add(self, service: Service) -> None:
        """Start a service, and own it from here on. Raises the errors of its start; `stop` stops such a service,
        too."""
        self._all.append(service)
        self._running.append(service)
        service.start()

    def start_run(self, batch: Batch) -> None:
        for service in reversed(self._running):
            service.start_run(batch)

    def wind_down(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for service in self._running:
            service.wind_down(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Stop all services. A failure of one is logged and does not keep the others. Idempotent."""
        while self._running:
            service = self._running[-1]  # it stays listed until it has stopped, for `status`
            try:
                service.stop()
            except Exception:
                logger.exception("stopping the %s failed", service.name)
            self._running.pop()

    def status(self) -> dict[str, str]:
        return {service.name: service.status() for service in list(self._running)}

    def metrics(self) -> Snapshot:
        return Snapshot().merged(*(service.metrics() for service in self._all))
