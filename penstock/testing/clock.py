"""A clock that only the test moves."""

from __future__ import annotations

import threading


class SettableClock:
    """Time passes only when the test says so, and while somebody waits: a wait returns at once, and the time it would
    have taken has passed. Thread-safe.

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
        """`now_ms` is what the wall clock says first, in epoch milliseconds."""
        self._first_ms = now_ms
        self._passed_s = 0.0
        self._lock = threading.Lock()
        self.waited: list[float] = []
        """Every wait for an event that was not set, in seconds."""

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._passed_s += seconds

    def correct(self, by_ms: int) -> None:
        """The wall clock is corrected, forwards or backwards. No time passes."""
        with self._lock:
            self._first_ms += by_ms

    def now_ms(self) -> int:
        """The wall clock, in epoch milliseconds."""
        return self._first_ms + round(self._passed_s * 1000)

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._passed_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Whether the event is set. If it is not, the time passes."""
        if not event.is_set():
            self.waited.append(timeout_s)
            self.advance(timeout_s)
        return event.is_set()
