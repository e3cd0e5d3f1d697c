"""A clock that only the test moves."""

from __future__ import annotations

import threading


class SettableClock:
    """A clock for tests. Time passes when the test advances it, and when code waits: a wait returns at once and moves
    the clock by its duration. Thread-safe.

    Example:
        >>> clock = SettableClock(now_ms=1_000)
        >>> clock.wait(threading.Event(), timeout_s=0.5)
        False
        >>> clock.advance(60)
        >>> clock.now_ms(), clock.monotonic()
        (61500, 60.5)
        >>> clock.correct(-10_000)
        >>> clock.now_ms(), clock.monotonic()
        (51500, 60.5)
    """

    def __init__(self, now_ms: int = 1_600_000_000_000) -> None:
        """Make a clock.

        Args:
            now_ms: the first time of the wall clock, in epoch milliseconds.
        """
        self._first_ms = now_ms
        self._passed_s = 0.0
        self._lock = threading.Lock()
        self.waited: list[float] = []
        """The time in seconds of each wait for an event that was not set."""

    def advance(self, seconds: float) -> None:
        """Let time pass.

        Args:
            seconds: how much.
        """
        with self._lock:
            self._passed_s += seconds

    def correct(self, by_ms: int) -> None:
        """Correct the wall clock. No time passes.

        Args:
            by_ms: the correction in milliseconds; negative to set the clock back.
        """
        with self._lock:
            self._first_ms += by_ms

    def now_ms(self) -> int:
        """The wall clock, in epoch milliseconds."""
        return self._first_ms + round(self._passed_s * 1000)

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._passed_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait for an event. If it is not set, the time passes at once.

        Args:
            event: the event.
            timeout_s: how long to wait at most, in seconds.

        Returns:
            True if the event is set.
        """
        if not event.is_set():
            self.waited.append(timeout_s)
            self.advance(timeout_s)
        return event.is_set()
