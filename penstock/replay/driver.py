"""Notes the batches of a run for its checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec

from penstock.batch.batch import Positions
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.sections import SectionValues
from penstock.driver.context import RunContext
from penstock.driver.feed.boundary import Boundary
from penstock.driver.part import DriverPart
from penstock.replay.wing import REPLAY, ReadUpTo, joined, section_of
from penstock.runtime.reports import Report
from penstock.wire.protocol import Markers

_MOST = 2048
"""Batches that are kept. Beyond it, two neighbours count as one: a job may commit rarely."""


class BatchNotes(DriverPart):
    """The batches since the last checkpoint in the log. Thread-safe."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self._lock = threading.Lock()
        self._positions: Positions = {}
        self._notes: list[tuple[int, ReadUpTo]] = []
        """By the number of each batch, ascending."""

    def begin(self, boundary: Boundary) -> None:
        with self._lock:
            self._positions, self._notes = boundary.positions, []

    def counted(self, reports: Sequence[Report], boundary: Boundary, committed: int) -> None:
        read = {at: to for at, to in boundary.positions.items() if self._positions.get(at) != to}
        with self._lock:
            self._positions = boundary.positions
            self._notes.append((boundary.batch, ReadUpTo(boundary.batch_time_ms, read)))
            if len(self._notes) == _MOST:
                pairs = joined([each for _, each in self._notes])
                self._notes = [(self._notes[2 * place + 1][0], each) for place, each in enumerate(pairs)]

    def sections(self, boundary: Boundary, uploaded: Sequence[msgspec.Raw]) -> SectionValues:
        with self._lock:
            return {REPLAY: section_of([each for number, each in self._notes if number <= boundary.batch])}

    def recorded(self, record: CheckpointRecord, markers: Markers, *, abandoned: bool) -> None:
        with self._lock:
            self._notes = [(number, each) for number, each in self._notes if number > record.batch]
