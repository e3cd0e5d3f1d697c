"""The metrics of a container's side inputs."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.metrics.snapshot import CounterValue, GaugeValue, MetricId, Snapshot, TimerValue, Value
from penstock.side.fill.filler import SideFiller
from penstock.side.fill.group import SideGroup
from penstock.side.fill.parts import SidePart

LAG = "side-inputs-lag"
"""Messages that a store does not have yet. Each partition has another gauge, whose name ends with the partition."""
CATCHING_UP = "side-inputs-catching-up"
FAILING = "side-inputs-failing"


def side_metrics(filler: SideFiller, container: str) -> Snapshot:
    """The metrics of this moment. Those of a store that all tasks share are the container's, others are the task's."""
    found: dict[MetricId, Value] = {}
    troubles = filler.troubles()
    for group in filler.groups:
        lags = group.lag()
        for part in group.parts:
            source = f"container {container}" if part.task is None else f"Partition {part.task}"
            for name, value in _of_part(filler, group, part):
                found[MetricId(source, f"store.{part.spec.name}", name)] = value
            lag = lags.get(part, {})
            by_name = {f"{LAG}-{ssp}": behind for ssp, behind in lag.items()}
            gauges = {**by_name, LAG: sum(lag.values()), FAILING: int(group in troubles)}
            gauges[CATCHING_UP] = int(not filler.caught_up.is_set())
            for name, number in gauges.items():
                found[MetricId(source, f"store.{part.spec.name}", name)] = GaugeValue(number)
    return Snapshot(found)


def _of_part(filler: SideFiller, group: SideGroup, part: SidePart) -> Iterator[tuple[str, Value]]:
    counts = group.counts[part]
    yield "side-inputs-messages", CounterValue(counts.messages)
    yield "side-inputs-flushes", CounterValue(counts.flushes)
    yield "side-inputs-rebuilds", CounterValue(counts.rebuilds)
    yield "side-inputs-failures", CounterValue(filler.failures[group])
    if filler.bootstrap_s is not None:
        took_ns = int(filler.bootstrap_s * 1e9)
        yield "side-inputs-bootstrap-ns", TimerValue(1, took_ns, took_ns)
