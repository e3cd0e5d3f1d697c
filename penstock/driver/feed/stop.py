"""How a run is asked to end."""

from __future__ import annotations

import logging
import threading

logger = logging.getLogger(__name__)


class StopRequest:
    """How a run is asked to end: after the current batch with a commit, or at once."""

    def __init__(self) -> None:
        self.graceful = threading.Event()
        self.immediate = threading.Event()
        self.drains = False
        """Whether the run drains: a graceful request then changes nothing, because the run ends with the drain."""
        self._asked = False

    def request(self) -> None:
        """The first request is graceful, the second immediate."""
        if self._asked:
            self.immediate.set()
            self.graceful.set()
        self.ask()

    def ask(self) -> None:
        """A graceful request, however often."""
        self._asked = True
        if self.drains:
            logger.info("the run drains and then ends; a second signal ends it at once, and the next start drains it")
        else:
            self.graceful.set()

    def drains_first(self) -> None:
        """A graceful request came, but the run is to drain before it ends."""
        self.drains = True
        self.graceful.clear()
        if self.immediate.is_set():  # it came meanwhile
            self.graceful.set()

    def drain_is_over(self) -> None:
        """The run no longer drains, and continues: a request that came meanwhile counts now."""
        self.drains = False
        if self._asked:
            self.graceful.set()
