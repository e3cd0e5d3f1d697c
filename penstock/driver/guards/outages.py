"""Waits for systems that are away for now."""

from __future__ import annotations

import logging

from penstock.base.clock import Clock
from penstock.driver.feed.stop import StopRequest
from penstock.driver.show.progress import ProgressBoard
from penstock.errors import SystemAwayError
from penstock.job.shown_outage import Outage

logger = logging.getLogger(__name__)
PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
"""Each pause before the next try is twice as long as the one before, up to this limit."""
SAY_SECONDS = 10.0
LONGEST_SAY_SECONDS = 600.0
"""The time between two log lines about the same outage doubles, up to this limit."""


class Outages:
    """Waits while a system is away, says so, and says when it is over. Used by the run loop's thread.

    A run that is asked to end while it waits ends at once: what is not committed is processed again by the next start.
    """

    def __init__(self, board: ProgressBoard, stop: StopRequest, clock: Clock) -> None:
        self._board = board
        self._stop = stop
        self._clock = clock
        self._since: float | None = None
        """The start of the present outage, on the run's monotonic clock; None if there is none."""
        self._pause_s = PAUSE_SECONDS
        self._say_at = 0.0
        self._say_s = SAY_SECONDS

    def wait(self, error: SystemAwayError) -> None:
        now = self._clock.monotonic()
        if self._since is None:
            self._since, self._pause_s = now, PAUSE_SECONDS
            self._say_at, self._say_s = now + SAY_SECONDS, SAY_SECONDS
            self._board.update(outage=Outage(self._clock.now_ms(), str(error)))
            logger.warning("a system is away; the job waits for it and keeps trying: %s", error)
        else:
            outage = self._board.outage
            since_ms = self._clock.now_ms() if outage is None else outage.since_ms
            self._board.update(outage=Outage(since_ms, str(error)))
            if now >= self._say_at:
                self._say_s = min(2 * self._say_s, LONGEST_SAY_SECONDS)
                self._say_at = now + self._say_s
                logger.warning("the job has waited for %.0f s: %s", now - self._since, self._board.outage)
        if self._clock.wait(self._stop.graceful, self._pause_s):
            logger.warning(
                "the run was asked to end while it waits, and ends without another checkpoint. The next start "
                "processes everything after the last one again. The run waited for: %s",
                error,
            )
            self._stop.immediate.set()
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_SECONDS)

    def over(self) -> None:
        if self._since is not None:
            waited_s = self._clock.monotonic() - self._since
            logger.warning("the job continues after %.0f s: the system is back", waited_s)
            self._since = None
            self._board.update(outage=None)
