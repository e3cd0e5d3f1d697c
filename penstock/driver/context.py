"""The values that all parts of one run share, and the request to end it, which is one of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.base.retry import Clock
from penstock.driver.show.progress import ProgressBoard
from penstock.job.lease import LeaseKeeper
from penstock.start.job import ClaimedJob
from penstock.wire.ports import BatchRunner, Fleet

logger = logging.getLogger(__name__)


class StopRequest:
    """Asks a run to end: after the current batch with a commit, or at once."""

    def __init__(self) -> None:
        self.graceful = threading.Event()
        self.immediate = threading.Event()
        self.drains = False
        """True if the run drains: a graceful request then changes nothing, because the run ends with the drain."""
        self._asked = False
        self._is_last = False
        self._begins_again = False
        self._lock = threading.RLock()

    def request(self) -> None:
        """Ask the run to end. The first request is graceful, the second immediate."""
        with self._lock:
            if self._asked:
                self.at_once()
            else:
                self.ask()

    def at_once(self) -> None:
        """Ask the run to end at once, whatever was asked before."""
        with self._lock:
            self._asked = True
            self.is_last()
            self.immediate.set()
            self.graceful.set()

    def ask(self) -> None:
        """Ask gracefully, however often."""
        with self._lock:
            self._asked = True
            self.is_last()
            if self.drains:
                logger.info(
                    "the run drains and then ends; a second signal ends it at once, and the next start drains it"
                )
            else:
                self.graceful.set()

    def is_last(self) -> None:
        """The run does not begin again."""
        with self._lock:
            self._is_last, self._begins_again = True, False

    def begin_again(self) -> None:
        """End the run gracefully, and let it begin again. Does nothing if somebody has asked for its end."""
        with self._lock:
            if not (self._is_last or self.drains):
                self._begins_again = True
                self.graceful.set()

    @property
    def goes_on(self) -> bool:
        """True if the run ends here only to begin again."""
        return self._begins_again

    def begins_again(self) -> bool:
        """True, once, if the run is to begin again. No request to end it was made then."""
        with self._lock:
            again, self._begins_again = self._begins_again, False
            if again:
                self.graceful.clear()
            return again

    def drains_first(self) -> None:
        """Let the run drain before it ends, although a graceful request came."""
        self.drains = True
        self.graceful.clear()
        if self.immediate.is_set():  # it came meanwhile
            self.graceful.set()

    def drain_is_over(self) -> None:
        """Let the run continue after a drain. A graceful request that came meanwhile counts now."""
        self.drains = False
        if self._asked or self._begins_again:
            self.graceful.set()


@dataclass(frozen=True, slots=True)
class RunContext:
    """A claimed job, its lease, the two ports of its run, its progress, and the request to end it."""

    job: ClaimedJob
    keeper: LeaseKeeper
    fleet: Fleet
    runner: BatchRunner
    stop: StopRequest
    board: ProgressBoard
    check_next: Callable[[], object] | None = None
    """Raises the error by which a start would be refused now. None: the job never begins again by itself."""

    tools: Mapping[str, Any] = field(default_factory=dict)
    """Wing → the tool that the host has made for it (`Wing.on_host`)."""

    @property
    def clock(self) -> Clock:
        return self.job.clock
