"""The batches of a job inside a streaming query: those that Spark hands over, one by one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

from penstock.api.graph import ApplicationGraph
from penstock.clock import Clock
from penstock.driver.boundary import Boundary, Moment
from penstock.driver.event_time import EventTime
from penstock.driver.owed import Debts
from penstock.driver.planned import End, Next, Planned
from penstock.errors import IncompatibleError, PenstockError
from penstock.plan.portions import Portion, PortionRead
from penstock.plan.positions import TaskSsp
from penstock.plan.ranges import BatchRanges
from penstock.system.messages import OffsetRange
from penstock.system.query import NO_DRAIN


class OfferedFeed:
    """Runs the batch that was offered last, once. Batch n of the query is the offset n of every input.

    The query has taken over the output of batch n once batch n + 1 has ended. Until then every record names it, also
    one that is made before n + 1 runs: Spark's checkpoint location may be set back to n.
    """

    def __init__(
        self, graph: ApplicationGraph, event_time: EventTime, clock: Clock, debts: Debts | None = None
    ) -> None:
        """`debts`: what records name for the query."""
        self._debts = debts
        self._sources = tuple(op.stream for op in graph.sources)
        self._independent = are_independent(graph)
        self._event_time = event_time
        self._clock = clock
        self._offered: int | None = None
        self._plan = ""

    def offer(self, batch: int, plan: str = "") -> None:
        """The query asks for this batch. `plan`: see `Offered.plan`."""
        self._offered, self._plan = batch, plan

    def begin(self) -> None:
        """See `Feed`."""
        self._event_time.begin()
        if self._debts is not None:
            self._debts.keep()

    def next(self, boundary: Boundary) -> Next:
        """The offered batch, if the boundary is the one before it."""
        batch = next_batch(boundary)
        if batch != self._offered:
            return End()
        portions = {at: Portion(OffsetRange(at.ssp, batch, batch + 1), sys.maxsize) for at in boundary.positions}
        moment = self._look(boundary)
        latest = {at.ssp: batch + 1 for at in boundary.positions}
        return Planned(BatchRanges.group(portions, self._sources), latest, moment, plan=self._plan)

    def next_due_ms(self, boundary: Boundary) -> int | None:
        """When something is due that needs no rows, in epoch milliseconds; None: never. It is 0 if the last batch made
        it due, or if nobody knows. What the last batch has left although it was due is due behind it: otherwise a timer
        that sets itself again, in the past, would keep a query that is to end from its end."""
        if boundary.next_due is None:
            return 0
        moment, behind = self._look(boundary), boundary.batch_time_ms + 1
        if self._event_time.is_due(boundary, moment, periods=False):
            firing = moment.watermarks.firing
            return 0 if any(mark > boundary.watermarks.get(op, mark - 1) for op, mark in firing.items()) else behind
        at = self._event_time.next_ms(boundary)
        return None if at is None else max(at, behind)

    def _look(self, boundary: Boundary) -> Moment:
        merged = merged_times(boundary)
        if merged.next_due is None and self._independent:
            # Only what is behind an operator depends on its timers. Spark's watermark moves in the first batch of a
            # start as in any other one, and so does this one.
            merged = replace(merged, next_due={})
        return self._event_time.look(merged, None, self._clock.now_ms())

    def drain(self, boundary: Boundary) -> Next:
        """See `Feed`. The query decides when it ends."""
        raise IncompatibleError(NO_DRAIN)

    def has_lost(self, ranges: BatchRanges) -> bool:
        """No: Spark looks after its sources."""
        return False

    def ended(self, took_ms: float, read: Mapping[TaskSsp, PortionRead]) -> None:
        """The next record is of this batch, and names its output alone."""
        if self._debts is not None:
            self._debts.taken()

    def remaining(self, boundary: Boundary) -> int | None:
        """Unknown: Spark has the input."""
        return None


def are_independent(graph: ApplicationGraph) -> bool:
    """Whether no operator that uses event time is behind another one."""
    timed = {op.id for op in graph.operators if op.uses_time} - {op.id for op in graph.sources}
    sources = graph.time_sources()
    before: dict[str, set[str]] = {}
    for op in graph.operators:  # upstream first
        ups = set(sources[op.id])
        before[op.id] = ups.union(*(before.get(up, set()) for up in ups))
    return not graph.intermediates and not any(before[op] & timed for op in timed)


def next_batch(boundary: Boundary) -> int:
    """The id of the query's batch that follows on the boundary."""
    batches = set(boundary.positions.values())
    if len(batches) != 1:
        raise PenstockError(f"the inputs of a job inside a query are all at one batch, not at {sorted(batches)}")
    return batches.pop()


def merged_times(boundary: Boundary) -> Boundary:
    """The same with the rows of a DataFrame as one partition: which task met a row says nothing about its time."""
    highest: dict[object, int] = {}
    for at, time_ms in boundary.event_times.items():
        stream = at.ssp.system_stream
        highest[stream] = max(time_ms, highest.get(stream, time_ms))
    times = {at: highest[at.ssp.system_stream] for at in boundary.positions if at.ssp.system_stream in highest}
    return replace(boundary, event_times=times)
