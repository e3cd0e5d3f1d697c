"""The positions of a job in its inputs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.wording import counted
from penstock.checkpoint.edit import NextOffsets
from penstock.errors import IncompatibleError
from penstock.system.base import PartitionOffsets

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
