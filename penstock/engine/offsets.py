"""Where the job stands in its inputs, and what the next batch reads. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.edit import NextOffsets
from penstock.engine.pace import Pace, fair_shares
from penstock.errors import IncompatibleError, NotFoundError
from penstock.system.base import OffsetRange, PartitionOffsets
from penstock.wording import counted

Ends = Mapping[SystemStreamPartition, PartitionOffsets]


@dataclass(frozen=True, slots=True, order=True)
class TaskSsp:
    """A partition as one of its readers has it: of a broadcast partition every task has a position of its own."""

    task: int
    ssp: SystemStreamPartition


Positions = Mapping[TaskSsp, int]
"""The next offset to read, of every task in every partition that it reads."""


def to_positions(next_offsets: NextOffsets) -> dict[TaskSsp, int]:
    """From what a checkpoint says."""
    return {TaskSsp(task, ssp): offset for task, own in next_offsets.items() for ssp, offset in own.items()}


def to_next_offsets(positions: Positions, tasks: int) -> dict[int, dict[SystemStreamPartition, int]]:
    """To what a checkpoint says, also of tasks that read nothing."""
    by_task: dict[int, dict[SystemStreamPartition, int]] = {task: {} for task in range(tasks)}
    for at, offset in positions.items():
        by_task.setdefault(at.task, {})[at.ssp] = offset
    return by_task


def first_positions(ends: Ends, default: Mapping[SystemStream, str]) -> dict[SystemStreamPartition, int]:
    """Where a job without a checkpoint begins: oldest or upcoming, by stream."""
    return {
        ssp: offsets.upcoming if default[ssp.system_stream] == "upcoming" else offsets.oldest
        for ssp, offsets in ends.items()
    }


def resumed_positions(
    saved: Positions, readers: Iterable[TaskSsp], first: Mapping[SystemStreamPartition, int]
) -> dict[TaskSsp, int]:
    """Where a job goes on, by its checkpoint. An input that was added since begins at its first position, and so does
    a task in a partition that it did not read then.

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
            raise IncompatibleError(
                f"input `{stream}` had {counted(len(before), 'partition')} at the checkpoint and has {len(now)} "
                "now. Keys would "
                "move away from their state. Give the job a new `job.id` to start afresh, or restore the stream"
            )
    return {at: saved.get(at, first[at.ssp]) for at in readers}


def plan_ranges(
    positions: Positions, ends: Ends, pace: Pace, until: Mapping[SystemStreamPartition, int] | None
) -> dict[TaskSsp, OffsetRange]:
    """The next batch: from the next offset of every task in every partition that has something new.

    All ranges together have at most the messages and, by what is known of their sizes, the bytes of the pace; but each
    has one message at least. They share them fairly: a partition with a backlog takes nothing from one without.

    Raises:
        NotFoundError: a partition no longer has its next offset; nothing is ever skipped.
    """
    new = {at: stop - start for at, start, stop in _new_messages(positions, ends, until)}
    by_messages = fair_shares(pace.messages, list(new.values()))
    sizes = [pace.size_of(at.task, at.ssp.system_stream) for at in new]
    wanted_bytes = [math.ceil(max(1, n) * size) for n, size in zip(by_messages, sizes, strict=True)]
    by_bytes = fair_shares(pace.bytes, wanted_bytes)
    ranges: dict[TaskSsp, OffsetRange] = {}
    for at, n, size, wanted, share in zip(new, by_messages, sizes, wanted_bytes, by_bytes, strict=True):
        messages = n if share == wanted else int(share / size)
        ranges[at] = OffsetRange(at.ssp, positions[at], positions[at] + max(1, messages))
    return ranges


def _new_messages(
    positions: Positions, ends: Ends, until: Mapping[SystemStreamPartition, int] | None
) -> Iterator[tuple[TaskSsp, int, int]]:
    """The next offset and the end of what can be read, where that is anything."""
    for at, start in positions.items():
        ssp, end = at.ssp, ends[at.ssp]
        if start < end.oldest:
            raise NotFoundError(
                f"`{ssp}` should be read from offset {start}, but its oldest message is {end.oldest}: messages were "
                "removed before they were read. Choose where to continue with `penstock startpoint set`"
            )
        if start > end.upcoming:
            raise NotFoundError(
                f"`{ssp}` should be read from offset {start}, but its next message will be {end.upcoming}: the stream "
                "is not the one that was read before"
            )
        stop = end.upcoming if until is None else min(end.upcoming, until[ssp])
        if stop > start:
            yield at, start, stop


def advance(positions: Positions, ranges: Mapping[TaskSsp, OffsetRange]) -> dict[TaskSsp, int]:
    """The positions after the batch has ended."""
    return {at: ranges[at].end if at in ranges else start for at, start in positions.items()}


@dataclass(frozen=True, slots=True)
class BatchRanges:
    """A planned batch: its ranges, and the same by task with the number of each input."""

    ranges: Mapping[TaskSsp, OffsetRange]
    by_task: Mapping[int, tuple[tuple[int, OffsetRange], ...]]

    @property
    def messages(self) -> int:
        """How many messages it reads; one of a broadcast partition counts once for each task."""
        return sum(len(offsets) for offsets in self.ranges.values())

    def sizes(self, input_bytes: Mapping[tuple[int, int], int]) -> dict[tuple[int, SystemStream], tuple[int, int]]:
        """(messages, bytes) of every task and input, from the bytes that were read by (task, number of the input)."""
        found: dict[tuple[int, SystemStream], tuple[int, int]] = {}
        for task, own in self.by_task.items():
            for index, offsets in own:
                key = (task, offsets.ssp.system_stream)
                before = found[key][0] if key in found else 0
                found[key] = (before + len(offsets), input_bytes.get((task, index), 0))
        return found

    @classmethod
    def group(cls, ranges: Mapping[TaskSsp, OffsetRange], inputs: tuple[SystemStream, ...]) -> BatchRanges:
        """`inputs` are the input streams in the order of their numbers."""
        by_task: dict[int, list[tuple[int, OffsetRange]]] = {}
        for at in sorted(ranges):
            by_task.setdefault(at.task, []).append((inputs.index(at.ssp.system_stream), ranges[at]))
        return cls(dict(ranges), {task: tuple(items) for task, items in by_task.items()})
