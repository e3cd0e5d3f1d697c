"""The time that decisions depend on. It is passed in, so that a test moves it (`penstock.testing.SettableClock`)."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """The source of time for decisions."""

    def now_ms(self) -> int:
        """The wall clock, in epoch milliseconds. It may go back."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment. They never fall."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the event is set, at most that long. Returns True if it is set."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)


SYSTEM_CLOCK = SystemClock()
