"""Counters, gauges and timers, as Samza has them. Each may be used by several threads."""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.metrics.snapshot import CounterValue, GaugeValue, TimerValue


class Counter:
    """A number of events. It only grows, unless `dec` takes something back. `MetricsRegistry.new_counter` makes one.

    Thread-safe. `count` is the number so far.

    Example:
        >>> seen = Counter()
        >>> seen.inc()
        >>> seen.inc(2)
        >>> seen.count
        3
    """

    __slots__ = ("_lock", "count")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def inc(self, n: int = 1) -> None:
        """Add events.

        Args:
            n: how many.

        Raises:
            TypeError: it is not a whole number.
        """
        events = operator.index(n)
        with self._lock:
            self.count += events

    def read(self, *, reset: bool = False) -> CounterValue:
        """The present value.

        Args:
            reset: begin at 0 again.
        """
        with self._lock:
            value = CounterValue(self.count)
            if reset:
                self.count = 0
        return value

    def dec(self, n: int = 1) -> None:
        """Take events back.

        Args:
            n: how many.
        """
        self.inc(-n)


class Gauge:
    """A number that goes up and down, such as the length of a queue. `MetricsRegistry.new_gauge` makes one.

    Thread-safe. `value` is the number that was set last.

    Example:
        >>> waiting = Gauge(0)
        >>> waiting.set(7)
        >>> waiting.value
        7
    """

    __slots__ = ("value",)

    def __init__(self, value: float = 0) -> None:
        """Make a gauge.

        Args:
            value: the first number.
        """
        self.set(value)

    def set(self, value: float) -> None:
        """Replace the number.

        Args:
            value: the new number. NaN and the infinities are not shown in JSON.

        Raises:
            TypeError: it is not a number.
        """
        self.value = value if type(value) is int or type(value) is float else _number(value)

    def read(self, *, reset: bool = False) -> GaugeValue:
        """The present value.

        Args:
            reset: changes nothing: a gauge keeps its number.
        """
        return GaugeValue(self.value)


class Timer:
    """Measures durations: their number, their sum and the longest. `MetricsRegistry.new_timer` makes one.

    Thread-safe. `count`, `total_ns` and `max_ns` are the values so far; the latter two are in nanoseconds.

    Example:
        >>> lookups = Timer()
        >>> lookups.update(1_500)
        >>> lookups.update(500)
        >>> lookups.count, lookups.total_ns, lookups.max_ns
        (2, 2000, 1500)
    """

    __slots__ = ("_lock", "count", "max_ns", "total_ns")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0
        self.total_ns = 0
        self.max_ns = 0

    def update(self, duration_ns: int) -> None:
        """Count one more duration.

        Args:
            duration_ns: the duration in nanoseconds.

        Raises:
            TypeError: it is not a whole number.
        """
        took = operator.index(duration_ns)
        with self._lock:
            self.count += 1
            self.total_ns += took
            self.max_ns = max(self.max_ns, took)

    def read(self, *, reset: bool = False) -> TimerValue:
        """The present value.

        Args:
            reset: begin at 0 again.
        """
        with self._lock:
            value = TimerValue(self.count, self.total_ns, self.max_ns)
            if reset:
                self.count = self.total_ns = self.max_ns = 0
        return value

    @contextmanager
    def time(self) -> Iterator[None]:
        """Measure a block of code, even one that raises.

        Example:
            >>> lookups = Timer()
            >>> with lookups.time():
            ...     found = {"a": 1}.get("a")
            >>> lookups.count
            1
        """
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            self.update(time.perf_counter_ns() - began)


def _number(value: object) -> float:
    if isinstance(value, (str, bytes, bytearray)) or not hasattr(value, "__float__"):
        raise TypeError(f"a gauge takes a number, not {value!r}")
    return float(value)
