"""The time that decisions depend on. It is passed in, so that a test moves it (`penstock.testing.SettableClock`)."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What decisions know of time."""

    def now_ms(self) -> int:
        """The wall clock, in epoch milliseconds. It may go back."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment. They never fall."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the event is set, at most that long; whether it is set."""
        ...


class SystemClock:
    """This machine's."""

    def now_ms(self) -> int:
        """As `time.time_ns`, in milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """As `time.monotonic`."""
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """As `threading.Event.wait`."""
        return event.wait(timeout_s)


SYSTEM_CLOCK = SystemClock()
