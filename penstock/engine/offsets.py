"""Where the job stands in its inputs, and what the next batch reads. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.errors import IncompatibleError, NotFoundError
from penstock.system.base import OffsetRange, PartitionOffsets

Positions = Mapping[SystemStreamPartition, int]
"""The next offset to read, of every partition of every input."""
Ends = Mapping[SystemStreamPartition, PartitionOffsets]


def first_positions(ends: Ends, default: Mapping[SystemStream, str]) -> dict[SystemStreamPartition, int]:
    """Where a job without a checkpoint begins: oldest or upcoming, by stream."""
    return {
        ssp: offsets.upcoming if default[ssp.system_stream] == "upcoming" else offsets.oldest
        for ssp, offsets in ends.items()
    }


def resumed_positions(saved: Positions, ends: Ends, first: Positions) -> dict[SystemStreamPartition, int]:
    """Where a job with a checkpoint goes on. An input that was added since begins at its first position.

    Raises:
        IncompatibleError: an input has another number of partitions than at the checkpoint.
    """
    for stream in sorted({ssp.system_stream for ssp in ends}):
        before = sorted(ssp.partition for ssp in saved if ssp.system_stream == stream)
        now = sorted(ssp.partition for ssp in ends if ssp.system_stream == stream)
        if before and before != now:
            raise IncompatibleError(
                f"input `{stream}` had {len(before)} partitions at the checkpoint and has {len(now)} now. Keys would "
                "move away from their state. Give the job a new `job.id` to start afresh, or restore the stream"
            )
    return {ssp: saved.get(ssp, first[ssp]) for ssp in ends}


def plan_ranges(
    positions: Positions, ends: Ends, limit: int, until: Positions | None
) -> dict[SystemStreamPartition, OffsetRange]:
    """The next batch: `[next, min(upcoming, next + limit))` of every partition that has something new.

    Raises:
        NotFoundError: a partition no longer has its next offset; nothing is ever skipped.
    """
    ranges: dict[SystemStreamPartition, OffsetRange] = {}
    for ssp, start in positions.items():
        end = ends[ssp]
        if start < end.oldest:
            raise NotFoundError(
                f"`{ssp}` should be read from offset {start}, but its oldest message is {end.oldest}: messages were "
                "removed before they were read"
            )
        if start > end.upcoming:
            raise NotFoundError(
                f"`{ssp}` should be read from offset {start}, but its next message will be {end.upcoming}: the stream "
                "is not the one that was read before"
            )
        stop = end.upcoming if until is None else min(end.upcoming, until[ssp])
        if stop > start:
            ranges[ssp] = OffsetRange(ssp, start, min(stop, start + limit))
    return ranges


def advance(
    positions: Positions, ranges: Mapping[SystemStreamPartition, OffsetRange]
) -> dict[SystemStreamPartition, int]:
    """The positions after the batch has ended."""
    return {ssp: ranges[ssp].end if ssp in ranges else start for ssp, start in positions.items()}


@dataclass(frozen=True, slots=True)
class BatchRanges:
    """A planned batch: its ranges, and the same by task with the number of each input."""

    ranges: Mapping[SystemStreamPartition, OffsetRange]
    by_task: Mapping[int, tuple[tuple[int, OffsetRange], ...]]

    @property
    def messages(self) -> int:
        """How many messages it reads."""
        return sum(len(offsets) for offsets in self.ranges.values())

    @classmethod
    def group(
        cls, ranges: Mapping[SystemStreamPartition, OffsetRange], inputs: tuple[SystemStream, ...]
    ) -> BatchRanges:
        """Task i reads partition i of every input."""
        by_task: dict[int, list[tuple[int, OffsetRange]]] = {}
        for ssp, offsets in sorted(ranges.items()):
            by_task.setdefault(ssp.partition, []).append((inputs.index(ssp.system_stream), offsets))
        return cls(dict(ranges), {task: tuple(items) for task, items in by_task.items()})
