"""The position of a job between two batches. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.firing import NO_WATERMARK
from penstock.batch.batch import (
    QUERY,
    Batch,
    Control,
    Due,
    Loss,
    Lost,
    OfferedBatch,
    Positions,
    TaskSsp,
    after_losses,
    to_positions,
    with_losses,
)
from penstock.batch.portions import BatchRanges, PortionRead
from penstock.batch.watermarks import TIME, Watermarks, later_event_times
from penstock.checkpoint.record import CheckpointRecord, Closing
from penstock.checkpoint.streams import STREAMS, IntermediateStream, Ranges, WrittenRanges
from penstock.graph.specs import IntermediateSpec

_CLOSINGS: Mapping[Control, Closing] = {"end-of-stream": "end-of-stream", "drain": "drained"}


@dataclass(frozen=True, slots=True)
class BatchTime:
    """The time of a batch: chosen when it is planned, and the same in every run of it."""

    time_ms: int
    """The batch time, in epoch milliseconds."""
    watermarks: Watermarks = field(default_factory=Watermarks)
    ended_inputs: frozenset[SystemStreamPartition] = frozenset()
    """The partitions that have ended, and have been read to their end."""
    idle: frozenset[TaskSsp] = frozenset()
    """The partitions that do not hold the watermark back, because they have had no new messages for long."""
    coming: Mapping[str, int] = field(default_factory=dict)
    """Operator → the watermark that batches without messages would raise it to, through durable intermediate
    streams; empty if there are none."""


@dataclass(frozen=True, slots=True)
class DrainedOperators:
    """The operators that a run brings to their end: it reads nothing more, and everything that waits for time fires."""

    operators: frozenset[str] | None = None
    """These alone; None: all operators, and then the run."""

    def is_done_at(self, boundary: Boundary) -> bool:
        """True if nothing of it is left at this boundary. The end of a stream is the end of everything as well."""
        alone = self.operators
        return boundary.closed or (alone is not None and alone <= boundary.drained_operators)


@dataclass(frozen=True, slots=True)
class Boundary:
    """Everything up to the end of a batch: the subject of a commit, and the start of the next batch."""

    positions: Positions
    batch: int = 0
    batch_time_ms: int = 0
    """The largest batch time so far, in epoch milliseconds; 0: there was no batch."""
    event_times: Mapping[TaskSsp, int] = field(default_factory=dict)
    """The highest event time read from each partition; empty if the application does not use event time."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """Operator → its firing watermark in the last batch."""
    ended_inputs: frozenset[SystemStreamPartition] = frozenset()
    next_due: Mapping[str, Due] = field(default_factory=dict)
    """Operator → the times of its oldest timers. No record holds them, because the stores do: containers report them
    when an epoch is opened."""
    closing: Closing | None = None
    """The way in which the last batch closed the job, if it did: everything that waited for time has fired."""
    intermediate: Mapping[SystemStream, IntermediateStream] = field(default_factory=dict)
    """The durable intermediate streams: the messages that ended batches wrote to them, and the unread ones."""
    closed_operators: frozenset[str] = frozenset()
    """Operators that were brought to their end, while others after an intermediate stream were not yet."""
    drained_operators: frozenset[str] = frozenset()
    """Operators that were drained alone. Nothing waits in them any more; they do nothing until the run ends."""
    closing_with: Control = "none"
    """The control of the batches that bring operators to their end, while some of them are left."""
    lost: Lost = field(default_factory=dict)
    """Messages of each input partition that were deleted before they were read, and are missing from the state."""
    offered: OfferedBatch | None = None
    """The last batch of the query that the job runs inside."""
    moved: frozenset[SystemStreamPartition] = frozenset()
    """Input partitions whose positions were moved while the state stayed."""
    quiet_until: Positions = field(default_factory=dict)
    """The positions before which no output is sent. Empty once all are reached, and nothing of that part is left in
    durable intermediate streams."""

    @classmethod
    def of(cls, record: CheckpointRecord) -> Boundary:
        """The boundary of the run that wrote a checkpoint. `next_due` is empty: the stores hold the timers."""
        time = record.section(TIME)
        return cls(
            to_positions(record.next_offsets),
            record.batch,
            record.batch_time_ms,
            to_positions(time.event_times),
            time.watermarks,
            frozenset(record.ended_inputs),
            closing=record.closing,
            intermediate=record.section(STREAMS).streams,
            drained_operators=record.drained_operators,
            lost=record.lost,
            offered=record.section(QUERY).offered,
            moved=frozenset(record.moved),
            quiet_until=to_positions(record.quiet_until),
        )

    def without(self, losses: Collection[Loss]) -> Boundary:
        """The boundary after messages that were deleted before they were read."""
        after = replace(self, positions=after_losses(self.positions, losses), lost=with_losses(self.lost, losses))
        return after.or_loud()

    def or_loud(self) -> Boundary:
        """The boundary, from which on output is sent if all that was read before is read again."""
        if not self.quiet_until or self.unreached or self.left:
            return self
        return replace(self, quiet_until={})

    @property
    def unreached(self) -> dict[TaskSsp, int]:
        """The positions before those up to which no output is sent."""
        return {at: offset for at, offset in self.positions.items() if offset < self.quiet_until.get(at, offset)}

    def time_at(self, now_ms: int) -> int:
        """The time of a batch that is planned now (epoch milliseconds): never before that of an older batch."""
        return max(self.batch_time_ms, now_ms)

    def next_batch(
        self,
        moment: BatchTime,
        runs: int,
        control: Control = "none",
        closes: frozenset[str] | None = None,
        tables: Mapping[str, int] | None = None,
        rests: frozenset[str] = frozenset(),
    ) -> Batch:
        """Make the next batch.

        Args:
            runs: the number of runs of a batch with this number that have begun in this epoch.
            closes: the operators that the control is for; None: all that are left.
            tables: pushed table → the version that the batch reads.
            rests: more operators that do nothing in this batch.
        """
        marks = moment.watermarks
        time_ms = self.time_at(moment.time_ms)
        before_ms = self.batch_time_ms or None
        return Batch(
            self.batch + 1,
            runs + 1,
            time_ms,
            control,
            marks.late,
            marks.firing,
            marks.held,
            before_ms,
            None if closes is None else tuple(sorted(closes)),
            tuple(sorted(self.closed_operators | self.drained_operators | rests)),
            tables or {},
            quiet=bool(self.quiet_until),
        )

    def after(
        self,
        batch: Batch,
        planned: BatchRanges,
        read: Mapping[TaskSsp, PortionRead],
        next_due: Mapping[str, Due],
        ended_inputs: frozenset[SystemStreamPartition] = frozenset(),
        written: Mapping[SystemStream, WrittenRanges] | None = None,
        offered: OfferedBatch | None = None,
    ) -> Boundary:
        """The boundary after the batch. Raises RetryableError if it cannot have read this.

        Args:
            offered: the query's batch that it belongs to; None: none.
        """
        positions = planned.advance(self.positions, read)
        closing = _CLOSINGS.get(batch.control) if batch.closes is None else None
        times = ((at, each.event_time_ms) for at, each in read.items() if at in positions)
        ended = frozenset(batch.closes or ())
        alone = batch.control == "drain-operators"
        closed = self.closed_operators if alone else self.closed_operators | ended
        drained = self.drained_operators | ended if alone else self.drained_operators
        return Boundary(
            positions,
            batch.number,
            batch.time_ms,
            later_event_times(self.event_times, times),
            # What is behind an operator that was drained alone does not end with it: its time stands still.
            {op: mark for op, mark in batch.firing.items() if op not in drained}
            | {op: batch.late[op] for op in drained & batch.late.keys()},
            frozenset(at.ssp for at in positions) if closing == "end-of-stream" else ended_inputs,
            {op: due for op, due in next_due.items() if op not in closed | drained},
            closing,
            _read_and_written(self.intermediate, read, written or {}),
            frozenset() if closing else closed,
            drained,
            "none" if closing or not closed else batch.control if self.closing_with == "none" else self.closing_with,
            self.lost,
            self.offered if offered is None else offered,
            self.moved,
            self.quiet_until,
        ).or_loud()

    @property
    def closed(self) -> bool:
        """True if nothing is in flight and nothing waits for time, because the last batch saw to it."""
        return self.closing is not None

    @property
    def partly_closed(self) -> bool:
        """True if some operators were brought to their end, and others not yet. No checkpoint is of such a boundary."""
        return bool(self.closed_operators)

    @property
    def ends(self) -> bool:
        """True if operators were brought to their end: no checkpoint but the last one of the run follows."""
        return self.closed or self.partly_closed or bool(self.drained_operators)

    @property
    def left(self) -> int:
        """Messages that wait in durable intermediate streams, for stage 0."""
        return sum(each.left() for each in self.intermediate.values())

    @property
    def unread(self) -> dict[SystemStreamPartition, tuple[int, int]]:
        """The first unread range of each partition of an intermediate stream that has one."""
        return {
            SystemStreamPartition(stream.system, stream.stream, partition): offsets
            for stream, each in self.intermediate.items()
            for partition, offsets in each.next_ranges().items()
        }

    def due(self, moment: BatchTime) -> bool:
        """True if a timer or a window is to fire, in the next batch or once watermarks have come to it."""
        firing, coming = moment.watermarks.firing, moment.coming
        return any(
            (event is not None and event <= max(firing.get(operator, event - 1), coming.get(operator, event - 1)))
            or (processing is not None and processing <= moment.time_ms)
            for operator, (event, processing) in self.next_due.items()
        )

    @property
    def is_behind(self) -> bool:
        """True if the last batch left timers that were due in it. They fire before new messages are read: otherwise
        waiting timers could grow faster than they fire."""
        return any(
            event is not None and event <= self.watermarks.get(operator, event - 1)
            for operator, (event, _) in self.next_due.items()
        )

    def next_processing_ms(self) -> int | None:
        """The time of the next timer in processing time, in epoch milliseconds; None if there is none."""
        return min((at for _, at in self.next_due.values() if at is not None), default=None)


def written_in(
    batch: Batch, appended: Mapping[str, Mapping[int, Ranges]], readers: Iterable[IntermediateSpec]
) -> dict[SystemStream, WrittenRanges]:
    """The writes of a batch to each durable intermediate stream, with the time up to which they are complete. While the
    job is being closed, event time stands still after a stream, until its readers have their own closing batch.

    Args:
        appended: stream → partition → ranges of offsets.
        readers: the operators that read these streams.
    """
    return {
        op.stream: WrittenRanges(
            batch.number,
            # What closes behind the stream still emits messages of the time that it has reached.
            NO_WATERMARK if batch.ends(op.writer) else batch.output_watermark(op.writer),
            appended.get(str(op.stream), {}),
        )
        for op in readers
    }


def _read_and_written(
    before: Mapping[SystemStream, IntermediateStream],
    read: Mapping[TaskSsp, PortionRead],
    written: Mapping[SystemStream, WrittenRanges],
) -> dict[SystemStream, IntermediateStream]:
    by_stream: dict[SystemStream, dict[int, int]] = {}
    for at, part in read.items():
        by_stream.setdefault(at.ssp.system_stream, {})[at.ssp.partition] = part.next_offset
    return {
        stream: before.get(stream, IntermediateStream()).after(by_stream.get(stream, {}), written.get(stream))
        for stream in {**before, **written}
    }
