"""The time that each operator of a stage takes, without the operators behind it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import TypeVar

from penstock.metrics.registry import MetricsRegistry

A = TypeVar("A")
B = TypeVar("B")

REPORTED_NS = 10_000_000
"""An operator is reported once it has taken this long: in a small batch of many tasks most take less."""


class _SpentTime:
    """The time of one operator since it was reported last."""

    __slots__ = ("ns", "operator")

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.ns = 0


class OperatorClock:
    """Times calls that take many messages at once. If an operator emits row by row, the operators behind it in the
    stage count with it: a clock around each message would cost more than some operators do.

    Used by one thread at a time; any thread may read `current`.
    """

    __slots__ = ("_mark", "_now", "_spent")

    def __init__(self) -> None:
        self._spent: dict[str, _SpentTime] = {}
        self._now = _SpentTime("")
        """The time in no operator is not looked at."""
        self._mark = 0

    @property
    def current(self) -> str:
        """The operator that is busy, by its id; empty if none is."""
        return self._now.operator

    def timed(self, operator: str, call: Callable[[A], B]) -> Callable[[A], B]:
        """The call, which counts as the operator's, without calls in it that are timed as well."""
        own = self._of(operator)

        def timed(given: A) -> B:
            outer, now = self._now, perf_counter_ns()
            outer.ns += now - self._mark
            self._mark, self._now = now, own
            try:
                return call(given)
            finally:
                now = perf_counter_ns()
                own.ns += now - self._mark
                self._mark, self._now = now, outer

        return timed

    def take(self, metrics: MetricsRegistry) -> None:
        """Move the times that are long enough to the metrics, as `busy-ns`."""
        for spent in self._spent.values():
            if spent.ns >= REPORTED_NS:
                metrics.new_timer(spent.operator, "busy-ns").update(spent.ns)
                spent.ns = 0

    def _of(self, operator: str) -> _SpentTime:
        return self._spent.setdefault(operator, _SpentTime(operator))
