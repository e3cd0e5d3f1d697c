"""The background services of a container in one epoch: each has one owner, which starts and stops it."""

from __future__ import annotations

import logging
import time
from typing import Protocol

logger = logging.getLogger(__name__)


class Service(Protocol):
    """Background work from the opening of an epoch until the container leaves it.

    A service is never started again: the next epoch makes another one. Its methods but `status` are called by one
    thread at a time.
    """

    @property
    def name(self) -> str: ...

    def start(self) -> None:
        """Begin. All services that were added before are running."""
        ...

    def wind_down(self, timeout_s: float) -> None:
        """Let work that makes the next start quicker end within that time: the run has ended well, and `stop`
        follows."""
        ...

    def stop(self) -> None:
        """Stop and join the work. All services that were added before are still running."""
        ...

    def status(self) -> str:
        """The present work in a few words; empty if there is none. Called by any thread."""
        ...


class Services:
    """The services of one epoch, stopped in the reverse of the order in which they were added.

    Used by one thread; `status` by any.
    """

    def __init__(self) -> None:
        self._running: list[Service] = []

    def add(self, service: Service) -> None:
        """Start a service, and own it from here on. Raises the errors of its start; `stop` stops such a service,
        too."""
        self._running.append(service)
        service.start()

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
