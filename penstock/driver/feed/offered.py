"""The feed of a job inside a streaming query: it runs the batches that Spark offers, and the batch of a drain."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Protocol

from penstock.api.ssp import SystemStream
from penstock.base.retry import Clock
from penstock.base.wording import listed
from penstock.batch.batch import OfferedBatch, TaskSsp
from penstock.batch.portions import NOTHING, BatchRanges, Portion, PortionRead
from penstock.batch.watermarks import GivenWatermark, QueryWatermark
from penstock.driver.feed.boundary import BatchTime, Boundary
from penstock.driver.feed.event_time import EventTime
from penstock.driver.feed.feed import End, Next, PlannedBatch
from penstock.errors import ConfigError, PenstockError
from penstock.graph.specs import ApplicationGraph
from penstock.system.contract.messages import OffsetRange


class OfferedOutput(Protocol):
    """The output that records name for the query, until it has taken it over."""

    def taken(self) -> None:
        """The query has taken over everything that the last record names."""
        ...

    def keep(self) -> None:
        """The job begins with the last record, or has gone back to it, and continues with all that it names."""
        ...


class OfferedFeed:
    """Runs the last offered batch, once. Batch n of the query is the offset n of every input.

    The watermark of an input is Spark's (`QueryWatermark`), or follows from its rows. Then the input is idle once the
    batches of a while had no rows of it. Nobody here knows whether Spark has more of them, but each batch takes rows of
    every source that has any.

    The query has taken over the output of batch n once batch n + 1 has ended. Until then every record names it, even
    one that is made before n + 1 runs: Spark's checkpoint location may be set back to n.

    A drain is one more batch, without rows, after the one that Spark has planned already. Both have one record, and
    the output of both is the output of Spark's batch.
    """

    def __init__(self, graph: ApplicationGraph, event_time: EventTime, clock: Clock) -> None:
        self._output: OfferedOutput | None = None
        self._sources = tuple(op.stream for op in graph.sources)
        of_spark = (op.stream for op in graph.inputs if isinstance(op.watermark, QueryWatermark))
        self._of_spark = tuple(of_spark) if event_time.used else ()
        self._watermark: GivenWatermark | None = None
        self._event_time = event_time
        self._clock = clock
        self._number: int | None = None
        self._offered = OfferedBatch()
        self._planned_ms = 0
        self._closes = False
        """True if the batch that was planned last is that of a drain."""
        self._quiet: dict[SystemStream, int] = {}
        """Input without rows → the time of the first batch of this run that had none."""

    def report_to(self, output: OfferedOutput) -> None:
        """Say from now on what the query has taken over: nothing yet. Called before the first epoch."""
        self._output = output
        output.keep()

    @property
    def needs_watermark(self) -> bool:
        return bool(self._of_spark)

    def offer(self, batch: int, offered: OfferedBatch | None = None, watermark: GivenWatermark | None = None) -> None:
        """Take the query's next batch. `offered`: its entry in records. `watermark`: Spark's in the batch; None: it
        is not needed."""
        self._number, self._offered, self._watermark = batch, offered or OfferedBatch(), watermark

    def begin(self) -> None:
        self._event_time.begin()
        self._quiet = {}
        if self._output is not None:
            self._output.keep()

    def next(self, boundary: Boundary) -> Next:
        """Plan the offered batch, if the boundary is the one before it."""
        batch = next_batch(boundary)
        if batch != self._number:
            return End()
        portions = {at: Portion(OffsetRange(at.ssp, batch, batch + 1), sys.maxsize) for at in boundary.positions}
        moment = self._look(boundary, boundary.batch_time_ms)
        self._planned_ms = moment.time_ms
        self._closes = False
        latest = {at.ssp: batch + 1 for at in boundary.positions}
        return PlannedBatch(BatchRanges.group(portions, self._sources), latest, moment, offered=self._offered)

    def next_due_ms(self, boundary: Boundary, watermark: GivenWatermark | None = None) -> int | None:
        """The time at which something is due that needs no rows, in epoch milliseconds; None: never. It is 0 if the
        last batch made it due. A timer that the last batch left although it was due is due after it: otherwise a
        timer that sets itself again, in the past, would keep a query that is to end from its end.

        Args:
            watermark: Spark's in the next batch; None: it is not needed.
        """
        self._watermark = watermark
        moment, behind = self._look(boundary, boundary.batch_time_ms), boundary.batch_time_ms + 1
        if self._event_time.is_due(boundary, moment, periods=False):
            firing = moment.watermarks.firing
            return 0 if any(mark > boundary.watermarks.get(op, mark - 1) for op, mark in firing.items()) else behind
        times = (self._event_time.next_ms(boundary), self._idle_makes_due(boundary, moment))
        return min((max(at, behind) for at in times if at is not None), default=None)

    def _idle_makes_due(self, boundary: Boundary, now: BatchTime) -> int | None:
        """The time at which something is due because the inputs that hold it open now are idle by then; None: never."""
        idle_since = self._event_time.idle_since(self._quiet)
        for at_ms in sorted(each for each in idle_since.values() if each > boundary.batch_time_ms):
            then = self._look(boundary, at_ms)
            if then.watermarks.firing != now.watermarks.firing and boundary.due(then):
                return at_ms
        return None

    def _look(self, boundary: Boundary, time_ms: int) -> BatchTime:
        idle_since = self._event_time.idle_since(self._quiet)
        since = {at: idle_since.get(at.ssp.system_stream, sys.maxsize) for at in boundary.positions}
        idle = {at: each for at, each in since.items() if each <= time_ms}
        given = {} if self._watermark is None else dict.fromkeys(self._of_spark, self._watermark)
        return self._event_time.look(merged_times(boundary), None, self._clock.now_ms(), idle=idle, given=given)

    def drain(self, boundary: Boundary, operators: Set[str] | None = None) -> Next:
        """Plan the offered batch, whose rows Spark has planned to hand over; then one in which everything fires that
        waits for time. Raises ConfigError if only some operators are to drain: a query is drained as a whole."""
        if operators is not None:
            raise ConfigError(
                f"a job inside a streaming query drains as a whole, not only {listed(sorted(operators))}. Cancel the "
                "request with `penstock drain JOB --cancel`, and start the query again"
            )
        if boundary.closed:
            return End()
        if next_batch(boundary) == self._number:
            return self.next(boundary)
        self._closes = True
        latest = {at.ssp: offset for at, offset in boundary.positions.items()}
        moment = self._event_time.close(boundary, self._look(boundary, boundary.batch_time_ms))
        return PlannedBatch(NOTHING, latest, moment, "drain")

    def has_lost(self, ranges: BatchRanges) -> bool:
        """False: Spark looks after its sources."""
        return False

    def ended(self, took_ms: float, read: Mapping[TaskSsp, PortionRead]) -> None:
        """Note the quiet inputs. The next record is of this batch, and names its output alone, or with that of a
        drain after it."""
        if self._closes:
            return
        busy = {at.ssp.system_stream for at, part in read.items() if part.messages}
        quiet = (stream for stream in self._sources if stream not in busy)
        self._quiet = {stream: self._quiet.get(stream, self._planned_ms) for stream in quiet}
        if self._output is not None:
            self._output.taken()

    def remaining(self, boundary: Boundary) -> int | None:
        """None: Spark has the input."""
        return None


def next_batch(boundary: Boundary) -> int:
    """The id of the query's batch that follows the boundary."""
    batches = set(boundary.positions.values())
    if len(batches) != 1:
        raise PenstockError(f"the inputs of a job inside a query are all at one batch, not at {sorted(batches)}")
    return batches.pop()


def merged_times(boundary: Boundary) -> Boundary:
    """The same boundary with the rows of a DataFrame as one partition: which task met a row says nothing about its
    time."""
    highest: dict[object, int] = {}
    for at, time_ms in boundary.event_times.items():
        stream = at.ssp.system_stream
        highest[stream] = max(time_ms, highest.get(stream, time_ms))
    times = {at: highest[at.ssp.system_stream] for at in boundary.positions if at.ssp.system_stream in highest}
    return replace(boundary, event_times=times)
