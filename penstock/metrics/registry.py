"""Counters, gauges and timers, as Samza has them, and the registries that make them and find them again (Samza's
MetricsRegistry). Each metric may be used by several threads.
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

from penstock.metrics.snapshot import CounterValue, GaugeValue, MetricId, Snapshot, TimerValue


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


_Metric: TypeAlias = Counter | Gauge | Timer
M = TypeVar("M", Counter, Gauge, Timer)


class MetricsRegistry:
    """The metrics of one source: `context.metrics` of a task, or `BackendContext.metrics` of a state backend.

    Making a metric of the same group and name again returns the existing one. Thread-safe.

    Example:
        >>> registry = MetricsRegistry("Partition 0")
        >>> late = registry.new_counter("orders", "late")
        >>> late.inc()
        >>> registry.new_counter("orders", "late") is late
        True
        >>> registry.snapshot().to_dict()
        {'Partition 0': {'orders': {'late': 1}}}
    """

    def __init__(self, source: str, prefix: str = "") -> None:
        """
        Args:
            source: the source of the metrics, for example `Partition 0`.
            prefix: goes in front of every group.
        """
        self.source = source
        self._prefix = prefix
        self._lock = threading.Lock()
        self._metrics: dict[MetricId, _Metric] = {}

    def new_counter(self, group: str, name: str) -> Counter:
        """A counter, which begins at 0.

        Args:
            group: the subject; in a task it is shown as `user.<group>`.
            name: its name in the group.

        Raises:
            ValueError: the name is another kind of metric.
        """
        return self._of(group, name, Counter)

    def new_gauge(self, group: str, name: str, value: float = 0) -> Gauge:
        """A gauge.

        Args:
            group: the subject; in a task it is shown as `user.<group>`.
            name: its name in the group.
            value: the first number of a new one.

        Raises:
            ValueError: the name is another kind of metric.

        Example:
            >>> waiting = MetricsRegistry("Partition 0").new_gauge("orders", "waiting")
            >>> waiting.set(3)
        """
        return self._of(group, name, Gauge, value)

    def new_timer(self, group: str, name: str) -> Timer:
        """A timer.

        Args:
            group: the subject; in a task it is shown as `user.<group>`.
            name: its name in the group.

        Raises:
            ValueError: the name is another kind of metric.

        Example:
            >>> lookups = MetricsRegistry("Partition 0").new_timer("orders", "lookup")
            >>> lookups.update(duration_ns=1_500)
        """
        return self._of(group, name, Timer)

    def _of(self, group: str, name: str, kind: type[M], *first: float) -> M:
        key = MetricId(self.source, f"{self._prefix}{group}", name)
        found = self._metrics.get(key)
        if found is None:
            with self._lock:
                found = self._metrics.setdefault(key, kind(*first))
        if not isinstance(found, kind):
            raise ValueError(  # noqa: TRY004 - the name is wrong, not the type of an argument
                f"metric `{name}` of group `{group}` is a {type(found).__name__.lower()} already; give the "
                f"{kind.__name__.lower()} another name"
            )
        return found

    def snapshot(self) -> Snapshot:
        """The present values of all metrics."""
        return self._read(reset=False)

    def take(self) -> Snapshot:
        """The present values of all metrics; counters and timers begin at 0 again."""
        return self._read(reset=True)

    def _read(self, *, reset: bool) -> Snapshot:
        with self._lock:
            metrics = list(self._metrics.items())
        return Snapshot({key: metric.read(reset=reset) for key, metric in metrics})
