"""Reports a drain: in the log, on the progress board, and in the job's folder.

Its work is counted from the reports of its batches.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from penstock.base.retry import Clock
from penstock.drain.wing import DRAIN_WING, DrainPhase, DrainProgress, StageDrain
from penstock.driver.feed.boundary import Boundary
from penstock.driver.show.progress import ProgressBoard
from penstock.errors import PenstockError
from penstock.graph.topology import Topology
from penstock.job.board import Board
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


logger = logging.getLogger(__name__)
_SHOW_SECONDS = 1.0


class DrainReport:
    """Shows how far a drain is. Used by the run loop's thread. An error is logged: it never changes the outcome of a
    drain."""

    def __init__(
        self, run_id: str, tally: DrainTally, shown: Board[DrainProgress], board: ProgressBoard, clock: Clock
    ) -> None:
        self._run_id = run_id
        self._tally = tally
        self._shown = shown
        self._board = board
        self._clock = clock
        self._began = self._shown_at = clock.monotonic()
        self._progress: DrainProgress | None = None
        """The drain as of the last batch that ended; None if there is none."""
        self._logged: set[int] = set()
        """The stages whose end was logged."""

    def _tell(self, progress: DrainProgress | None) -> None:
        self._progress = progress
        self._board.tell(DRAIN_WING.name, None if progress is None else lambda: self._at_this_moment(progress))

    def _at_this_moment(self, progress: DrainProgress) -> DrainProgress:
        """The progress, with the reason why the running batch waits."""
        waits_for = self._board.waits_for() if self._board.running is not None else progress.waits_for
        return replace(progress, waits_for=waits_for)

    def begin(self, requests: Sequence[str], boundary: Boundary) -> None:
        """Show that the run drains from this boundary on. Called again when more requests were found."""
        if self._progress is None:
            self._began = self._clock.monotonic()
        self._update(requests, boundary)
        self._show()

    def rewind(self, boundary: Boundary) -> None:
        self._tally.rewind(boundary.batch)
        self._logged.clear()
        if (drain := self._progress) is not None:
            self._update(drain.requests, boundary)

    def count(self, boundary: Boundary, reports: Sequence[Report], committed: int) -> None:
        """Count the batch that ended at this boundary, show the progress, and log the stages that have drained. The
        last checkpoint is of the batch `committed`."""
        self._tally.add(boundary.batch, reports)
        self._tally.settle(committed)
        if (drain := self._progress) is None:
            return
        for stage in self._update(drain.requests, boundary).stages:
            if stage.ended and stage.stage not in self._logged:
                self._logged.add(stage.stage)
                logger.info("%s; it has drained", stage)
        if self._clock.monotonic() - self._shown_at >= _SHOW_SECONDS:
            self._show()

    def committing(self, requests: Sequence[str]) -> None:
        self._phase("committing", requests=tuple(requests))

    def finished(self) -> None:
        """Show and log the summary: the drained record is in the log."""
        self._phase("drained")
        if self._progress is not None:
            took_s = self._clock.monotonic() - self._began
            logger.info("the run has drained in %.1f s. Since the request: %s", took_s, self._progress)

    def cancelled(self) -> None:
        self._tally.clear()
        self._logged.clear()
        self._tell(None)

    def _phase(self, phase: DrainPhase, **more: Any) -> None:
        if self._progress is not None:
            self._tell(replace(self._progress, phase=phase, **more))
            self._show()

    def _update(self, requests: Sequence[str], boundary: Boundary) -> DrainProgress:
        drain = DrainProgress(self._run_id, tuple(requests), stages=self._tally.stages(boundary))
        self._tell(drain)
        return drain

    def _show(self) -> None:
        self._shown_at = self._clock.monotonic()
        drain = self._progress
        try:
            if drain is not None:
                self._shown.put(drain)
        except PenstockError as error:
            logger.info("the progress of the drain was not written to the job's folder: %s", error)
