"""The positions of a job in its inputs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.edit import NextOffsets
from penstock.errors import IncompatibleError
from penstock.system.base import PartitionOffsets
from penstock.wording import counted

Ends = Mapping[SystemStreamPartition, PartitionOffsets]


@dataclass(frozen=True, slots=True, order=True)
class TaskSsp:
    """A partition as one of its readers has it: of a broadcast partition every task has a separate position."""

    task: int
    ssp: SystemStreamPartition


Positions = Mapping[TaskSsp, int]
"""The next offset to read, of every task in every partition that it reads."""


def to_positions(next_offsets: NextOffsets) -> dict[TaskSsp, int]:
    """From what a checkpoint says."""
    return {TaskSsp(task, ssp): offset for task, own in next_offsets.items() for ssp, offset in own.items()}


def to_next_offsets(positions: Positions, tasks: int) -> dict[int, dict[SystemStreamPartition, int]]:
    """To what a checkpoint says, also of tasks that read nothing."""
    return {task: {} for task in range(tasks)} | by_task(positions)


def by_task(values: Positions) -> dict[int, dict[SystemStreamPartition, int]]:
    """By task, then by partition."""
    found: dict[int, dict[SystemStreamPartition, int]] = {}
    for at, value in values.items():
        found.setdefault(at.task, {})[at.ssp] = value
    return found


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
