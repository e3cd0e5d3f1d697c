"""Notes the batches of a run for its checkpoints, and makes those of another job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from penstock.batch.batch import Ends, Positions
from penstock.batch.portions import BatchBounds
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.sections import SectionValues
from penstock.config.settings import JobSettings
from penstock.driver.feed.boundary import Boundary
from penstock.driver.feed.event_time import EventTime
from penstock.driver.feed.feed import Feed, OffsetFeed
from penstock.driver.part import DriverPart, RunContext
from penstock.errors import ConfigError
from penstock.job.paths import JobPaths
from penstock.replay.follow import FollowFeed
from penstock.replay.lines import ParentLog, begin_to_follow, goes_on_from
from penstock.replay.wing import (
    MOST_NUMBERS,
    REPLAY,
    Followed,
    FollowProgress,
    Line,
    ReadUpTo,
    joined,
    numbers_of,
    section_of,
)
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
        self._followed = Followed()
        self._made: list[tuple[int, str]] = []
        """Checkpoints of the job that is followed, each with the batch behind which it was reached, ascending."""

    def feed(self, feed: Feed, ends: Callable[[], Ends]) -> Feed:
        """Raises IncompatibleError if the job cannot make the batches of the other one; or PenstockError."""
        job, settings = self.run.job, self.run.job.config.job
        if (wanted := settings.replay_follows) is None:
            return feed
        if not isinstance(feed, OffsetFeed):
            raise ConfigError(f"`{JobSettings.replay_follows.name}`: a query chooses the batches of this run")
        log = CheckpointLog(job.objects, JobPaths(*wanted.rsplit("-", 1)))
        self._followed = begin_to_follow(job, wanted, log)
        return FollowFeed(
            feed,
            ends,
            ParentLog(log, self._followed),
            job.topology.graph,
            BatchBounds(settings.batch_max_messages, settings.batch_max_bytes, settings.batch_target_ms),
            EventTime.of(job.topology.graph, job.config),
            self.run.clock,
            self._reached,
        )

    def _reached(self, boundary: Boundary, progress: FollowProgress) -> None:
        with self._lock:
            if progress.made and (not self._made or self._made[-1][1] != progress.made):
                self._made.append((boundary.batch, progress.made))
        self.run.board.tell(self.wing, progress)

    def begin(self, boundary: Boundary) -> None:
        with self._lock:
            self._positions, self._notes, self._numbers = boundary.positions, [], 0
            self._made = []
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
            made = [checkpoint for batch, checkpoint in self._made if batch <= boundary.batch]
            followed = replace(self._followed, made=made[-1]) if made else self._followed
            section = section_of(own, self._begins, self._line)
            return {REPLAY: replace(section, followed=followed, behind=boundary.is_behind)}

    def recorded(self, record: CheckpointRecord, markers: Markers, *, abandoned: bool) -> None:
        with self._lock:
            for _, each in (done := [note for note in self._notes if note[0] <= record.batch]):
                self._begins = ReadUpTo(each.time_ms, {**self._begins.positions, **each.positions})
            self._notes = self._notes[len(done) :]
            self._numbers = numbers_of([each for _, each in self._notes])
            older = sum(batch <= record.batch for batch, _ in self._made)
            self._made = self._made[max(0, older - 1) :]


def _line(job: ClaimedJob) -> Line:
    """The line of the run's checkpoints. It is that of the last checkpoint, if the run continues just there; otherwise
    another one."""
    start, new = job.start, Line(job.claim.epoch)
    record = start.restore_from
    if record is None or not goes_on_from(job, record):
        return new
    line = record.section(REPLAY).line
    if line.epoch and record == job.log.known().latest_before(job.claim):
        return line
    return replace(new, follows=str(record.id))
