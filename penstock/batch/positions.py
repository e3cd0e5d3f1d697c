"""The positions of a job in its inputs. Pure.

Input messages that were deleted before they were read are found by them, and refused or skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.wording import counted
from penstock.checkpoint.edit import NextOffsets
from penstock.config.settings import StreamSettings
from penstock.errors import IncompatibleError, NotFoundError
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
