"""Brings an application to its end, part by part if durable intermediate streams divide it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from penstock.api.ssp import SystemStreamPartition
from penstock.base.clock import Clock
from penstock.batch.batch import Control
from penstock.batch.pace import BatchPace
from penstock.batch.ranges import NOTHING, BatchRanges, UnreadMessages, plan_ranges
from penstock.driver.feed.boundary import BatchTime, Boundary
from penstock.driver.feed.event_time import EventTime
from penstock.driver.feed.planned import End, PlannedBatch
from penstock.graph.specs import ApplicationGraph


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
