"""The batch: chosen once by the driver, and the same in every run; and the positions of a job in its inputs.

Beside the batch are the last one of a streaming query that the job runs inside, and the messages that a batch watches
or leaves out because they may have ended the process in which they were processed. Positions show which messages were
deleted before they were read: these are refused or skipped. All are pure values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.firing import END_OF_TIME as END_OF_TIME
from penstock.api.time.firing import NO_WATERMARK as NO_WATERMARK
from penstock.base.wording import counted
from penstock.checkpoint.edit import NextOffsets
from penstock.checkpoint.sections import Section
from penstock.config.settings import StreamSettings
from penstock.errors import IncompatibleError, NotFoundError
from penstock.host.position_page import MessageId, Span
from penstock.system.base import PartitionOffsets


@dataclass(frozen=True, slots=True)
class WatchedTask:
    """A task in which a process has ended. It processes the messages that may have been the cause one at a time, and
    names each firing, and nothing beside them in its process, so that another end names its message."""

    stage: int
    task: int
    spans: tuple[Span, ...]
    """The messages that may have been it."""

    def suspects(self, span: Span) -> bool:
        """True if one of these messages may have been it."""
        return any(each.meets(span) for each in self.spans)


@dataclass(frozen=True, slots=True)
class Culprit:
    """A message that ended its process again and again. It is not processed any more, and becomes a dead letter."""

    message: MessageId
    why: str
    """The end of the processes, in words."""


Due: TypeAlias = tuple[int | None, int | None]
"""The times of an operator's oldest timers in epoch milliseconds: in event time, and in processing time. None: it has
none."""

NOTHING_DUE: Due = (None, None)


def earlier(one: Due, other: Due) -> Due:
    """The earlier one of both, in each of the two times."""
    found = [min((each for each in pair if each is not None), default=None) for pair in zip(one, other, strict=True)]
    return found[0], found[1]


Control: TypeAlias = Literal["none", "end-of-stream", "drain", "drain-operators"]
"""The end that a batch brings. `drain-operators`: a drain for the operators that it closes, and for no others."""

Ending: TypeAlias = Literal["end-of-stream", "drain"]
"""The end of an operator, as the operator sees it."""


def is_new_period(before_ms: int | None, time_ms: int, period_ms: int) -> bool:
    """True if another period has begun since the previous batch. False for the first batch."""
    return before_ms is not None and period_ms > 0 and before_ms // period_ms != time_ms // period_ms


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, as every stage, attempt and call to a container gets it.

    The driver chooses it once. A run that failed is repeated with the same values and the next `run`. Stages and
    attempts see no other clock than `time_ms`.

    Example:
        >>> Batch(number=7, run=1, time_ms=1_700_000_000_000).next_run().run
        2
    """

    number: int
    """Counts the batches of the job, from 1. After a rewind the numbers after the checkpoint are used again."""
    run: int
    """Counts the executions of the batch within its epoch, from 1."""
    time_ms: int
    """The batch time, in epoch milliseconds. It never falls from one batch to the next."""
    control: Control = "none"
    """The batch ends its inputs, or drains the job."""
    late: Mapping[str, int] = field(default_factory=dict)
    """By operator id, the firing watermark of the previous batch, in epoch milliseconds; absent: NO_WATERMARK. A
    message with an event time below it is late."""
    firing: Mapping[str, int] = field(default_factory=dict)
    """By operator id, the watermark up to which event-time timers and windows fire in the end-of-input step; absent:
    NO_WATERMARK. It is never below `late`."""
    held: Mapping[str, int] = field(default_factory=dict)
    """By operator id, the output watermark of the operators with due timers of earlier batches: it is below the
    oldest."""

    before_ms: int | None = None
    """The time of the previous batch, in epoch milliseconds; None: this is the first batch of the job."""
    closes: tuple[str, ...] | None = None
    """The operators that the control is for, if durable intermediate streams divide the application, or only these are
    drained; None: all."""
    closed: tuple[str, ...] = ()
    """The operators that an earlier batch has closed, and those that wait until others have drained alone. They do
    nothing by themselves."""
    tables: Mapping[str, int] = field(default_factory=dict)
    """By pushed table, the version that the batch reads."""
    quiet: bool = False
    """Nothing is sent to outputs: messages are read again whose output was sent before. Dead letters are sent."""
    watched: tuple[WatchedTask, ...] = ()
    """The tasks in which processes have ended. May differ between runs."""
    culprits: tuple[Culprit, ...] = ()
    """The messages that are dead letters for having ended their processes. May differ between runs."""

    @property
    def last_ended(self) -> int:
        return self.number - 1

    def late_watermark(self, operator: str) -> int:
        """Messages of the operator with an event time below it are late."""
        return self.late.get(operator, NO_WATERMARK)

    def firing_watermark(self, operator: str) -> int:
        """Timers and windows of the operator up to this event time fire at the end of the batch's input."""
        return self.firing.get(operator, NO_WATERMARK)

    def output_watermark(self, operator: str) -> int:
        """Timers and windows of the operator up to this event time must fire in this batch: operators downstream take
        it as complete. Later ones, up to the firing watermark, may fire in one of the next batches."""
        return self.held.get(operator, self.firing_watermark(operator))

    def earliest_output(self, operator: str) -> int:
        """A result of the operator with this event time or a later one is late at no later operator."""
        return min(self.late_watermark(operator), self.output_watermark(operator) + 1)

    @property
    def ending(self) -> Ending | None:
        """The end that the batch brings, whether to all operators or to some; None: none."""
        if self.control == "none":
            return None
        return "end-of-stream" if self.control == "end-of-stream" else "drain"

    def seen_by(self, operator: str) -> Batch:
        """The batch as the operator gets it: the control of others is not its own."""
        if self.control == "none" or self.closes is None or operator in self.closes:
            return self
        return replace(self, control="none")

    def ends(self, operator: str) -> bool:
        """True if this batch or an earlier one brings the operator to its end."""
        return operator in self.closed or self.seen_by(operator).control != "none"

    def begins_period(self, period_ms: int) -> bool:
        """True if it is the first batch of a period of batch time. Periods begin at multiples of `period_ms`; below 1,
        there are none."""
        return is_new_period(self.before_ms, self.time_ms, period_ms)

    def with_suspects(self, watched: tuple[WatchedTask, ...], culprits: tuple[Culprit, ...]) -> Batch:
        return replace(self, watched=watched, culprits=culprits)

    def next_run(self) -> Batch:
        return replace(self, run=self.run + 1)

    def __str__(self) -> str:
        return f"batch {self.number} run {self.run}"


NO_BATCH = Batch(-1, -1, 0)
"""The time before the first batch of an epoch. No attempt belongs to it."""


@dataclass(frozen=True, slots=True)
class OfferedBatch:
    """The last batch that a streaming query has handed over to the job inside it."""

    plan: str = ""
    """Distinguishes it from other batches of its number: a query whose checkpoint location was set back plans them
    again. Empty: not known."""
    has_output: bool = True
    """True if the objects that the record names are its output."""
    schema: str = ""
    """Distinguishes the columns of its outputs from others. Empty: not known."""


@dataclass(frozen=True, slots=True)
class QuerySection:
    """The query that the job runs inside, at a checkpoint."""

    offered: OfferedBatch | None = None
    """Its last batch. None: the job runs by itself, or has seen no batch yet."""


QUERY = Section("query", QuerySection, needed=True)


Ends = Mapping[SystemStreamPartition, PartitionOffsets]


@dataclass(frozen=True, slots=True, order=True)
class TaskSsp:
    """A partition and the task that reads it: every task has its own position in a broadcast partition."""

    task: int
    ssp: SystemStreamPartition


Positions = Mapping[TaskSsp, int]
"""The next offset to read, of every task in every partition that it reads."""


def to_positions(next_offsets: NextOffsets) -> dict[TaskSsp, int]:
    return {TaskSsp(task, ssp): offset for task, own in next_offsets.items() for ssp, offset in own.items()}


def to_next_offsets(positions: Positions, tasks: int) -> dict[int, dict[SystemStreamPartition, int]]:
    """The offsets for a checkpoint, with an entry for each task, even if it reads nothing."""
    return {task: {} for task in range(tasks)} | by_task(positions)


def by_task(values: Positions) -> dict[int, dict[SystemStreamPartition, int]]:
    found: dict[int, dict[SystemStreamPartition, int]] = {}
    for at, value in values.items():
        found.setdefault(at.task, {})[at.ssp] = value
    return found


def first_positions(ends: Ends, default: Mapping[SystemStream, str]) -> dict[SystemStreamPartition, int]:
    """The first positions of a job without a checkpoint: oldest or upcoming, by stream."""
    return {
        ssp: offsets.upcoming if default[ssp.system_stream] == "upcoming" else offsets.oldest
        for ssp, offsets in ends.items()
    }


def resumed_positions(
    saved: Positions, readers: Iterable[TaskSsp], first: Mapping[SystemStreamPartition, int]
) -> dict[TaskSsp, int]:
    """The positions at which a job continues from its checkpoint. An input that was added since begins at its first
    position, and so does a task in a partition that it did not read then.

    Args:
        first: of every partition of every input.

    Raises:
        IncompatibleError: an input has another number of partitions than at the checkpoint.
    """
    known = {at.ssp for at in saved}
    for stream in sorted({ssp.system_stream for ssp in first}):
        before = {ssp.partition for ssp in known if ssp.system_stream == stream}
        now = {ssp.partition for ssp in first if ssp.system_stream == stream}
        if before and before != now:
            raise partitions_changed(stream, len(before), len(now), "at the checkpoint")
    return {at: saved.get(at, first[at.ssp]) for at in readers}


def partitions_changed(stream: SystemStream, before: int, now: int, when: str) -> IncompatibleError:
    return IncompatibleError(
        f"input `{stream}` had {counted(before, 'partition')} {when} and has {now} now. Task i has the state of the "
        "keys in partition i, and keys are in other partitions now. Nothing is lost: state and positions are as of the "
        "last checkpoint. `penstock state repartition APP --tasks N` says what becomes of the state with N tasks, at "
        "least one for each partition, and moves it. Or start the job under a new `job.id`: it builds its state from "
        f"the oldest messages. Or copy the messages that the checkpoint has not seen to a stream with "
        f"{counted(before, 'partition')}, by their keys, and read that"
    )


Lost = Mapping[SystemStreamPartition, int]
"""Lost offsets of each partition; messages if the system has `dense_offsets`."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The offsets from `start` to before `end` of a partition are gone, and at least one of its readers has not read
    them."""

    ssp: SystemStreamPartition
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        stream, partition = self.ssp.system_stream, self.ssp.partition
        which = f"offset {self.start}" if len(self) == 1 else f"the offsets {self.start} to {self.end - 1}"
        return f"{which} of stream `{stream}` partition {partition}"


def find_losses(
    positions: Positions, ends: Ends, until: Mapping[SystemStreamPartition, int] | None = None
) -> tuple[Loss, ...]:
    """The lost offsets of each partition, for all its readers together.

    Args:
        positions: the next offset of every reader.
        ends: the ends of the partitions, now.
        until: the offsets before which the run ends. Later offsets are not lost, because they are not read.
    """
    starts: dict[SystemStreamPartition, int] = {}
    for at, start in positions.items():
        oldest = ends[at.ssp].oldest
        if start < oldest and (until is None or start < until[at.ssp]):
            starts[at.ssp] = min(start, starts.get(at.ssp, start))
    return tuple(Loss(ssp, start, ends[ssp].oldest) for ssp, start in sorted(starts.items()))


def refuse_losses(losses: Iterable[Loss], skipped: Collection[SystemStream] = ()) -> None:
    """Raise NotFoundError, with both ways to continue, if messages of a stream are lost that is not to be skipped."""
    found = [loss for loss in losses if loss.ssp.system_stream not in skipped]
    if not found:
        return
    first, more = found[0], len(found) - 1
    stream = first.ssp.system_stream
    were, them = ("was", "it") if len(first) == 1 else ("were", "them")
    others = f" (and messages of {more} other partitions)" if more else ""
    skip = StreamSettings.on_data_loss.full(str(stream))
    raise NotFoundError(
        f"{first} {were} deleted before the job had read {them}{others}: it should read from offset {first.start}, and "
        f"the oldest message is {first.end}. Nothing was skipped. Choose where to continue with a startpoint "
        f"(`penstock startpoint set JOB --oldest --all-partitions --stream {stream}`), or set "
        f"`{skip}=skip`: the job then continues at the oldest message and counts what is lost"
    )


def after_losses(positions: Positions, losses: Iterable[Loss]) -> Positions:
    behind = {loss.ssp: loss.end for loss in losses}
    return {at: max(start, behind.get(at.ssp, start)) for at, start in positions.items()}


def with_losses(lost: Lost, losses: Iterable[Loss]) -> Lost:
    total = dict(lost)
    for loss in losses:
        total[loss.ssp] = total.get(loss.ssp, 0) + len(loss)
    return total
