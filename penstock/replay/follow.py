"""The feed of a shadow that makes the batches of another job, one after the other, as that one's checkpoints name them.

So both jobs are at the same boundary wherever that one has a checkpoint: the same messages are read, the same time has
passed, and the same watermarks have been reached.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import TypeAlias

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.firing import NO_WATERMARK
from penstock.base.retry import Clock
from penstock.base.wording import listed
from penstock.batch.batch import Ends, Positions, TaskSsp, find_losses
from penstock.batch.portions import (
    NOTHING,
    BatchBounds,
    BatchPace,
    BatchRanges,
    Portion,
    PortionRead,
    plan_ranges,
    read_by_input,
)
from penstock.batch.watermarks import TIME, GivenWatermark
from penstock.checkpoint.forks import read_home
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.settings import JobSettings
from penstock.driver.feed.boundary import Boundary
from penstock.driver.feed.event_time import EventTime
from penstock.driver.feed.feed import Feed, Idle, Next, PlannedBatch
from penstock.errors import IncompatibleError, NotFoundError
from penstock.graph.specs import ApplicationGraph
from penstock.replay.wing import REPLAY, Followed, FollowProgress, Line, ReadUpTo, batches_of, of_other
from penstock.start.job import ClaimedJob
from penstock.system.base import OffsetRange

LOOK_SECONDS = 0.2
"""The time between two looks for a new checkpoint."""
_ByPartition: TypeAlias = Mapping[SystemStreamPartition, int]


def accepted_lines(records: Sequence[CheckpointRecord], line: int) -> frozenset[int]:
    """The lines that continue one by reading alone, and itself. Pure.

    Args:
        records: the retained checkpoints, oldest first.
        line: the epoch of the line.
    """
    lines, ids = {line}, set[str]()
    for record in records:
        own = record.section(REPLAY).line
        if own.epoch in lines or own.follows in ids:
            lines.add(own.epoch)
            ids.add(str(record.id))
    return frozenset(lines)


def new_records(records: Sequence[CheckpointRecord], followed: Followed) -> Iterator[CheckpointRecord]:
    """The retained checkpoints that continue what is followed, oldest first. Pure.

    Raises:
        IncompatibleError: the last one does not: positions or state were changed in between.
    """
    lines = accepted_lines(records, followed.line)
    if records and records[-1].section(REPLAY).line.epoch not in lines:
        raise IncompatibleError(
            f"checkpoint {records[-1].id} of job `{followed.job}` does not follow by reading alone from where this job "
            "began to make its batches: a command or a start has changed state or positions, or an input is new. Fork "
            "that job again"
        )
    return (record for record in records if record.section(REPLAY).line.epoch in lines)


def begin_to_follow(job: ClaimedJob, wanted: str, log: CheckpointLog) -> Followed:
    """Where a run begins to make the batches of another job, or goes on to.

    Args:
        wanted: the name and id of that job.
        log: its log.

    Raises:
        IncompatibleError: this job does not begin where a checkpoint of that one is.
        PenstockError: the log cannot be read.
    """
    record = job.start.restore_from
    own = Followed() if record is None else record.section(REPLAY).followed
    if own.job == wanted:
        return own
    records, home = log.read("report").restorable, read_home(job.objects, job.paths)
    line = Line() if not records else records[-1].section(REPLAY).line
    if record is not None and line.epoch and line.follows == of_other(job.paths.root, str(record.id)):
        return Followed(wanted, line.epoch)  # that one has taken over from this one
    base = None if home is None or home.parent.root != wanted else home.checkpoint
    line = next((each.section(REPLAY).line for each in records if str(each.id) == base), Line())
    if not line.epoch:
        raise IncompatibleError(
            f"`{JobSettings.replay_follows.name}`: job `{job.paths.root}` is no fork of a retained checkpoint of job "
            f"`{wanted}` that says which batches came before it. Fork that job (`penstock fork {wanted} NAME`)"
        )
    return Followed(wanted, line.epoch)


class ParentLog:
    """The checkpoints of the job that is followed."""

    def __init__(self, log: CheckpointLog, followed: Followed) -> None:
        self._log = log
        self.followed = followed

    def behind(self, made: str) -> list[CheckpointRecord]:
        """The checkpoints behind the one with this id, oldest first; all that are retained, if it is empty.

        Raises:
            IncompatibleError: they do not follow by reading alone.
            NotFoundError: there is no such job any more.
            PenstockError: its log cannot be read.
        """
        records = self._log.read("report").restorable
        if not records:
            raise NotFoundError(f"job `{self.followed.job}` has no checkpoint any more: it was deleted")
        found = list(new_records(records, self.followed))
        ids = [str(record.id) for record in found]
        return found[ids.index(made) + 1 :] if made in ids else found


class FollowFeed:
    """Makes the batches of another job, and none beyond its last checkpoint.

    Nothing of the feed has to survive: which of the batches are made follows from the boundary.
    """

    def __init__(
        self,
        feed: Feed,
        ends: Callable[[], Ends],
        parent: ParentLog,
        graph: ApplicationGraph,
        bounds: BatchBounds,
        event_time: EventTime,
        clock: Clock,
        tell: Callable[[Boundary, FollowProgress], None],
    ) -> None:
        """
        Args:
            feed: the one that the run would have; it drains the run.
            ends: returns the present ends of every input partition.
            bounds: of batches of which it is not known how the other job has cut them.
            tell: gets the progress, and the boundary that it is of.
        """
        self._feed = feed
        self._ends = ends
        self._parent = parent
        self._sources = tuple(op.stream for op in graph.sources)
        self._inputs = {op.id: op.stream for op in graph.inputs}
        self._bounds = bounds
        self._event_time = event_time
        self._clock = clock
        self._tell = tell
        self.begin()

    def begin(self) -> None:
        self._feed.begin()
        self._event_time.begin()
        self._pace = BatchPace.first(self._bounds)
        self._left: deque[ReadUpTo | CheckpointRecord] = deque()
        """Batches to make, each checkpoint behind its own."""
        self._made = ""
        self._next_look = 0.0

    def next(self, boundary: Boundary) -> Next:
        """Plan the next batch of the other job.

        Raises:
            IncompatibleError: that job was changed meanwhile, or an input has lost messages.
            PenstockError: its log cannot be read, or an input not be asked.
        """
        while True:
            if not self._left and not self._look():
                return Idle(self._next_look)
            following = self._left[0]
            if isinstance(following, ReadUpTo):
                if (planned := self._batch(boundary, following)) is not None:
                    return planned
            elif (planned := self._raised(boundary, following)) is not None:
                return planned
            else:
                self._made = str(following.id)
            self._left.popleft()
            if isinstance(following, CheckpointRecord):
                caught_up = not self._left
                self._tell(boundary, FollowProgress(self._parent.followed.job, self._made, caught_up))

    def _look(self) -> bool:
        """Look for new checkpoints, if it is time. False if there are none."""
        if (now := self._clock.monotonic()) < self._next_look:
            return False
        for record in self._parent.behind(self._made):
            self._left += [*batches_of(record), record]
        self._next_look = now if self._left else now + LOOK_SECONDS
        return bool(self._left)

    def _batch(self, boundary: Boundary, batch: ReadUpTo) -> PlannedBatch | None:
        """The next batch of the run on the way to the end of this one; None if it is made."""
        upto = _by_partition(batch.positions)
        behind = {at: first for at, first in boundary.positions.items() if first < upto.get(at.ssp, first)}
        of_time_alone = batch.named and not batch.positions and batch.time_ms > boundary.batch_time_ms
        if not behind and not of_time_alone:
            return None
        ends = self._ends()
        if boundary.is_behind or not behind:
            return self._planned(boundary, {}, batch.time_ms, ends)
        wanted = {at.ssp: upto.get(at.ssp, first) for at, first in boundary.positions.items()}
        _refuse_lost(behind, ends, wanted)
        if batch.named:
            portions = {
                at: Portion(OffsetRange(at.ssp, first, wanted[at.ssp]), wanted[at.ssp] - first)
                for at, first in behind.items()
            }
            return self._planned(boundary, portions, batch.time_ms, ends)
        portions = plan_ranges(behind, ends, self._pace, wanted)
        whole = sum(wanted[at.ssp] - first for at, first in behind.items())
        share = sum(each.messages for each in portions.values()) / whole
        passed_ms = round(max(0, batch.time_ms - boundary.batch_time_ms) * min(1.0, share))
        time_ms = boundary.batch_time_ms + passed_ms if boundary.batch_time_ms else batch.time_ms
        return self._planned(boundary, portions, time_ms, ends)

    def _raised(self, boundary: Boundary, record: CheckpointRecord) -> PlannedBatch | None:
        """A batch of time alone, if the other job has come further in event time by its checkpoint, because partitions
        were idle. None: it has not."""
        marks, own = record.section(TIME).watermarks, boundary.watermarks
        given = {
            stream: GivenWatermark(own.get(op, NO_WATERMARK), marks[op])
            for op, stream in self._inputs.items()
            if marks.get(op, NO_WATERMARK) > own.get(op, NO_WATERMARK)
        }
        if not given and not (boundary.is_behind and self._event_time.used):
            return None
        return self._planned(boundary, {}, record.batch_time_ms, self._ends(), given)

    def _planned(
        self,
        boundary: Boundary,
        portions: Mapping[TaskSsp, Portion],
        time_ms: int,
        ends: Ends,
        given: Mapping[SystemStream, GivenWatermark] | None = None,
    ) -> PlannedBatch:
        latest = {ssp: end.upcoming for ssp, end in ends.items()}
        # No partition is idle or ended by itself: the other job may not have found it so in this batch.
        moment = self._event_time.look(boundary, None, time_ms, idle={}, given=given)
        ranges = BatchRanges.group(portions, self._sources) if portions else NOTHING
        return PlannedBatch(ranges, latest, moment)

    def drain(self, boundary: Boundary, operators: Set[str] | None = None) -> Next:
        return self._feed.drain(boundary, operators)

    def has_lost(self, ranges: BatchRanges) -> bool:
        return self._feed.has_lost(ranges)

    def ended(self, took_ms: float, read: Mapping[TaskSsp, PortionRead]) -> None:
        messages = sum(part.messages for part in read.values())
        self._pace = self._pace.after(self._bounds, took_ms, messages, read_by_input(read))
        self._feed.ended(took_ms, read)

    def remaining(self, boundary: Boundary) -> int | None:
        return None


def _by_partition(positions: Positions) -> _ByPartition:
    """By partition, the furthest of its tasks: the other job may have another number of them."""
    found: dict[SystemStreamPartition, int] = {}
    for at, offset in positions.items():
        found[at.ssp] = max(offset, found.get(at.ssp, 0))
    return found


def _refuse_lost(behind: Positions, ends: Ends, wanted: _ByPartition) -> None:
    if losses := find_losses(behind, ends, wanted):
        raise IncompatibleError(
            f"the inputs do not have {listed([str(each) for each in losses])} any more, which the other job has read "
            "since the checkpoint that this one began with. Fork that job again, at a newer checkpoint"
        )
    if short := sorted(str(at.ssp) for at in behind if ends[at.ssp].upcoming < wanted[at.ssp]):
        raise IncompatibleError(
            f"the input {listed([f'`{each}`' for each in short])} ends before what the other job has read: it was "
            "deleted and created again"
        )
