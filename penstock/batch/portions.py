"""Plans the portions of the next batch. Pure.

A portion is the part of a partition that a batch may read. Its size follows the time that earlier batches took; the
order of the inputs is Samza's, bootstrap and priority, in terms of batches. What was read of a portion is here as
well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.wording import counted
from penstock.batch.batch import Ends, Loss, Positions, TaskSsp, refuse_losses
from penstock.config.model import JobConfig
from penstock.errors import NotFoundError, RetryableError
from penstock.system.base import OffsetRange, PartitionOffsets

FIRST_MESSAGES = 100
"""The size of a run's first batch, while nobody knows how long a message takes and how large it is."""

_GROW_AT_MOST = 10
_TOO_SHORT, _TOO_LONG = 0.8, 1.25
"""Between these fractions of the target a batch has the right size: small differences are noise."""

InputOfTask = tuple[int, SystemStream]


class InputRead(NamedTuple):
    """The part of an input that a task read in a batch."""

    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """The configured bounds: the most messages and bytes of a batch, and the aim for its duration in milliseconds; 0
    for no aim."""

    messages: int
    bytes: int
    target_ms: int


@dataclass(frozen=True, slots=True)
class BatchPace:
    """The most messages and bytes of the next batch, and the measurements for the ones after it."""

    messages: int
    bytes: int
    message_bytes: Mapping[InputOfTask, float] = field(default_factory=dict)
    """The size of a message, for every input that a task has read. A larger size counts at once, a smaller one
    gradually."""
    shortest_ms: float | None = None
    """The shortest batch so far: roughly the time of a batch that reads nearly nothing."""

    @classmethod
    def first(cls, bounds: BatchBounds) -> BatchPace:
        return cls(bounds.messages if not bounds.target_ms else min(bounds.messages, FIRST_MESSAGES), bounds.bytes)

    def size_of(self, task: int, stream: SystemStream) -> float:
        """Bytes of a message, as known of this input, or else of any; 0 if nothing is known."""
        known = self.message_bytes
        return known.get((task, stream)) or max(
            (size for (_, other), size in known.items() if other == stream), default=max(known.values(), default=0.0)
        )

    def after(
        self, bounds: BatchBounds, took_ms: float, messages: int, read: Mapping[InputOfTask, InputRead]
    ) -> BatchPace:
        known = dict(self.message_bytes)
        for key, (number, size) in read.items():
            if number:
                known[key] = max(size / number, (known.get(key, 0.0) + size / number) / 2)
        shortest = took_ms if self.shortest_ms is None else min(self.shortest_ms, took_ms)
        return replace(
            self,
            messages=next_messages(self.messages, bounds, took_ms, messages, shortest),
            message_bytes=known,
            shortest_ms=shortest,
        )


def next_messages(current: int, bounds: BatchBounds, took_ms: float, messages: int, shortest_ms: float) -> int:
    """The most messages of the next batch, after one that could read `current` and did read `messages`.

    A batch takes a fixed time, and some for each message; one without messages says nothing. The fixed time is at most
    that of the shortest batch. No batch is made so small that the fixed time is more than half of it: if the target is
    shorter than twice the shortest batch, that is the target. Growing assumes that the messages take all of the time,
    and so never goes too far. Shrinking assumes that the shortest batch had no messages, and so needs one step.
    """
    if not bounds.target_ms:
        return bounds.messages
    if not messages:
        return current
    target_ms = max(bounds.target_ms, 2 * shortest_ms)
    if took_ms > _TOO_LONG * target_ms:
        wanted = int(messages * (target_ms - shortest_ms) / (took_ms - shortest_ms))
        return max(1, min(current, wanted))
    if took_ms < _TOO_SHORT * target_ms and messages >= current:
        wanted = int(current * min(_GROW_AT_MOST, target_ms / max(took_ms, 1e-3)))
        return min(bounds.messages, max(current + 1, wanted))
    return current


def fair_shares(total: int, wanted: Sequence[int]) -> list[int]:
    """Divide the total so that nobody gets more than wanted, and all who get less than wanted get the same (except for
    one, if it does not divide evenly)."""
    shares = [0] * len(wanted)
    left = max(0, total)
    by_size = sorted(range(len(wanted)), key=wanted.__getitem__)
    for place, number in enumerate(by_size):
        shares[number] = min(wanted[number], left // (len(wanted) - place))
        left -= shares[number]
    return shares


@dataclass(frozen=True, slots=True)
class Portion:
    """The first messages of a range, at most `messages` of them. Offsets may have gaps, so only reading shows the
    offset of the last one."""

    offsets: OffsetRange
    messages: int

    def check(self, read: PortionRead) -> None:
        """Raise RetryableError if `read` cannot be a result of reading this portion."""
        first, last = self.offsets.start + 1, self.offsets.end
        if not (first <= read.next_offset <= last and 0 <= read.messages <= self.messages):
            raise RetryableError(
                f"`{self.offsets.ssp}`: at most {self.messages} messages of the offsets [{self.offsets.start}, {last}) "
                f"were to be read, but {read.messages} up to offset {read.next_offset} were reported"
            )


@dataclass(frozen=True, slots=True)
class PortionRead:
    """The part of a portion that was read."""

    next_offset: int
    messages: int = 0
    bytes: int = 0
    """Bytes of keys and values."""
    event_time_ms: int | None = None
    """The highest event time of its messages that is not too far ahead; None: there is none, or nothing uses it."""
    ahead: int = 0
    """Messages whose event time is further ahead of the batch time than `job.watermark.max.ahead.ms`."""
    foreign: int = 0
    """Messages of an intermediate stream that Penstock did not write, and leaves out."""

    def with_times(self, highest_ms: int | None, ahead: int) -> PortionRead:
        known = (each for each in (self.event_time_ms, highest_ms) if each is not None)
        return replace(self, event_time_ms=max(known, default=None), ahead=self.ahead + ahead)


def plan_ranges(
    positions: Positions, ends: Ends, pace: BatchPace, until: Mapping[SystemStreamPartition, int] | None
) -> dict[TaskSsp, Portion]:
    """The next batch: from the next offset of every task in every partition that has something new.

    All portions together have at most the messages of the pace and, as far as sizes are known, its bytes; but each may
    have one message. They share them fairly: a partition with a backlog takes nothing from one without. The range of
    each goes to the end of the partition, because offsets may have gaps: messages are counted as they are read.

    Raises:
        NotFoundError: a partition no longer has its next offset; nothing is ever skipped here.
    """
    new = {at: stop - start for at, start, stop in _new_messages(positions, ends, until)}
    by_messages = fair_shares(pace.messages, list(new.values()))
    sizes = [pace.size_of(at.task, at.ssp.system_stream) for at in new]
    wanted_bytes = [math.ceil(max(1, n) * size) for n, size in zip(by_messages, sizes, strict=True)]
    by_bytes = fair_shares(pace.bytes, wanted_bytes)
    portions: dict[TaskSsp, Portion] = {}
    for at, n, size, wanted, share in zip(new, by_messages, sizes, wanted_bytes, by_bytes, strict=True):
        messages = n if share == wanted else int(share / size)
        offsets = OffsetRange(at.ssp, positions[at], positions[at] + new[at])
        portions[at] = Portion(offsets, max(1, messages))
    return portions


def _new_messages(
    positions: Positions, ends: Ends, until: Mapping[SystemStreamPartition, int] | None
) -> Iterator[tuple[TaskSsp, int, int]]:
    for at, start in sorted(positions.items()):
        ssp, end = at.ssp, ends[at.ssp]
        if start > end.upcoming:
            raise NotFoundError(
                f"`{ssp}` should be read from offset {start}, but its next message will be {end.upcoming}: the stream "
                "is not the one that was read before, or has lost its end. Nothing was skipped. Choose where to "
                "continue with a startpoint (`penstock startpoint set JOB --oldest --all-partitions --stream "
                f"{ssp.system_stream}`)"
            )
        stop = end.upcoming if until is None else min(end.upcoming, until[ssp])
        if stop > start:
            if start < end.oldest:
                refuse_losses([Loss(ssp, start, end.oldest)])
            yield at, start, stop


@dataclass(frozen=True, slots=True)
class UnreadMessages:
    """The unread messages of durable intermediate streams, as of inputs that end there: task i reads partition i."""

    positions: Positions
    ends: Ends
    messages: int
    """UnreadMessages messages, including those after these ranges."""

    @classmethod
    def of(cls, ranges: Mapping[SystemStreamPartition, tuple[int, int]], messages: int) -> UnreadMessages:
        return cls(
            {TaskSsp(ssp.partition, ssp): start for ssp, (start, _) in ranges.items()},
            {ssp: PartitionOffsets(start, end) for ssp, (start, end) in ranges.items()},
            messages,
        )


def plan_with_unread(
    inputs: Callable[[BatchPace], dict[TaskSsp, Portion]], pace: BatchPace, unread: UnreadMessages
) -> dict[TaskSsp, Portion]:
    """The next batch, in which the unread messages of durable intermediate streams come first: only a batch that reads
    all of them reads inputs too, with the pace that is left. So a stream holds about as much as one batch writes,
    however many messages a message of an input leads to, and however large they are. `inputs` plans the portions of the
    inputs for a pace.

    Raises:
        NotFoundError: as `plan_ranges`.
    """
    portions = plan_ranges(unread.positions, unread.ends, pace, None)
    messages = sum(portion.messages for portion in portions.values())
    size = sum(portion.messages * pace.size_of(at.task, at.ssp.system_stream) for at, portion in portions.items())
    left = replace(pace, messages=pace.messages - messages, bytes=pace.bytes - math.ceil(size))
    if messages < unread.messages or (portions and (left.messages < 1 or left.bytes < 1)):
        return portions
    return {**portions, **inputs(left)}


def up_to(portions: Mapping[TaskSsp, Portion], targets: Positions) -> dict[TaskSsp, Portion]:
    """The portions, each to its target at most. Portions without a target stay as they are."""
    found = dict(portions)
    for at in portions.keys() & targets.keys():
        offsets = found[at].offsets
        found[at] = replace(found[at], offsets=replace(offsets, end=min(offsets.end, targets[at])))
    return found


@dataclass(frozen=True, slots=True)
class BatchRanges:
    """A planned batch: its portions, and the same by task with the number of each input."""

    portions: Mapping[TaskSsp, Portion]
    by_task: Mapping[int, tuple[tuple[int, Portion], ...]]

    @property
    def messages(self) -> int:
        """The most messages that it reads; a message of a broadcast partition counts once for each task. It reads fewer
        if offsets have gaps."""
        return sum(portion.messages for portion in self.portions.values())

    def advance(self, positions: Positions, read: Mapping[TaskSsp, PortionRead]) -> dict[TaskSsp, int]:
        """The positions after the batch read `read`.

        Raises:
            RetryableError: the batch cannot have read this.
        """
        if read.keys() != self.portions.keys():
            raise RetryableError(
                f"{counted(len(self.portions), 'partition')} were to be read, but {len(read)} were reported"
            )
        for at, portion in self.portions.items():
            portion.check(read[at])
        return {at: read[at].next_offset if at in read else start for at, start in positions.items()}

    @classmethod
    def group(cls, portions: Mapping[TaskSsp, Portion], inputs: tuple[SystemStream, ...]) -> BatchRanges:
        """`inputs` are the input streams in the order of their numbers. A task reads its portions in the order in which
        they are given."""
        by_task: dict[int, list[tuple[int, Portion]]] = {}
        for at, portion in portions.items():
            by_task.setdefault(at.task, []).append((inputs.index(at.ssp.system_stream), portion))
        return cls(dict(portions), {task: tuple(items) for task, items in by_task.items()})


NOTHING = BatchRanges({}, {})


def read_by_input(read: Mapping[TaskSsp, PortionRead]) -> dict[InputOfTask, InputRead]:
    found: dict[InputOfTask, InputRead] = {}
    for at, part in read.items():
        before = found.get((at.task, at.ssp.system_stream), InputRead(0, 0))
        found[at.task, at.ssp.system_stream] = InputRead(before.messages + part.messages, before.bytes + part.bytes)
    return found


@dataclass(frozen=True, slots=True)
class InputOrder:
    """The order of the inputs of a run."""

    priorities: Mapping[SystemStream, int] = field(default_factory=dict)
    """By input; 0 is left out."""
    bootstrap: frozenset[SystemStream] = frozenset()

    @classmethod
    def of(cls, inputs: Collection[SystemStream], config: JobConfig) -> InputOrder:
        priorities = {stream: priority for stream in inputs if (priority := config.stream(stream).priority)}
        return cls(priorities, frozenset(stream for stream in inputs if config.stream(stream).bootstrap))

    def targets(self, ends: Ends) -> dict[SystemStreamPartition, int]:
        """The offsets up to which the bootstrap inputs are read before the others: their ends at the start of the
        run."""
        return {ssp: end.upcoming for ssp, end in ends.items() if ssp.system_stream in self.bootstrap}

    def lagging(
        self, positions: Positions, ends: Ends, targets: Mapping[SystemStreamPartition, int]
    ) -> dict[TaskSsp, int]:
        """The partitions of bootstrap inputs that are not read up to their targets, with their positions."""
        return {
            at: start
            for at, start in positions.items()
            if at.ssp in targets and start < min(targets[at.ssp], ends[at.ssp].upcoming)
        }

    def plan(
        self,
        positions: Positions,
        ends: Ends,
        pace: BatchPace,
        until: Mapping[SystemStreamPartition, int] | None,
        targets: Mapping[SystemStreamPartition, int],
    ) -> dict[TaskSsp, Portion]:
        """Plan the portions of a batch, in the order in which a task reads them. Bootstrap inputs are read alone, until
        they have reached their targets. Then each priority gets the pace that the higher ones leave, if they leave no
        message unread.

        Raises:
            NotFoundError: as `plan_ranges`.
        """
        if lagging := self.lagging(positions, ends, targets):
            to = {at.ssp: min(targets[at.ssp], until[at.ssp]) if until else targets[at.ssp] for at in lagging}
            positions, until = lagging, to
        portions: dict[TaskSsp, Portion] = {}
        for tier in self._tiers(positions):
            found = plan_ranges(tier, ends, pace, until)
            portions |= found
            messages = sum(portion.messages for portion in found.values())
            size = sum(portion.messages * pace.size_of(at.task, at.ssp.system_stream) for at, portion in found.items())
            pace = replace(pace, messages=pace.messages - messages, bytes=pace.bytes - math.ceil(size))
            unread = any(portion.messages < len(portion.offsets) for portion in found.values())
            if unread or (portions and (pace.messages < 1 or pace.bytes < 1)):
                break
        return portions

    def _tiers(self, positions: Positions) -> Iterator[Positions]:
        if not self.priorities:
            yield positions
            return
        tiers: dict[int, dict[TaskSsp, int]] = {}
        for at, start in positions.items():
            tiers.setdefault(self.priorities.get(at.ssp.system_stream, 0), {})[at] = start
        for priority in sorted(tiers, reverse=True):
            yield tiers[priority]
