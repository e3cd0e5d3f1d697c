"""Feeds: they choose what the run loop does next: a batch, nothing until a time, a step over lost messages, or the
end.

The choices are values. At its end, an application is closed part by part if durable intermediate streams divide it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeAlias

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.retry import Clock
from penstock.base.wording import listed
from penstock.batch.batch import Control, Ends, Loss, OfferedBatch, Positions, TaskSsp, find_losses, refuse_losses
from penstock.batch.portions import (
    NOTHING,
    BatchBounds,
    BatchPace,
    BatchRanges,
    InputOrder,
    Portion,
    PortionRead,
    UnreadMessages,
    plan_ranges,
    plan_with_unread,
    read_by_input,
    up_to,
)
from penstock.config.settings import JobSettings
from penstock.driver.feed.boundary import BatchTime, Boundary
from penstock.driver.feed.event_time import EventTime
from penstock.graph.specs import ApplicationGraph


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """Run a batch."""

    ranges: BatchRanges
    latest: Mapping[SystemStreamPartition, int]
    """The next offset that every input partition assigns, as of the planning."""
    moment: BatchTime
    control: Control = "none"
    closes: frozenset[str] | None = None
    """The operators that the control is for; None: all that are left."""
    offered: OfferedBatch | None = None
    """The query's batch that it belongs to; None: none."""
    rests: frozenset[str] = frozenset()
    """The operators that do nothing in it. No message comes to them."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Do nothing before `until`, on the run's monotonic clock, in seconds."""

    until: float
    looked: bool = True
    """False if the inputs were not looked at, because it is too early for another batch."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Continue after messages that were deleted before they were read (`streams.<id>.on.data.loss`)."""

    losses: tuple[Loss, ...]


@dataclass(frozen=True, slots=True)
class End:
    """There is nothing left to do: the run ends with its last commit."""


Next: TypeAlias = PlannedBatch | Idle | Skip | End


class ClosingFeed:
    """Plans the batches of a run that reads nothing more from its inputs.

    They read the messages that wait in intermediate streams. Then each part of the application has a batch without
    ranges, in which everything fires that waits for time. Its messages are read before the next part has such a
    batch.
    """

    def __init__(self, graph: ApplicationGraph, event_time: EventTime, clock: Clock) -> None:
        self._parts = graph.parts()
        self._sources = tuple(op.stream for op in graph.sources)
        self._event_time = event_time
        self._clock = clock

    def next(
        self, boundary: Boundary, control: Control, pace: BatchPace, latest: Mapping[SystemStreamPartition, int]
    ) -> PlannedBatch | End:
        """Plan the next batch, or the end if the last one closed the job.

        Args:
            control: the way to close the job, unless it has begun to close in another way: all operators end in the
                same way.
            latest: the ends of the inputs when they were last looked at.
        """
        if boundary.closed:
            return End()
        if boundary.partly_closed:
            control = boundary.closing_with
        moment, known = self._event_time.look(boundary, None, self._clock.now_ms()), self._known(boundary, latest)
        return self._unread(boundary, pace, known, moment) or self.close(boundary, control, moment, known)

    def drain(
        self,
        boundary: Boundary,
        operators: Set[str],
        pace: BatchPace,
        latest: Mapping[SystemStreamPartition, int],
    ) -> PlannedBatch | End:
        """Plan the next batch of a drain of these operators alone, or the end once they have drained. All others keep
        what waits in them. Once operators have come to another end, all do."""
        if boundary.closed or boundary.partly_closed:
            return self.next(boundary, boundary.closing_with, pace, latest)
        now, known = self._event_time.look(boundary, None, self._clock.now_ms()), self._known(boundary, latest)
        before, drained = frozenset[str](), frozenset[str]()
        for part in self._parts:
            if closes := part & operators - boundary.drained_operators:
                # What parts before these sent now would come to operators that have drained, and be in no checkpoint.
                # No message waits for those parts any more.
                still = self._event_time.close(boundary, now, frozenset())
                if left := self._unread(boundary, pace, known, still):
                    return replace(left, rests=drained)
                moment = self._event_time.close(boundary, now, closes)
                return PlannedBatch(NOTHING, known, moment, "drain-operators", closes, rests=before)
            before |= part
            if part & boundary.drained_operators:
                drained = before
        return End()

    def close(
        self, boundary: Boundary, control: Control, moment: BatchTime, latest: Mapping[SystemStreamPartition, int]
    ) -> PlannedBatch:
        *before_last, _ = self._parts
        closes = next((part for part in before_last if not part <= boundary.closed_operators), None)
        return PlannedBatch(NOTHING, latest, self._event_time.close(boundary, moment, closes), control, closes)

    def _unread(
        self, boundary: Boundary, pace: BatchPace, known: Mapping[SystemStreamPartition, int], moment: BatchTime
    ) -> PlannedBatch | None:
        """A batch of the messages that wait in intermediate streams; None: there are none."""
        unread = UnreadMessages.of(boundary.unread, boundary.left)
        portions = plan_ranges(unread.positions, unread.ends, pace, None)
        return PlannedBatch(BatchRanges.group(portions, self._sources), known, moment) if portions else None

    @staticmethod
    def _known(boundary: Boundary, latest: Mapping[SystemStreamPartition, int]) -> dict[SystemStreamPartition, int]:
        return {at.ssp: offset for at, offset in boundary.positions.items()} | dict(latest)


logger = logging.getLogger(__name__)
_NO_ORDER = InputOrder()
_QUIET_MS = 10_000
"""A partition that keeps something from firing is logged after this long without messages: most have some by then."""


class Feed(Protocol):
    """Chooses the batches of a run. Used by the run loop's thread only.

    The batch depends on the boundary that is passed in and on what the feed finds. After a rewind, the next call
    gets an older boundary.
    """

    def begin(self) -> None:
        """Begin an epoch. The next boundary may be older than the last one."""
        ...

    def next(self, boundary: Boundary) -> Next:
        """Choose the action at this boundary. Raises PenstockError if the next batch cannot be planned."""
        ...

    def drain(self, boundary: Boundary, operators: Set[str] | None = None) -> Next:
        """As `next`, in a run that drains: nothing more is read from the inputs, nor are they looked at. But a run that
        sends no output yet first comes to the positions from which on it does.

        Args:
            operators: those that drain; None: all.
        """
        ...

    def has_lost(self, ranges: BatchRanges) -> bool:
        """True if messages that a batch was to read from an input have been deleted since it was planned. `next`
        then says how to continue."""
        ...

    def ended(self, took_ms: float, read: Mapping[TaskSsp, PortionRead]) -> None:
        """Take note of a planned batch that has ended. `took_ms`: the duration of its last run, with its End."""
        ...

    def remaining(self, boundary: Boundary) -> int | None:
        """Messages left to read before the end. Gaps in the offsets count as messages. None if the run has no end."""
        ...


@dataclass(frozen=True, slots=True)
class BatchRhythm:
    """The pauses between batches, in seconds."""

    idle_s: float
    """The longest pause when there is nothing new."""
    least_s: float = 0.0
    """The shortest time from one batch to the next, unless messages have piled up."""
    target_s: float = 0.0
    """A message that comes just after a batch was planned should be processed within this time."""

    @classmethod
    def of(cls, settings: JobSettings) -> BatchRhythm:
        interval_ms, target_ms = settings.batch_interval_ms, settings.latency_target_ms
        if target_ms is None:
            return cls(interval_ms / 1000)
        idle_ms = min(interval_ms, max(1.0, target_ms / 2))
        return cls(idle_ms / 1000, settings.batch_min_ms / 1000, target_ms / 1000)

    def apart_s(self, took_s: float) -> float:
        """The time from the start of a batch that took this long to the start of the next."""
        return max(self.least_s, self.target_s - took_s)


class OffsetFeed:
    """Plans batches of new messages, as many as the pace allows, or of none when only time has passed.

    A run with an end closes the stream in its last batch, after which everything that waits for event time has fired.
    """

    def __init__(
        self,
        ends: Callable[[], Ends],
        graph: ApplicationGraph,
        bounds: BatchBounds,
        rhythm: BatchRhythm,
        until: Mapping[SystemStreamPartition, int] | None,
        clock: Clock,
        event_time: EventTime,
        *,
        close: bool = True,
        skipped: Collection[SystemStream] = (),
        order: InputOrder = _NO_ORDER,
    ) -> None:
        """
        Args:
            graph: its sources have their numbers in the order of its inputs.
            until: input partition → the offset before which the run ends; None: it has no end.
            close: True if a run that reaches its end closes the stream, if that matters to the application.
            skipped: the inputs whose messages are skipped if they were deleted before they were read.
        """
        self._order = order
        self._targets: Mapping[SystemStreamPartition, int] | None = None
        """The offsets up to which bootstrap inputs are read first: their ends at the first look."""
        self._ends = ends
        self._sources = tuple(op.stream for op in graph.sources)
        self._bounds = bounds
        self._rhythm = rhythm
        self._planned: float | None = None
        """The start of the last batch, if the next one is to keep its distance."""
        self._not_before = 0.0
        self._until = until
        self._clock = clock
        self._event_time = event_time
        self._close = close and event_time.has_end
        self._skipped = skipped
        self._closing = ClosingFeed(graph, event_time, clock)
        self._pace = BatchPace.first(bounds)
        self._latest: Mapping[SystemStreamPartition, int] = {}
        self._nothing_new: tuple[Positions, Ends] | None = None
        """The positions and ends of the last look, if it found nothing to read: an idle job makes many such looks."""

    def begin(self) -> None:
        self._event_time.begin()
        self._not_before = 0.0

    def next(self, boundary: Boundary) -> Next:
        """Plan portions from the boundary's positions on, if there is something new. Lost messages come first.

        Raises:
            NotFoundError: a partition no longer has its next offset, and its messages are not to be skipped.
            IncompatibleError: an input has another number of partitions than when the run began.
            ConfigError: a watermark policy fails.
        """
        if boundary.partly_closed:
            return self._closing.next(boundary, "end-of-stream", self._pace, self._latest)
        now = self._clock.monotonic()
        if (pause_s := self._pause_s(boundary, now)) > 0:
            return Idle(now + pause_s, looked=False)
        ends = self._ends()
        if losses := find_losses(boundary.positions, ends, self._until):
            refuse_losses(losses, self._skipped)
            return Skip(losses)
        portions: Mapping[TaskSsp, Portion] = {}
        looked = boundary.positions, ends
        if not boundary.is_behind and (boundary.left or looked != self._nothing_new):
            unread = UnreadMessages.of(boundary.unread, boundary.left)
            positions = boundary.unreached if boundary.quiet_until else boundary.positions
            portions = plan_with_unread(partial(self._of_inputs, positions, ends), self._pace, unread)
            portions = up_to(portions, boundary.quiet_until)
            self._nothing_new = None if portions else looked
        moment = self._event_time.look(boundary, ends, self._clock.now_ms())
        self._latest = latest = {ssp: end.upcoming for ssp, end in ends.items()}
        ends_here = not portions and (self._until is not None or len(moment.ended_inputs) == len(ends))
        if ends_here and boundary.closed:
            return End()
        if portions or self._event_time.is_due(boundary, moment, periods=not ends_here):
            self._planned = None if _piled_up(portions) or self._until is not None else now
            return PlannedBatch(BatchRanges.group(portions, self._sources), latest, moment)
        if not ends_here:
            self._event_time.tell(boundary, moment, _QUIET_MS)
            return Idle(self._clock.monotonic() + self._idle_s(boundary, moment.time_ms))
        if not self._close:
            return End()
        return self._closing.close(boundary, "end-of-stream", moment, latest)

    def _of_inputs(self, positions: Positions, ends: Ends, pace: BatchPace) -> dict[TaskSsp, Portion]:
        if self._targets is None:
            self._targets = self._order.targets(ends)
            if lagging := self._order.lagging(positions, ends, self._targets):
                streams = listed(sorted({f"`{at.ssp.system_stream}`" for at in lagging}))
                logger.info("%s: read up to the present end before the other inputs (samza.bootstrap)", streams)
        return self._order.plan(positions, ends, pace, self._until, self._targets)

    def drain(self, boundary: Boundary, operators: Set[str] | None = None) -> Next:
        if boundary.quiet_until:
            return self.next(boundary)  # what fired now would not be sent
        if operators is not None:
            return self._closing.drain(boundary, operators, self._pace, self._latest)
        return self._closing.next(boundary, "drain", self._pace, self._latest)

    def _pause_s(self, boundary: Boundary, now: float) -> float:
        """The time until the next batch of new messages may begin, or anything else is due; at most the interval."""
        left_s = self._not_before - now
        if left_s <= 0 or boundary.is_behind or boundary.left:
            return 0.0
        return min(left_s, self._idle_s(boundary, self._clock.now_ms()))

    def _idle_s(self, boundary: Boundary, time_ms: int) -> float:
        """The time until the next timer is due or the next period begins, at most the interval."""
        due = self._event_time.next_ms(boundary)
        idle_s = self._rhythm.idle_s
        return idle_s if due is None else min(idle_s, (due - time_ms) / 1000)

    def has_lost(self, ranges: BatchRanges) -> bool:
        """If so, the pace begins again: a small batch, if there is a pace, is read before its messages are deleted
        as well."""
        planned = {at: portion.offsets.start for at, portion in ranges.portions.items()}
        inputs = self._ends()
        lost = bool(find_losses({at: start for at, start in planned.items() if at.ssp in inputs}, inputs))
        if lost:
            self._pace = BatchPace.first(self._bounds)
        return lost

    def ended(self, took_ms: float, read: Mapping[TaskSsp, PortionRead]) -> None:
        """Adapt the pace to the duration of the batch, and to the number and size of its messages."""
        self._not_before = 0.0 if self._planned is None else self._planned + self._rhythm.apart_s(took_ms / 1000)
        messages = sum(part.messages for part in read.values())
        self._pace = self._pace.after(self._bounds, took_ms, messages, read_by_input(read))

    def remaining(self, boundary: Boundary) -> int | None:
        """Offsets before `until`, and unread ones in intermediate streams. Those of a broadcast partition count once
        for each task."""
        if self._until is None:
            return None
        return boundary.left + sum(max(0, self._until[at.ssp] - offset) for at, offset in boundary.positions.items())


def _piled_up(portions: Mapping[TaskSsp, Portion]) -> bool:
    """True if more messages may wait than the batch takes."""
    return any(each.messages < each.offsets.end - each.offsets.start for each in portions.values())
