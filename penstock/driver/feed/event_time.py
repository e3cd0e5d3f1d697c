"""The event time of one run: the watermarks at each boundary, and the partitions that are idle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.firing import NO_WATERMARK
from penstock.batch import watermarks
from penstock.batch.batch import Ends, TaskSsp, is_new_period
from penstock.config.model import JobConfig
from penstock.driver.feed.boundary import BatchTime, Boundary
from penstock.graph.specs import ApplicationGraph

logger = logging.getLogger(__name__)


class EventTime:
    """Computes watermarks. Used by the run loop's thread. Of its state, only the idle times of partitions are not in
    a boundary: they begin again with each epoch."""

    def __init__(
        self,
        flow: watermarks.TimeFlow | None,
        idle_ms: Mapping[SystemStream, int],
        *,
        period_ms: int = -1,
        has_end: bool = False,
    ) -> None:
        """
        Args:
            flow: None: the application does not use event time, and has no watermarks.
            idle_ms: input → time after which a partition without new messages no longer holds the watermark back.
            period_ms: the periods of batch time whose start is a reason for a batch; below 1: none.
            has_end: True if the end of the stream matters although the application does not use event time.
        """
        self._flow = flow
        self._idle_ms = idle_ms
        self._period_ms = period_ms
        self.has_end = has_end or flow is not None
        """True if the end of the stream is a reason for a last batch."""
        self._waiting: dict[TaskSsp, watermarks.PartitionAtEnd] = {}
        self._named: set[TaskSsp] = set()

    @classmethod
    def of(cls, graph: ApplicationGraph, config: JobConfig) -> EventTime:
        flow = watermarks.TimeFlow.of(graph) if graph.uses_time else None
        idle_ms = {op.stream: config.stream(op.stream).idle_ms for op in graph.inputs}
        return cls(flow, idle_ms, period_ms=config.task.window_ms, has_end=graph.has_end)

    @property
    def used(self) -> bool:
        return self._flow is not None

    def begin(self) -> None:
        self._waiting = {}

    def idle_since(self, quiet: Mapping[SystemStream, int]) -> dict[SystemStream, int]:
        """The times at which these inputs become idle if they stay without messages. `quiet`: input → the time since
        which it has had none."""
        if self._flow is None:
            return {}
        return {stream: since_ms + self._idle_ms[stream] for stream, since_ms in quiet.items()}

    def look(
        self,
        boundary: Boundary,
        ends: Ends | None,
        now_ms: int,
        *,
        idle: Mapping[TaskSsp, int] | None = None,
        given: Mapping[SystemStream, watermarks.GivenWatermark] | None = None,
    ) -> BatchTime:
        """Compute the moment of a batch that is planned now. Raises ConfigError if a watermark policy fails.

        Args:
            ends: the present ends of every input partition; None: the inputs are not looked at.
            now_ms: the wall clock, in epoch milliseconds.
            idle: idle partition → the batch time when it became idle; None: as their ends say.
            given: the inputs whose watermark does not follow from their messages.
        """
        time_ms = boundary.time_at(now_ms)
        ended = boundary.ended_inputs if ends is None else watermarks.ended_partitions(boundary.positions, ends)
        if self._flow is None:
            return BatchTime(time_ms, ended_inputs=ended)
        if ends is not None:
            self._waiting = watermarks.at_the_end(self._waiting, boundary.positions, ends, time_ms)
        if idle is None:
            idle = watermarks.idle_partitions(self._waiting, self._idle_ms, time_ms)
        find = partial(self._finder(boundary, ended), given=given)
        coming = find(idle=idle, carried=True).firing if self._flow.intermediates else {}
        return BatchTime(time_ms, find(idle=idle), ended, frozenset(idle), coming)

    def _finder(
        self, boundary: Boundary, ended: Collection[SystemStreamPartition]
    ) -> Callable[..., watermarks.Watermarks]:
        assert self._flow is not None  # noqa: S101 - asked before
        return partial(
            watermarks.next_watermarks,
            self._flow,
            boundary.positions,
            boundary.event_times,
            boundary.watermarks,
            ended=ended,
            oldest=_oldest_due(boundary),
            intermediate=boundary.intermediate,
        )

    def tell(self, boundary: Boundary, moment: BatchTime, quiet_ms: int = 0) -> None:
        """When there is nothing to read, log the partitions that keep something due from firing although they have
        had nothing new for `quiet_ms`, and are not idle yet. Each is logged once."""
        if self._flow is None or not (due := _oldest_due(boundary)):
            return
        quiet = {
            at
            for at, each in self._waiting.items()
            if at not in moment.idle and at not in self._named and moment.time_ms - each.since_ms >= quiet_ms
        }
        if not quiet:
            return
        find = self._finder(boundary, moment.ended_inputs)

        def fires(idle: Collection[TaskSsp]) -> bool:
            firing = find(idle=dict.fromkeys(idle, moment.time_ms)).firing
            return any(event <= firing.get(op, NO_WATERMARK) for op, event in due.items())

        found = watermarks.holding_back(
            self._flow,
            boundary.positions,
            boundary.event_times,
            quiet=quiet,
            idle=moment.idle,
            ended=moment.ended_inputs,
            fires=fires,
        )
        for at in found:
            self._named.add(at)
            stream = at.ssp.system_stream
            logger.warning(
                "%s. Windows and timers that wait for it fire once the partition has later messages, or is idle: after "
                "%s without messages (streams.%s.idle.ms)",
                watermarks.holds_back_text(stream, at.ssp.partition, boundary.event_times.get(at)),
                f"{self._idle_ms[stream] / 1000:g} s",
                stream,
            )

    def is_due(self, boundary: Boundary, moment: BatchTime, *, periods: bool = True) -> bool:
        """True if a batch is to run although there may be nothing to read: something is due, or a period begins.
        `periods`: the start of a period counts. If batches take longer than a period, one begins in each."""
        if periods and is_new_period(boundary.batch_time_ms or None, moment.time_ms, self._period_ms):
            return True
        return self.used and boundary.due(moment)

    def next_ms(self, boundary: Boundary) -> int | None:
        """The latest time at which time alone makes a batch due, in epoch milliseconds; None: never."""
        times = [boundary.next_processing_ms()]
        if self._period_ms > 0 and boundary.batch_time_ms:
            times.append((boundary.batch_time_ms // self._period_ms + 1) * self._period_ms)
        return min((time for time in times if time is not None), default=None)

    def close(self, boundary: Boundary, moment: BatchTime, closes: Collection[str] | None = None) -> BatchTime:
        """The moment of a batch that brings these operators to their end; None: all."""
        if self._flow is None:
            return moment
        marks = watermarks.closing_watermarks(self._flow, boundary.watermarks, closes, boundary.closed_operators)
        return replace(moment, watermarks=marks)


def _oldest_due(boundary: Boundary) -> dict[str, int]:
    return {op: event for op, (event, _) in boundary.next_due.items() if event is not None}
