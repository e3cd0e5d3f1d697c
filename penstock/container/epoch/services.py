"""What a container runs beside its calls, for one epoch: each service has one owner, which starts and stops it."""

from __future__ import annotations

import logging
import time
from typing import Protocol

logger = logging.getLogger(__name__)


class Service(Protocol):
    """Something that works in the background from the opening of an epoch until the container leaves it.

    A service is never started again: the next epoch makes another one. Its methods but `status` are called by one
    thread at a time.
    """

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    def start(self) -> None:
        """Begin. All that was added before is running."""
        ...

    def wind_down(self, timeout_s: float) -> None:
        """The run has ended well, and `stop` follows: let what is under way, and makes the next start quicker, come to
        its end within that time."""
        ...

    def stop(self) -> None:
        """Stop and join what runs. All that was added before is still running."""
        ...

    def status(self) -> str:
        """What it is doing, in a few words; empty if nothing. Called by any thread."""
        ...


class Services:
    """The services of one epoch, stopped in the reverse of the order in which they were added.

    Used by one thread; `status` by any.
    """

    def __init__(self) -> None:
        self._running: list[Service] = []

    def add(self, service: Service) -> None:
        """Start a service, and own it from here on. Raises what its start raises; `stop` stops it, too."""
        self._running.append(service)
        service.start()

    def wind_down(self, timeout_s: float) -> None:
        """Give all of them together this long to end what is under way."""
        deadline = time.monotonic() + timeout_s
        for service in self._running:
            service.wind_down(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Stop all of them. One that fails is logged and does not keep the others. Idempotent."""
        while self._running:
            service = self._running[-1]  # it stays listed until it has stopped, for `status`
            try:
                service.stop()
            except Exception:
                logger.exception("stopping the %s failed", service.name)
            self._running.pop()

    def status(self) -> dict[str, str]:
        """What each of them is doing, by its name."""
        return {service.name: service.status() for service in list(self._running)}
