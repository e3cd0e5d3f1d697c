"""The metrics of a container: what its tasks, stores and backends count, and what goes with its beats."""

from __future__ import annotations

import threading

from penstock.metrics.registry import MetricsRegistry
from penstock.metrics.snapshot import GaugeValue, MetricId, Row, Snapshot, Value
from penstock.state.engines.engine import Engine


class EpochMetrics:
    """The registries of a container in one epoch, one for each task. Thread-safe."""

    def __init__(self, source: str = "Partition") -> None:
        """`source`: the word for a task in metric names."""
        self._source = source
        self._lock = threading.Lock()
        self._tasks: dict[int, MetricsRegistry] = {}

    def of_task(self, task: int) -> MetricsRegistry:
        with self._lock:
            if task not in self._tasks:
                self._tasks[task] = MetricsRegistry(f"{self._source} {task}")
            return self._tasks[task]

    def snapshot(self) -> Snapshot:
        with self._lock:
            return Snapshot().merged(*(registry.snapshot() for registry in self._tasks.values()))


class ChangedRows:
    """Filters metrics for the next beat to those that have changed: most metrics of most tasks do not."""

    def __init__(self) -> None:
        self._sent: dict[MetricId, Value] = {}

    def of(self, snapshot: Snapshot) -> list[Row]:
        changed = Snapshot({key: value for key, value in snapshot.items() if self._sent.get(key) != value})
        self._sent.update(changed)
        return changed.rows()


def engine_metrics(task: int, store: str, engine: Engine) -> Snapshot:
    gauges = {name: GaugeValue(number) for name, number in engine.statistics().items()}
    values: dict[str, Value] = {**gauges, **engine.measurements()}
    return Snapshot({MetricId(f"Partition {task}", f"store.{store}", name): each for name, each in values.items()})
