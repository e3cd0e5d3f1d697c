"""The partitions that fill the stores of a container, and the reading of their streams, for one of its threads.

Which partitions a store gets is decided from values alone.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.errors import NotFoundError
from penstock.graph.stores import SideInputs, SideStream, StoreSpec
from penstock.system.base import OffsetRange, PartitionOffsets, RawMessage, System, SystemAdmin, SystemReader

logger = logging.getLogger(__name__)


class GoneError(Exception):
    """Messages that a store needs are gone: they were compacted or deleted, or the stream was created again. The
    store has to be filled from the beginning."""


@dataclass(slots=True)
class SideStreamEnds:
    """The partitions' offsets and the streams' identities at one moment."""

    offsets: dict[SystemStreamPartition, PartitionOffsets] = field(default_factory=dict)
    complete_from: dict[SystemStreamPartition, int] = field(default_factory=dict)
    identities: dict[SystemStream, str | None] = field(default_factory=dict)
    deletions_kept_ms: dict[SystemStream, int] = field(default_factory=dict)
    """A stream that keeps deletions for ever is not in it."""

    def upcoming(self, ssp: SystemStreamPartition) -> int:
        return self.offsets[ssp].upcoming


class SideSources:
    """The readers and admins of the systems that hold side inputs, opened on demand. Used by one thread."""

    def __init__(self, systems: Mapping[str, System]) -> None:
        self._systems = systems
        self._admins: dict[str, SystemAdmin] = {}
        self._readers: dict[str, SystemReader] = {}

    def ends(self, stream: SystemStream) -> dict[int, PartitionOffsets]:
        """The offsets of its partitions. Raises NotFoundError if there is no such stream."""
        return self._admin(stream).offsets(stream.stream)

    def identity(self, stream: SystemStream) -> str | None:
        """Distinguishes it from an earlier stream of its name; None if the system cannot."""
        return self._admin(stream).stream_identity(stream.stream)

    def complete_from(self, stream: SystemStream) -> dict[int, int]:
        """The offset from which each partition has every message. Raises NotFoundError if there is no such stream."""
        return self._admin(stream).complete_from(stream.stream)

    def deletions_kept_ms(self, stream: SystemStream) -> int | None:
        """See `SystemAdmin.deletions_kept_ms`. Raises NotFoundError if there is no such stream."""
        return self._admin(stream).deletions_kept_ms(stream.stream)

    def compacts(self, stream: SystemStream) -> bool:
        """True if its partitions may have gaps: then the messages that compaction has left are read."""
        return self._systems[stream.system].serving(stream.stream).compacts_on_request

    def read(
        self, ssp: SystemStreamPartition, start: int, end: int, most: int, *, what_is_left: bool = False
    ) -> Iterator[list[RawMessage]]:
        """The messages of a range, at most `most` at once; `what_is_left`: those that compaction has left.

        Raises:
            GoneError: one of the messages is gone; or the partition was compacted while it was read.
            RetryableError: the system failed.
        """
        reader = self._readers.get(ssp.system)
        if reader is None:
            reader = self._readers[ssp.system] = self._systems[ssp.system].reader()
        wanted = OffsetRange(ssp, start, end)
        try:
            if what_is_left and self.compacts(ssp.system_stream):
                yield from reader.read_compacted(wanted, most)
            else:
                yield from reader.read(wanted, most)
        except GeneratorExit:
            raise
        except BaseException as error:
            self._drop(ssp.system)
            if isinstance(error, NotFoundError):
                self.ends(ssp.system_stream)  # raises if there is no stream any more
                raise GoneError(str(error)) from error
            raise

    def close(self) -> None:
        for name in list(self._readers):
            self._drop(name)
        admins, self._admins = self._admins, {}
        for name, admin in admins.items():
            try:
                admin.close()
            except Exception:
                logger.exception("closing the admin of system `%s` failed", name)

    def _admin(self, stream: SystemStream) -> SystemAdmin:
        found = self._admins.get(stream.system)
        if found is None:
            found = self._admins[stream.system] = self._systems[stream.system].admin()
        return found

    def _drop(self, system: str) -> None:
        reader = self._readers.pop(system, None)
        try:
            if reader is not None:
                reader.close()
        except Exception:
            logger.exception("closing a reader of system `%s` failed", system)


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
