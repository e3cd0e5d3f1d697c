"""The work of a drain, counted from the reports of its batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.drain.progress import StageDrain
from penstock.driver.feed.boundary import Boundary
from penstock.graph.topology import Topology
from penstock.runtime.reports import Report

_FIELDS = {"panes-fired": "panes", "timers-fired": "timers", "without-partner": "joined", "joined-later": "joined"}
"""Counter of an operator → the field of StageDrain that it is added to."""


class DrainTally:
    """Counts what the stages process from the request to drain on. Used by the run loop's thread."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._settled: Counter[tuple[int, str]] = Counter()
        """(stage, field) → count, in batches that no rewind drops."""
        self._batches: dict[int, Counter[tuple[int, str]]] = {}
        """Batch after the last checkpoint → the same counts."""

    def clear(self) -> None:
        self._settled.clear()
        self._batches.clear()

    def add(self, batch: int, reports: Iterable[Report]) -> None:
        found = self._batches[batch] = Counter()
        for report in reports:
            is_sink = report.stage == self._topology.sink
            found[report.stage, "messages"] += sum(report.written.values()) if is_sink else report.messages
            for _, _, name, _, numbers in report.metrics:
                if name in _FIELDS:
                    found[report.stage, _FIELDS[name]] += int(numbers[0])

    def settle(self, batch: int) -> None:
        for number in [number for number in self._batches if number <= batch]:
            self._settled.update(self._batches.pop(number))

    def rewind(self, batch: int) -> None:
        self.settle(batch)
        self._batches.clear()

    def stages(self, boundary: Boundary) -> tuple[StageDrain, ...]:
        counts = self._settled + sum(self._batches.values(), Counter())
        left, topology = unread_before(self._topology, boundary), self._topology
        names = {stage.number: tuple(op.id for op in stage.operators) for stage in topology.stages}
        for writing in (topology.outbox, topology.sink):
            if writing is not None:
                names[writing] = tuple(map(str, topology.streams_of(writing)))
        return tuple(
            StageDrain(
                stage,
                own,
                counts[stage, "messages"],
                counts[stage, "panes"],
                counts[stage, "timers"],
                counts[stage, "joined"],
                left.get(stage, 0),
                boundary.closed or (boundary.closed_operators | boundary.drained_operators).issuperset(own),
            )
            for stage, own in names.items()
        )


def unread_before(topology: Topology, boundary: Boundary) -> dict[int, int]:
    """Stage → messages that wait for it in durable intermediate streams. Gaps in the offsets count as messages."""
    found = Counter[int]()
    for op in topology.graph.intermediates:
        if (stream := boundary.intermediate.get(op.stream)) is not None:
            found[topology.stage_of(op.id)] += stream.left()
    return found
