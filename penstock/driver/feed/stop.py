"""Requests to end a run."""

from __future__ import annotations

import logging
import threading

logger = logging.getLogger(__name__)


class StopRequest:
    """Asks a run to end: after the current batch with a commit, or at once."""

    def __init__(self) -> None:
        self.graceful = threading.Event()
        self.immediate = threading.Event()
        self.drains = False
        """True if the run drains: a graceful request then changes nothing, because the run ends with the drain."""
        self._asked = False

    def request(self) -> None:
        """Ask the run to end. The first request is graceful, the second immediate."""
        if self._asked:
            self.at_once()
        else:
            self.ask()

    def at_once(self) -> None:
        """Ask the run to end at once, whatever was asked before."""
        self._asked = True
        self.immediate.set()
        self.graceful.set()

    def ask(self) -> None:
        """Ask gracefully, however often."""
        self._asked = True
        if self.drains:
            logger.info("the run drains and then ends; a second signal ends it at once, and the next start drains it")
        else:
            self.graceful.set()

    def drains_first(self) -> None:
        """Let the run drain before it ends, although a graceful request came."""
        self.drains = True
        self.graceful.clear()
        if self.immediate.is_set():  # it came meanwhile
            self.graceful.set()

    def drain_is_over(self) -> None:
        """Let the run continue after a drain. A graceful request that came meanwhile counts now."""
        self.drains = False
        if self._asked:
            self.graceful.set()
