"""How a run is asked to end."""

from __future__ import annotations

import threading


class StopRequest:
    """How a run is asked to end: after the current batch with a commit, or at once."""

    def __init__(self) -> None:
        self.graceful = threading.Event()
        self.immediate = threading.Event()

    def request(self) -> None:
        """The first request is graceful, the second immediate."""
        if self.graceful.is_set():
            self.immediate.set()
        self.graceful.set()
