"""Polls for a request to drain, as Samza's DrainMonitor does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import Enum

from penstock.drain.requests import DrainRequests
from penstock.errors import ConfigError, PenstockError

logger = logging.getLogger(__name__)
_JOIN_SECONDS = 5.0


class DrainPollerState(Enum):
    INIT = "INIT"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"


class DrainPoller:
    """Polls the metadata store for a request to drain one run, on a separate thread.

    It calls back once, from that thread, and then stops. A store that fails delays the answer and ends nothing.
    """

    def __init__(self, requests: DrainRequests, run_id: str, interval_ms: int) -> None:
        """Raises ConfigError unless the interval is positive."""
        if interval_ms <= 0:
            raise ConfigError(f"job.drain-monitor.poll.interval.ms is {interval_ms}; it must be at least 1")
        self._requests = requests
        self._run_id = run_id
        self._interval_s = interval_ms / 1000
        self._callback: Callable[[], None] | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._state = DrainPollerState.INIT
        self._thread = threading.Thread(target=self._run, name="penstock-drain-monitor", daemon=True)

    @property
    def state(self) -> DrainPollerState:
        """INIT before `start`, RUNNING while it looks, STOPPED once it has called back or was stopped."""
        return self._state

    def register_drain_callback(self, callback: Callable[[], None]) -> bool:
        """Set the callback, which the monitor's thread calls once. Returns False if the monitor was started, or has
        a callback already."""
        with self._lock:
            if self._state is not DrainPollerState.INIT or self._callback is not None:
                return False
            self._callback = callback
            return True

    def start(self) -> None:
        """Begin to poll. Does nothing if the monitor has begun already, or was stopped. Raises PenstockError if it
        has no callback."""
        with self._lock:
            if self._state is not DrainPollerState.INIT:
                return
            if self._callback is None:
                raise PenstockError("a drain monitor needs a callback before it is started")
            self._state = DrainPollerState.RUNNING
            self._thread.start()

    def stop(self) -> None:
        """Stop polling. Idempotent. A poll that has begun may still end with the callback."""
        with self._lock:
            began, self._state = self._state is DrainPollerState.RUNNING, DrainPollerState.STOPPED
            self._stopping.set()
        if began and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)

    def look(self) -> bool:
        """True if the run is asked to drain, now. Raises RetryableError if the store fails."""
        return bool(self._requests.find().for_run(self._run_id))

    def _run(self) -> None:
        callback = self._callback
        while callback is not None and not self._stopping.wait(self._interval_s):
            try:
                asked = self.look()
            except Exception as error:  # whatever the store raises: looking goes on
                logger.warning("requests to drain could not be read; the next look tries again: %s", error)
                continue
            if asked:
                with self._lock:
                    self._state = DrainPollerState.STOPPED
                callback()
                return
