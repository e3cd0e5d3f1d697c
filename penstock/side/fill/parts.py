"""The assignment of partitions to the stores of a container. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.graph.stores import SideInputs, SideStream, StoreSpec


@dataclass(frozen=True, slots=True)
class SidePart:
    """A store of one task, or one that all tasks of a container share, and the partitions that fill it."""

    spec: StoreSpec
    side: SideInputs
    task: int | None
    """None: the part has everything, for every task."""
    ssps: tuple[SystemStreamPartition, ...]
    tasks: int = 0
    spread: tuple[tuple[SystemStream, int], ...] = ()
    """The streams of which the task takes only its own keys, with their numbers of partitions: those that have not as
    many as there are tasks, and all of them if the store is looked into behind a `partition_by`."""

    @property
    def name(self) -> str:
        return f"store `{self.spec.name}`" + ("" if self.task is None else f" of task {self.task}")

    def spread_of(self, ssp: SystemStreamPartition) -> int | None:
        """The number of partitions of a stream that the task takes only its own keys of; None for other streams."""
        return dict(self.spread).get(ssp.system_stream)

    def stream_of(self, ssp: SystemStreamPartition) -> SideStream:
        return next(each for each in self.side.streams if each.stream == ssp.system_stream)


def streams_of(specs: Iterable[StoreSpec]) -> frozenset[SystemStream]:
    return frozenset(each.stream for spec in specs if isinstance(spec.side, SideInputs) for each in spec.side.streams)


def parts_of(
    specs: Iterable[StoreSpec],
    tasks: Sequence[int],
    partitions: Mapping[SystemStream, int],
    of: int,
    by_hash: Collection[str] = (),
) -> tuple[SidePart, ...]:
    """The parts that a container with these tasks fills. Stores without side inputs are left out.

    Args:
        partitions: the number of partitions of each side input.
        of: the number of the job's tasks.
        by_hash: stores that are looked into behind a `partition_by`: see `found_by_hash`.
    """
    found: list[SidePart] = []
    for spec in specs:
        side = spec.side
        if not isinstance(side, SideInputs):
            continue
        streams = [each.stream for each in side.streams]
        if side.broadcast:
            everything = (_ssp(stream, number) for stream in streams for number in range(partitions[stream]))
            found.append(SidePart(spec, side, None, tuple(everything)))
        else:
            hashed = spec.name in by_hash
            spread = tuple((stream, partitions[stream]) for stream in streams if hashed or partitions[stream] != of)
            for task in tasks:
                ssps = tuple(_ssp(s, number) for s in streams for number in partitions_for(task, partitions[s], of))
                found.append(SidePart(spec, side, task, ssps, of, spread))
    return tuple(found)


def partitions_for(task: int, partitions: int, tasks: int) -> range:
    """The partitions that may hold keys of a task. With as many partitions as tasks, that is its own."""
    common = gcd(partitions, tasks)
    return range(task % common, partitions, common)


def groups_of(parts: Sequence[SidePart]) -> tuple[tuple[SidePart, ...], ...]:
    """Groups of parts: parts that share a partition, directly or through others, are in one group. They are filled
    together, so that no reader ever sees them at different messages of a partition."""
    groups: list[list[SidePart]] = []
    for part in parts:
        own = set(part.ssps)
        touched = [group for group in groups if any(own.intersection(other.ssps) for other in group)]
        groups = [group for group in groups if group not in touched]
        groups.append([*(each for group in touched for each in group), part])
    return tuple(tuple(group) for group in groups)


def _ssp(stream: SystemStream, partition: int) -> SystemStreamPartition:
    return SystemStreamPartition(stream.system, stream.stream, partition)
