"""SIGTERM and Ctrl-C while a job is started and while it runs."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Counts requests to stop. Main thread only, as a context manager.

    Until `count_only`, a signal raises KeyboardInterrupt, so that a start can be abandoned wherever it is. Afterwards
    it is only counted: the handler does nothing else, whatever the main thread is doing. A third one has its former
    effect again.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._interrupt)
        return self

    def count_only(self, already: int = 0) -> None:
        """From now on signals are counted, from `already` on. Call it after Spark's start, which installs a handler of
        its own."""
        self.count = already
        for number in _SIGNALS:
            signal.signal(number, self._counted)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def _counted(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count >= 2:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
