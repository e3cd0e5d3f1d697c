"""SIGTERM and Ctrl-C while a job is started and while it runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from penstock.driver.handle.program import SIGNALS, StopCount

_TOO_MANY = 3


class StopSignals:
    """Counts requests to stop. Main thread only, as a context manager.

    Until `count_only`, the first signal raises KeyboardInterrupt, so that a start can be abandoned wherever it is.
    Others are only counted: the handler does nothing else, whatever the main thread is doing. The third one ends the
    process.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._stops = StopCount(clock)
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._interrupt)
        return self

    @property
    def count(self) -> int:
        return self._stops.count

    def count_only(self, already: int = 0) -> None:
        """From now on signals are counted, from `already` at least. Call it after Spark's start, which installs a
        handler of its own."""
        self._stops.count = max(self._stops.count, already)
        for number in SIGNALS:
            signal.signal(number, self._counted)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._stops.signalled()
        self.count_only()
        raise KeyboardInterrupt

    def _counted(self, number: int, frame: FrameType | None) -> None:
        self._stops.signalled()
        if self._stops.count >= _TOO_MANY:
            os._exit(128 + number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._stops.count:  # otherwise this process is ending, and another signal would only print a traceback
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
