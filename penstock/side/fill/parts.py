"""Which stores of a container are filled from which partitions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.state.side_inputs import SideInputs, SideStream
from penstock.api.state.store import StoreSpec


@dataclass(frozen=True, slots=True)
class Part:
    """A store of one task, or one that all tasks of a container share, and the partitions that fill it."""

    spec: StoreSpec
    side: SideInputs
    task: int | None
    """None: every task has everything."""
    ssps: tuple[SystemStreamPartition, ...]
    tasks: int = 0
    """How many tasks the job has."""
    spread: tuple[tuple[SystemStream, int], ...] = ()
    """The streams that have another number of partitions, with that number: the task takes its own keys alone."""

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"store `{self.spec.name}`" + ("" if self.task is None else f" of task {self.task}")

    def spread_of(self, ssp: SystemStreamPartition) -> int | None:
        """The number of partitions of a stream of which the task takes its own keys alone; None of another one."""
        return dict(self.spread).get(ssp.system_stream)

    def stream_of(self, ssp: SystemStreamPartition) -> SideStream:
        """The side input that a partition belongs to."""
        return next(each for each in self.side.streams if each.stream == ssp.system_stream)


def streams_of(specs: Iterable[StoreSpec]) -> frozenset[SystemStream]:
    """Every side input of these stores."""
    return frozenset(each.stream for spec in specs if isinstance(spec.side, SideInputs) for each in spec.side.streams)


def parts_of(
    specs: Iterable[StoreSpec], tasks: Sequence[int], partitions: Mapping[SystemStream, int], of: int
) -> tuple[Part, ...]:
    """What a container with these tasks fills.

    Args:
        specs: the stores; those without side inputs are left out.
        tasks: the tasks of the container.
        partitions: how many partitions each side input has.
        of: how many tasks the job has.
    """
    found: list[Part] = []
    for spec in specs:
        side = spec.side
        if not isinstance(side, SideInputs):
            continue
        streams = [each.stream for each in side.streams]
        if side.broadcast:
            everything = (_ssp(stream, number) for stream in streams for number in range(partitions[stream]))
            found.append(Part(spec, side, None, tuple(everything)))
        else:
            spread = tuple((stream, partitions[stream]) for stream in streams if partitions[stream] != of)
            for task in tasks:
                ssps = tuple(_ssp(s, number) for s in streams for number in partitions_for(task, partitions[s], of))
                found.append(Part(spec, side, task, ssps, of, spread))
    return tuple(found)


def partitions_for(task: int, partitions: int, tasks: int) -> range:
    """The partitions that may hold keys of a task: its own, if there is one for each task."""
    common = gcd(partitions, tasks)
    return range(task % common, partitions, common)


def groups_of(parts: Sequence[Part]) -> tuple[tuple[Part, ...], ...]:
    """The parts in groups: those that share a partition, directly or through others, are together. They are filled
    together, so that no reader ever sees them at different messages of a partition."""
    groups: list[list[Part]] = []
    for part in parts:
        own = set(part.ssps)
        touched = [group for group in groups if any(own.intersection(other.ssps) for other in group)]
        groups = [group for group in groups if group not in touched]
        groups.append([*(each for group in touched for each in group), part])
    return tuple(tuple(group) for group in groups)


def _ssp(stream: SystemStream, partition: int) -> SystemStreamPartition:
    return SystemStreamPartition(stream.system, stream.stream, partition)
