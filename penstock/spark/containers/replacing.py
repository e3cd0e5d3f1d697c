"""Starts of containers beside the batches, while every task has one: on an executor that came, or in the place of
lost ones whose tasks standbys have."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from concurrent.futures import CancelledError, Executor, Future, wait

from penstock.spark.containers.launch import ContainerLauncher
from penstock.wire.address import ContainerAddress

logger = logging.getLogger(__name__)
_AGAIN_SECONDS = 10.0
_END_SECONDS = 5.0
_QUIET_SECONDS = 2.0


class ReplacementLaunch:
    """One launch at a time. Used by the run loop's thread."""

    def __init__(self, launcher: ContainerLauncher, pool: Executor) -> None:
        self._launcher = launcher
        self._pool = pool
        self._launch: Future[list[ContainerAddress]] | None = None
        self._again_at = 0.0

    def begin(self, condemned: frozenset[str]) -> None:
        """Start missing containers, unless a launch is under way, or has just failed."""
        if self._launch is None and time.monotonic() >= self._again_at:
            self._launch = self._pool.submit(self._launcher.await_containers, condemned)

    def postpone(self) -> None:
        """Postpone a launch: for a moment, no starting process competes with the standbys that take over."""
        self._again_at = max(self._again_at, time.monotonic() + _QUIET_SECONDS)

    def started(self, condemned: Collection[str], known: Collection[str]) -> list[str]:
        """New containers of a launch that has ended, in words."""
        found = [] if self._launch is None or not self._launch.done() else self._found(self._launch)
        new = [a for a in found if a.container not in known and a.incarnation not in condemned]
        if not new and self._launch is not None and self._launch.done():
            self._launch = None
            self._again_at = time.monotonic() + _AGAIN_SECONDS
        return [f"container {address.container}" for address in new]

    def take(self) -> list[ContainerAddress]:
        """The containers that an ended launch has started; none as long as one is under way."""
        if self._launch is None or not self._launch.done():
            return []
        launch, self._launch = self._launch, None
        return self._found(launch)

    def end(self) -> list[ContainerAddress]:
        launch, self._launch = self._launch, None
        if launch is None:
            return []
        wait([launch], _END_SECONDS)
        return self._found(launch) if launch.done() else []

    def _found(self, launch: Future[list[ContainerAddress]]) -> list[ContainerAddress]:
        try:
            return launch.result()
        except (Exception, CancelledError) as error:
            self._again_at = time.monotonic() + _AGAIN_SECONDS
            logger.warning("no container was started beside the batches; the driver tries again: %s", error)
            return []
