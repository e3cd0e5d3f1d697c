"""Finds input messages that were deleted before they were read, and refuses or skips them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.positions import Ends, Positions
from penstock.config.settings import StreamSettings
from penstock.errors import NotFoundError

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
