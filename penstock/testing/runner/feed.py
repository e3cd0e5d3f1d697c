"""The batches of a run of `TestRunner`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import TypeAlias

from penstock.api.ssp import SystemStreamPartition
from penstock.api.time.watermarks import NO_WATERMARK
from penstock.batch.input_order import InputOrder
from penstock.batch.pace import BatchPace
from penstock.batch.portions import Portion, PortionRead
from penstock.batch.positions import Ends, TaskSsp
from penstock.batch.ranges import BatchRanges, UnreadMessages, plan_with_unread
from penstock.driver.feed.boundary import BatchTime, Boundary
from penstock.driver.feed.closing import ClosingFeed
from penstock.driver.feed.event_time import EventTime
from penstock.driver.feed.planned import End, Next, PlannedBatch
from penstock.graph.specs import ApplicationGraph
from penstock.testing.clock import SettableClock

Cut: TypeAlias = Callable[[Mapping[TaskSsp, Portion]], Mapping[TaskSsp, Portion]]
"""Leaves out a part of what a batch might read."""


class RunnerFeed:
    """Batches of at most `messages`, until everything is read and nothing is due."""

    def __init__(
        self,
        ends: Callable[[], Ends],
        graph: ApplicationGraph,
        event_time: EventTime,
        clock: SettableClock,
        order: InputOrder,
        cut: Cut | None = None,
    ) -> None:
        """`cut` makes smaller batches."""
        self._cut = cut
        self._order = order
        self._targets: Mapping[SystemStreamPartition, int] | None = None
        self._ends = ends
        self._sources = tuple(op.stream for op in graph.sources)
        self._operators = tuple(op.id for op in graph.operators)
        self._raises = graph.parts()[0]
        """Behind durable intermediate streams, watermarks follow with the messages that are in them."""
        self._event_time = event_time
        self._closing = ClosingFeed(graph, event_time, clock)
        self._clock = clock
        self.messages = sys.maxsize
        self.watermark = NO_WATERMARK
        """The lowest watermark that an operator may have."""
        self.ending = False

    def begin(self) -> None:
        """Do nothing: each run of a test has one epoch."""
        self._event_time.begin()
        self._targets = None

    def begin_again(self) -> None:
        """Forget the event time that the test set: the stream ended in the run before."""
        self.watermark, self.ending = NO_WATERMARK, False

    def next(self, boundary: Boundary) -> Next:
        ends, pace, unread = (
            self._ends(),
            BatchPace(self.messages, sys.maxsize),
            UnreadMessages.of(boundary.unread, boundary.left),
        )
        if boundary.partly_closed:
            return self._closing.next(boundary, "end-of-stream", pace, {})
        targets = self._targets = self._order.targets(ends) if self._targets is None else self._targets

        def of_inputs(left: BatchPace) -> dict[TaskSsp, Portion]:
            planned = self._order.plan(boundary.positions, ends, left, None, targets)
            return planned if self._cut is None else dict(self._cut(planned))

        portions = {} if boundary.is_behind else plan_with_unread(of_inputs, pace, unread)
        moment = self._raised(self._event_time.look(boundary, ends, self._clock.now_ms()))
        latest = {ssp: end.upcoming for ssp, end in ends.items()}
        if portions or self._event_time.is_due(boundary, moment) or self._is_behind(boundary):
            return PlannedBatch(BatchRanges.group(portions, self._sources), latest, moment)
        if self.ending and not boundary.closed:
            return self._closing.close(boundary, "end-of-stream", moment, latest)
        self._event_time.tell(boundary, moment)
        return End()

    def _is_behind(self, boundary: Boundary) -> bool:
        marks = boundary.watermarks
        return self._event_time.used and any(marks.get(op, NO_WATERMARK) < self.watermark for op in self._operators)

    def _raised(self, moment: BatchTime) -> BatchTime:
        if self.watermark == NO_WATERMARK or not self._event_time.used:
            return moment
        marks = moment.watermarks
        raised = {op: max(self.watermark, marks.firing.get(op, NO_WATERMARK)) for op in self._raises}
        return replace(moment, watermarks=replace(marks, firing={**marks.firing, **raised}))

    def drain(self, boundary: Boundary, operators: Set[str] | None = None) -> Next:
        pace = BatchPace(self.messages, sys.maxsize)
        if operators is not None:
            return self._closing.drain(boundary, operators, pace, {})
        return self._closing.next(boundary, "drain", pace, {})

    def has_lost(self, ranges: BatchRanges) -> bool:
        """False: the streams of a test keep their messages."""
        return False

    def ended(self, took_ms: float, read: Mapping[TaskSsp, PortionRead]) -> None:
        """Do nothing: the test chooses the size of batches."""

    def remaining(self, boundary: Boundary) -> int | None:
        """None: nothing shows it."""
        return None
