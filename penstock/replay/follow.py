"""The feed of a shadow that makes the batches of another job, one after the other, as that one's checkpoints name them.

So both jobs are at the same boundary wherever that one has a checkpoint: the same messages are read, the same time has
passed, and the same watermarks have been reached.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TypeAlias

from penstock.api.ssp import SystemStreamPartition
from penstock.api.time.firing import NO_WATERMARK
from penstock.base.retry import Clock
from penstock.base.wording import listed
from penstock.batch.batch import Ends, Positions, TaskSsp, find_losses, to_positions
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
from penstock.batch.watermarks import TIME, Watermarks
from penstock.checkpoint.record import CheckpointRecord
from penstock.driver.feed.boundary import Boundary
from penstock.driver.feed.event_time import EventTime
from penstock.driver.feed.feed import Feed, Idle, Next, PlannedBatch
from penstock.errors import IncompatibleError, RetryableError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import own_stores
from penstock.replay.lines import ParentLog
from penstock.replay.wing import FollowProgress, ReadUpTo, batches_of
from penstock.system.base import OffsetRange

logger = logging.getLogger(__name__)

LEAST_SECONDS, MOST_SECONDS = 0.2, 1.0
"""The time between two looks for a new checkpoint: a tenth of the time since the last one came, within these bounds."""
_IN_TIME = 8
"""So many batches and checkpoints may wait without any haste: a job that is as busy as this one always has some."""
_MOST_JOINED = 64
_ByPartition: TypeAlias = Mapping[SystemStreamPartition, int]


def in_step(
    marks: Watermarks,
    upstream: Mapping[str, Sequence[str]],
    theirs: Mapping[str, int],
    due: Mapping[str, int],
    *,
    reached: bool,
) -> Watermarks:
    """The watermarks of a batch in which no operator comes further than the other job had at its next checkpoint. Pure.

    Otherwise what is due would fire in one job before the change and in the other one behind it: in both, or in none.

    Args:
        marks: those that follow from the messages that were read.
        upstream: operator → those before it; inputs have none. Upstream first.
        theirs: the watermarks of the other job at that checkpoint, of the operators that both have.
        due: operator → the time of its oldest timer.
        reached: this batch is the last one before that checkpoint: each operator comes as far as in the other job.
    """
    firing, held = dict[str, int](), dict[str, int]()
    for op, before in upstream.items():
        own = marks.firing.get(op, NO_WATERMARK)
        found = min((held.get(each, firing[each]) for each in before), default=own)
        if (mark := theirs.get(op)) is not None:
            found = mark if reached else min(found, mark)
        firing[op] = max(marks.late.get(op, NO_WATERMARK), found)
        if op in due and due[op] <= firing[op]:
            held[op] = due[op] - 1
    return Watermarks(marks.late, {op: mark for op, mark in firing.items() if mark > NO_WATERMARK}, held)


class FollowFeed:
    """Makes the batches of another job, and none beyond its last checkpoint.

    Nothing of the feed has to survive: which of the batches are made follows from the boundary. A checkpoint of the
    other job is made if this run is exactly where that job was, in positions and in the event time of each operator
    that both have.
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
            feed: the one that the run would have.
            ends: returns the present ends of every input partition.
            bounds: of batches of which it is not known how the other job has cut them.
            tell: gets the progress, and the boundary that it is of.
        """
        self._feed = feed
        self._ends = ends
        self._parent = parent
        self._sources = tuple(op.stream for op in graph.sources)
        self._bounds = bounds
        self._event_time = event_time
        self._graph = graph
        self._upstream = graph.time_sources() if event_time.used else {}
        self._stores = {op.id: own_stores([op.state_id]) for op in graph.operators}
        """Operator → the stores in which it would keep what waits for time."""
        self._clock = clock
        self._tell = tell
        self._said_unnamed = False
        self.begin()

    def begin(self) -> None:
        self._feed.begin()
        self._event_time.begin()
        self._pace = BatchPace.first(self._bounds)
        self._left: deque[ReadUpTo | CheckpointRecord] = deque()
        """Batches to make, each checkpoint behind its own."""
        self._made = ""
        self._made_last = False
        """True if the last checkpoint that this run came to is made."""
        self._looked_behind = ""
        """The id of the last checkpoint that was looked at."""
        self._came, self._next_look = self._clock.monotonic(), 0.0

    def next(self, boundary: Boundary) -> Next:
        """Plan the next batch of the other job.

        Raises:
            IncompatibleError: that job was changed meanwhile, or an input has lost messages.
            PenstockError: its log cannot be read, or an input not be asked.
        """
        while True:
            if self._clock.monotonic() >= self._next_look:
                self._look(boundary)
            if not self._left:
                return Idle(self._next_look)
            self._join(boundary)
            following = self._left[0]
            if isinstance(following, ReadUpTo):
                if (planned := self._batch(boundary, following)) is not None:
                    return planned
            elif self._is_at(boundary, following):
                if (planned := self._raised(boundary, following)) is not None:
                    return planned
                self._made, self._made_last = str(following.id), True
            else:
                self._made_last = False
                if len(self._left) == 1:
                    self._refuse_further(boundary, following)
            self._left.popleft()
            if isinstance(following, CheckpointRecord):
                self._say(boundary)

    def _look(self, boundary: Boundary) -> None:
        """Look for new checkpoints, also while others are being made: they may leave the log."""
        now = self._clock.monotonic()
        for record in self._parent.behind(self._looked_behind):
            self._left += [*batches_of(record), record]
            self._looked_behind, self._came = str(record.id), now
        self._next_look = now + min(MOST_SECONDS, max(LEAST_SECONDS, (now - self._came) / 10))
        self._say(boundary)

    def _join(self, boundary: Boundary) -> None:
        """Make several batches as one, while many wait: a batch takes this job as long as the other one, so it would
        never catch up. Checkpoints between them are passed over."""
        if len(self._left) <= _IN_TIME:
            return
        joined = list[ReadUpTo]()
        upto, messages = dict(_by_partition(boundary.positions)), 0
        while len(joined) < _MOST_JOINED and len(self._left) > 1:  # the last checkpoint is not passed over
            following = self._left[0]
            if isinstance(following, ReadUpTo):
                after = _by_partition(following.positions)
                ahead = sum(max(0, offset - upto.get(ssp, offset)) for ssp, offset in after.items())
                messages += ahead
                if (ahead and not following.named) or (joined and messages > self._bounds.messages):
                    break
                if following.named:
                    joined.append(following)
                upto = {ssp: max(offset, after.get(ssp, offset)) for ssp, offset in upto.items()}
            elif not joined:
                break
            self._left.popleft()
        if joined:
            positions: dict[TaskSsp, int] = {}
            for each in joined:
                positions |= each.positions
            self._left.appendleft(ReadUpTo(joined[-1].time_ms, positions))

    def _say(self, boundary: Boundary) -> None:
        progress = FollowProgress(
            self._parent.followed.job,
            self._made,
            caught_up=not self._left and self._made == self._looked_behind,
            is_near=self._made_last and len(self._left) <= _IN_TIME,
            looked=self._clock.monotonic(),
        )
        self._tell(boundary, progress)

    def _is_at(self, boundary: Boundary, record: CheckpointRecord) -> bool:
        """True if this run has read exactly what the other job had read at a checkpoint, of the partitions that both
        read. It is further than at those before the one that it is a fork of."""
        theirs, own = _by_partition(to_positions(record.next_offsets)), _by_partition(boundary.positions)
        return all(own[ssp] == theirs[ssp] for ssp in own.keys() & theirs.keys())

    def _refuse_further(self, boundary: Boundary, last: CheckpointRecord) -> None:
        """Raise IncompatibleError if this run has read beyond the last checkpoint of the other job: it never comes to
        be where that one was."""
        theirs, own = _by_partition(to_positions(last.next_offsets)), _by_partition(boundary.positions)
        if further := sorted(str(ssp) for ssp in own.keys() & theirs.keys() if own[ssp] > theirs[ssp]):
            job = self._parent.followed.job
            raise IncompatibleError(
                f"this job has read {listed([f'`{each}`' for each in further])} beyond checkpoint {last.id}, the last "
                f"one of job `{job}`: it was started without following that job, and can never take over from it. "
                "Delete it, and deploy again; if that job has handed over to it, take the charge back first (`penstock "
                "deploy ... --rollback`)"
            )

    def _batch(self, boundary: Boundary, batch: ReadUpTo) -> PlannedBatch | None:
        """The next batch of the run on the way to the end of this one; None if it is made."""
        upto = _by_partition(batch.positions)
        behind = {at: first for at, first in boundary.positions.items() if first < upto.get(at.ssp, first)}
        of_time_alone = batch.named and not behind and batch.time_ms > boundary.batch_time_ms
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
        self._say_unnamed()
        portions = plan_ranges(behind, ends, self._pace, wanted)
        whole = sum(wanted[at.ssp] - first for at, first in behind.items())
        share = sum(each.messages for each in portions.values()) / whole
        passed_ms = round(max(0, batch.time_ms - boundary.batch_time_ms) * min(1.0, share))
        time_ms = boundary.batch_time_ms + passed_ms if boundary.batch_time_ms else batch.time_ms
        return self._planned(boundary, portions, time_ms, ends)

    def _raised(self, boundary: Boundary, record: CheckpointRecord) -> PlannedBatch | None:
        """A batch of time alone, if the other job has come further in time by its checkpoint: partitions were idle, or
        a period began. None: it has not."""
        theirs, own = self._marks_of(record), boundary.watermarks
        both = self._in_both(record)
        is_later = any(theirs.get(op, NO_WATERMARK) > own.get(op, NO_WATERMARK) for op in both)
        if not is_later and not boundary.is_behind and record.batch_time_ms <= boundary.batch_time_ms:
            return None
        return self._planned(boundary, {}, record.batch_time_ms, self._ends(), reached=True)

    def _marks_of(self, record: CheckpointRecord) -> Mapping[str, int]:
        """The watermarks of the other job at a checkpoint, by the operators of this one."""
        return record.section(TIME).watermarks_in(self._graph, record.stores)

    def _in_both(self, record: CheckpointRecord) -> set[str]:
        """The operators that both jobs have, as far as a checkpoint shows it."""
        known = self._marks_of(record).keys()
        return {op for op in self._upstream if op in known or self._stores[op] & record.stores.keys()}

    def _planned(
        self,
        boundary: Boundary,
        portions: Mapping[TaskSsp, Portion],
        time_ms: int,
        ends: Ends,
        *,
        reached: bool = False,
    ) -> PlannedBatch:
        """`reached`: the other job's next checkpoint comes behind this batch."""
        latest = {ssp: end.upcoming for ssp, end in ends.items()}
        # No partition is idle or ended by itself: the other job may not have found it so in this batch.
        moment = self._event_time.look(boundary, None, time_ms, idle={})
        record = next((each for each in self._left if isinstance(each, CheckpointRecord)), None)
        if record is not None and self._upstream:
            known = self._marks_of(record)
            theirs = {op: known.get(op, NO_WATERMARK) for op in self._in_both(record)}
            due = {op: event for op, (event, _) in boundary.next_due.items() if event is not None}
            marks = in_step(moment.watermarks, self._upstream, theirs, due, reached=reached)
            moment = replace(moment, watermarks=marks)
        ranges = BatchRanges.group(portions, self._sources) if portions else NOTHING
        return PlannedBatch(ranges, latest, moment)

    def _say_unnamed(self) -> None:
        if not self._said_unnamed:
            self._said_unnamed = True
            logger.info(
                "the log of job %s does not have the checkpoints any more that name its first batches behind the one "
                "where this job begins, so they are made in others, up to the next checkpoint that it has",
                self._parent.followed.job,
            )

    def drain(self, boundary: Boundary, operators: Set[str] | None = None) -> Next:
        """Raises IncompatibleError: what waits would fire, and be held back."""
        raise IncompatibleError(
            f"the job makes the batches of job `{self._parent.followed.job}`, and cannot drain by itself: take the "
            "request back (`penstock drain JOB --cancel`)"
        )

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
            "since the checkpoint that this one began with. Begin with a fork of a newer checkpoint"
        )
    if short := sorted(str(at.ssp) for at in behind if ends[at.ssp].upcoming < wanted[at.ssp]):
        raise RetryableError(
            f"the input {listed([f'`{each}`' for each in short])} ends before what the other job has read, as far as "
            "its system says now"
        )
