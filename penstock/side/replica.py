"""The stores of a container on its host, and the partitions that fill them.

Which partitions a store gets is decided from values alone. Their streams are read for one of the container's threads. A
store has its place, its content, and the entries that are about to be written to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from math import gcd
from pathlib import Path

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.config.model import JobConfig
from penstock.errors import CorruptError, NotFoundError
from penstock.graph.stores import SideInputs, StoreSpec
from penstock.side.engine import SidePositions
from penstock.side.entries import SideEntries, SidePart
from penstock.side.folders import (
    OpenedSide,
    ReuseTarget,
    SideFolder,
    SideFolders,
    emptied,
    open_beside,
    open_side_engine,
    remove_others,
)
from penstock.state.engines.engine import Changes, EngineFailedError
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


class SideReplica:
    """A part with its engine. Written by one thread."""

    def __init__(
        self, part: SidePart, opened: OpenedSide, entries: SideEntries, positions: SidePositions, *, new: bool = False
    ) -> None:
        """`positions`: those of the content; or its start, if it is `new` and empty."""
        self.part = part
        self.opened = opened
        self.engine = engine = opened.engine
        self._entries = entries
        self._written = positions
        self._flushed: SidePositions | None = None if new else positions
        self.reached: dict[SystemStreamPartition, int] = dict(positions.next_offsets)
        """The next offset of each partition, counting the entries that are not written yet."""
        self._untouched = set(positions.next_offsets) if new else set()
        """The partitions that nothing was read from yet, while the engine is filled from empty."""
        self._torn: set[SystemStreamPartition] = set()
        entries.begin(engine, written=False)

    def begins_with(self, ssp: SystemStreamPartition) -> bool:
        """True if nothing of the partition was read before: then the messages that compaction has left are enough.
        False from the next call on."""
        begins = ssp in self._untouched
        self._untouched.discard(ssp)
        if begins:
            self._torn.add(ssp)
        return begins

    def is_torn(self, ssp: SystemStreamPartition) -> bool:
        """True if the compacted rest of a partition was not read to its end: then the messages read from it are of
        no use."""
        return ssp in self._torn

    def has_whole(self, ssp: SystemStreamPartition) -> None:
        self._torn.discard(ssp)

    @property
    def pending_bytes(self) -> int:
        """Estimated memory of the entries that are not written yet."""
        return self._entries.size_bytes

    def take(self, ssp: SystemStreamPartition, messages: Sequence[RawMessage], reached: int) -> None:
        """Make entries from the messages that are new. `reached` is the offset after them. Raises
        MessageFailedError; then `drop` must follow."""
        own = self.reached[ssp]
        if messages and messages[0][0] < own:
            messages = [message for message in messages if message[0] >= own]
        if messages:
            self._entries.add(ssp, messages)
        self.reached[ssp] = max(own, reached)

    def drop(self) -> None:
        self._entries.begin(self.engine, written=False)
        self.reached = dict(self._written.next_offsets)

    def write(self) -> None:
        """Write the entries. Raises as `SideEngine.write`."""
        self._put(self.engine.write, self._moved())

    def load(self, *, complete: bool = False) -> None:
        """As `write`, for very many. `complete`: the store is caught up now, and its content whole."""
        positions = self._moved()
        self._put(self.engine.load, replace(positions, complete=True) if complete else positions)

    def flush(self) -> bool:
        """Make everything written survive the process. Returns False if there was nothing new."""
        if self._flushed == self._written:
            return False
        written = self._written
        with self._needed():
            self.engine.flush()
        self._flushed = written
        return True

    @contextmanager
    def _needed(self) -> Iterator[None]:
        """Treat damage as an engine that failed: it cannot be tried again, because the content has to be made again."""
        try:
            yield
        except CorruptError as error:
            raise EngineFailedError(f"{self.part.name} is damaged: {error}") from error

    def _moved(self) -> SidePositions:
        return self._written.moved(self.reached, SYSTEM_CLOCK.now_ms())

    def _put(self, put: Callable[[Changes, SidePositions], None], positions: SidePositions) -> None:
        with self._needed():
            put(self._entries.changes, positions)
        self._written = positions
        self._entries.begin(self.engine, written=True)


class SideHomes:
    """The folders of one container in one epoch."""

    def __init__(
        self,
        config: JobConfig,
        folders: SideFolders,
        fingerprints: Mapping[str, str],
        fills: Callable[[SidePart], Callable[[Path], bool] | None],
    ) -> None:
        """
        Args:
            folders: those of the container in this epoch.
            fingerprints: by store, as the driver made them at the start.
            fills: for a part, a callback that fills a folder from its backup; None if it has no backup.
        """
        self._config = config
        self._fingerprints = fingerprints
        self._folders = folders
        self._fills = fills
        self._numbers = count(1)

    def open(self, part: SidePart, ends: SideStreamEnds) -> OpenedSide:
        wanted = ReuseTarget(
            self.fingerprint(part),
            {ssp: ends.offsets[ssp] for ssp in part.ssps},
            {ssp: ends.complete_from[ssp] for ssp in part.ssps},
            {each.stream: ends.identities[each.stream] for each in part.side.streams},
            ends.deletions_kept_ms,
        )
        return open_side_engine(
            self._config.store(part.spec.name),
            self._folders,
            part.task,
            wanted,
            now_ms=SYSTEM_CLOCK.now_ms(),
            max_age_ms=self._config.side_inputs.max_age_ms,
            fill=self._fills(part),
        )

    def is_free(self, part: SidePart) -> bool:
        """True if nobody on this host uses the folder of a task's part."""
        folder = SideFolder.lock_beside(self._folders.of_task(part.spec.name, part.task or 0))
        if folder is not None:
            folder.release()
        return folder is not None

    def emptied(self, part: SidePart, opened: OpenedSide) -> OpenedSide:
        return emptied(self._config.store(part.spec.name), opened)

    def beside(self, part: SidePart) -> OpenedSide:
        return open_beside(self._config.store(part.spec.name), self._folders, part.task, next(self._numbers))

    def remove_others(self, specs: Iterable[StoreSpec], tasks: int) -> None:
        """Remove the folders that other programs of the job have left on this host. Failures are logged."""
        kept = {
            spec.name: spec.side.broadcast
            for spec in specs
            if isinstance(spec.side, SideInputs) and self._config.store(spec.name).factory != "memory"
        }
        try:
            remove_others(self._folders, kept, tasks)
        except OSError as error:
            logger.warning("folders of side stores that the job no longer has were not removed: %s", error)

    def fingerprint(self, part: SidePart) -> str:
        """Identifies everything but the messages that the part's content is made from. If a task takes only its own
        keys, that includes the number of tasks."""
        found = self._fingerprints[part.spec.name]
        return f"{found}-of-{part.tasks}" if part.spread else found


def discard(opened: OpenedSide) -> None:
    """Close a store that is not used again, and remove it."""
    replace(opened, outlives=False).close()
