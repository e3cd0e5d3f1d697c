"""Which offsets the next batch reads. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.errors import NotFoundError
from penstock.plan.pace import InputOfTask, InputRead, Pace, fair_shares
from penstock.plan.positions import Ends, Positions, TaskSsp
from penstock.system.base import OffsetRange


def plan_ranges(
    positions: Positions, ends: Ends, pace: Pace, until: Mapping[SystemStreamPartition, int] | None
) -> dict[TaskSsp, OffsetRange]:
    """The next batch: from the next offset of every task in every partition that has something new.

    All ranges together have at most the messages and, by what is known of their sizes, the bytes of the pace; but each
    has one message at least. They share them fairly: a partition with a backlog takes nothing from one without. Where
    offsets have gaps, how many messages a range has is estimated by those read before.

    Raises:
        NotFoundError: a partition no longer has its next offset; nothing is ever skipped.
    """
    new = {at: stop - start for at, start, stop in _new_messages(positions, ends, until)}
    gaps = [pace.gap_of(at.task, at.ssp.system_stream) for at in new]
    by_messages = fair_shares(pace.messages, [math.ceil(n / gap) for n, gap in zip(new.values(), gaps, strict=True)])
    sizes = [pace.size_of(at.task, at.ssp.system_stream) for at in new]
    wanted_bytes = [math.ceil(max(1, n) * size) for n, size in zip(by_messages, sizes, strict=True)]
    by_bytes = fair_shares(pace.bytes, wanted_bytes)
    ranges: dict[TaskSsp, OffsetRange] = {}
    for at, gap, n, size, wanted, share in zip(new, gaps, by_messages, sizes, wanted_bytes, by_bytes, strict=True):
        messages = n if share == wanted else int(share / size)
        length = min(new[at], math.ceil(max(1, messages) * gap))
        ranges[at] = OffsetRange(at.ssp, positions[at], positions[at] + length)
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
        """How many messages it reads at most; one of a broadcast partition counts once for each task. It is fewer
        where offsets have gaps."""
        return sum(len(offsets) for offsets in self.ranges.values())

    def expected(self, pace: Pace) -> int:
        """How many messages it was planned to have, at this pace."""
        found = (len(offsets) / pace.gap_of(at.task, at.ssp.system_stream) for at, offsets in self.ranges.items())
        return sum(math.ceil(messages) for messages in found)

    def read(self, counted: Mapping[tuple[int, int], tuple[int, int]]) -> dict[InputOfTask, InputRead]:
        """What was read of every task and input, from the (messages, bytes) by (task, number of the input)."""
        found: dict[InputOfTask, InputRead] = {}
        for task, own in self.by_task.items():
            for index, offsets in own:
                key = (task, offsets.ssp.system_stream)
                before = found[key].offsets if key in found else 0
                found[key] = InputRead(before + len(offsets), *counted.get((task, index), (0, 0)))
        return found

    @classmethod
    def group(cls, ranges: Mapping[TaskSsp, OffsetRange], inputs: tuple[SystemStream, ...]) -> BatchRanges:
        """`inputs` are the input streams in the order of their numbers."""
        by_task: dict[int, list[tuple[int, OffsetRange]]] = {}
        for at in sorted(ranges):
            by_task.setdefault(at.task, []).append((inputs.index(at.ssp.system_stream), ranges[at]))
        return cls(dict(ranges), {task: tuple(items) for task, items in by_task.items()})
