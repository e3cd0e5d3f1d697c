"""Plans the portions of the next batch. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.wording import counted
from penstock.batch.losses import Loss, refuse_losses
from penstock.batch.pace import BatchPace, InputOfTask, InputRead, fair_shares
from penstock.batch.portions import Portion, PortionRead
from penstock.batch.positions import Ends, Positions, TaskSsp
from penstock.errors import NotFoundError, RetryableError
from penstock.system.base import OffsetRange, PartitionOffsets


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
