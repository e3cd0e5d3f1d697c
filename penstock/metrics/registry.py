"""Registries, which make metrics and find them again (Samza's MetricsRegistry)."""

from __future__ import annotations

import threading
from typing import TypeAlias, TypeVar

from penstock.metrics.snapshot import MetricId, Snapshot
from penstock.metrics.values import Counter, Gauge, Timer

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
