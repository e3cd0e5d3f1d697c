"""Notes the batches of a run for its checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from penstock.batch.batch import Positions, to_positions
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.sections import SectionValues
from penstock.driver.context import RunContext
from penstock.driver.feed.boundary import Boundary
from penstock.driver.part import DriverPart
from penstock.replay.wing import MOST_NUMBERS, REPLAY, Line, ReadUpTo, joined, numbers_of, section_of
from penstock.runtime.reports import Report
from penstock.start.job import ClaimedJob
from penstock.wire.protocol import Markers

_MOST = 10 * MOST_NUMBERS
"""Numbers that are kept for a commit that does not come. Beyond it, two neighbours count as one batch."""


class BatchNotes(DriverPart):
    """The batches since the last checkpoint in the log. Thread-safe."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self._lock = threading.Lock()
        self._line = _line(run.job)
        self._positions: Positions = {}
        self._begins = ReadUpTo(0, {})
        self._notes: list[tuple[int, ReadUpTo]] = []
        """By the number of each batch, ascending."""
        self._numbers = 0

    def begin(self, boundary: Boundary) -> None:
        with self._lock:
            self._positions, self._notes, self._numbers = boundary.positions, [], 0
            self._begins = ReadUpTo(boundary.batch_time_ms, boundary.positions)

    def counted(self, reports: Sequence[Report], boundary: Boundary, committed: int) -> None:
        read = {at: to for at, to in boundary.positions.items() if self._positions.get(at) != to}
        with self._lock:
            self._positions = boundary.positions
            self._notes.append((boundary.batch, ReadUpTo(boundary.batch_time_ms, read)))
            self._numbers += numbers_of([self._notes[-1][1]])
            if self._numbers > _MOST and len(self._notes) > 1:
                pairs = joined([each for _, each in self._notes])
                last = len(self._notes) - 1
                self._notes = [(self._notes[min(2 * at + 1, last)][0], each) for at, each in enumerate(pairs)]
                self._numbers = numbers_of(pairs)

    def sections(self, boundary: Boundary, uploaded: Sequence[msgspec.Raw]) -> SectionValues:
        with self._lock:
            own = [each for number, each in self._notes if number <= boundary.batch]
            return {REPLAY: section_of(own, self._begins, self._line)}

    def recorded(self, record: CheckpointRecord, markers: Markers, *, abandoned: bool) -> None:
        with self._lock:
            for _, each in (done := [note for note in self._notes if note[0] <= record.batch]):
                self._begins = ReadUpTo(each.time_ms, {**self._begins.positions, **each.positions})
            self._notes = self._notes[len(done) :]
            self._numbers = numbers_of([each for _, each in self._notes])


def _line(job: ClaimedJob) -> Line:
    """The line of the run's checkpoints. It is that of the last checkpoint, if the run continues just there; otherwise
    another one."""
    start, new = job.start, Line(job.claim.epoch)
    record = start.restore_from
    if record is None or start.clears_state or start.reset.operators or record.is_closed or record.drained_operators:
        return new
    before = to_positions(record.next_offsets)
    if any(before.get(at) != offset for at, offset in start.positions.items()):
        return new
    line = record.section(REPLAY).line
    if line.epoch and record == job.log.known().latest_before(job.claim):
        return line
    return replace(new, follows=str(record.id))
