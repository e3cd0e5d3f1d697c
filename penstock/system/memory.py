"""A system in the memory of one process, for tests: the same contract as the local system, without files."""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import ClassVar

from penstock.api.messages import headers_of
from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import counted, owned_stream
from penstock.errors import ConfigError, FencedError, IncompatibleError, NotFoundError, RetryableError
from penstock.system import base
from penstock.system.contract.writer import Marks, Parts
from penstock.system.ranges import Compacted, check_call, check_inside, missing, take_chunk


@dataclass(slots=True)
class _Partition:
    """Messages in offset order."""

    upcoming: int = 0
    messages: list[base.RawMessage] = field(default_factory=list)
    fences: dict[str, int] = field(default_factory=dict)
    progress: dict[str, base.Progress] = field(default_factory=dict)
    compacted: Compacted = field(default_factory=Compacted)
    ended_at: int | None = None
    """The value of `upcoming` when the partition was declared ended."""

    def ends(self) -> base.PartitionOffsets:
        oldest = self.messages[0][0] if self.messages else self.upcoming
        return base.PartitionOffsets(oldest, self.upcoming, self.ended_at == self.upcoming)

    def between(self, start: int, end: int) -> slice:
        return slice(*(bisect_left(self.messages, offset, key=itemgetter(0)) for offset in (start, end)))

    def superseded(self, offsets: base.OffsetRange) -> set[int]:
        inside = [m for m in self.messages[self.between(offsets.start, offsets.end)] if m[2] is not None]
        newest = {message[2]: message for message in inside}
        keep = {message[0] for message in newest.values() if message[3] is not None}
        before = {message[0] for message in self.messages[self.between(0, offsets.start)]}
        return before | {message[0] for message in inside} - keep


class MemorySystem(base.System):
    """Streams that live as long as this object. Thread-safe; every reader sees appended messages at once.

    It cannot be pickled: a copy in another process would silently be another system.
    """

    dense_offsets: ClassVar[bool] = True
    carries_headers: ClassVar[bool] = True
    fences: ClassVar[bool] = True
    compacts_on_request: ClassVar[bool] = True
    keeps_owners: ClassVar[bool] = True
    readers_seek: ClassVar[bool] = True
    ends_streams: ClassVar[bool] = True
    commits_atomically: ClassVar[bool] = True
    reports_appended: ClassVar[bool] = True
    keeps_progress: ClassVar[bool] = True

    def __init__(self, name: str = "memory") -> None:
        if not name or "." in name:
            raise ConfigError(f"`{name}` cannot be a system's name: it must not be empty or have a dot")
        self.name = name
        self.lock = threading.Lock()
        self.owners: dict[str, str] = {}
        """Stream -> its owner; under `lock`."""
        self.identities: dict[str, str] = {}
        """Stream -> its identity among others of its name; under `lock`."""
        self._streams: dict[str, list[_Partition]] = {}

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> MemorySystem:
        """An empty system. It needs no `path`, but accepts one."""
        base.check_options(name, options, ["path"])
        return cls(name)

    def __reduce__(self) -> str:
        raise ConfigError(f"the memory system `{self.name}` lives in one process; use a local system across processes")

    def admin(self) -> MemoryAdmin:
        return MemoryAdmin(self)

    def reader(self) -> MemoryReader:
        return MemoryReader(self)

    def writer(self, identity: base.WriterIdentity | None) -> MemoryWriter:
        return MemoryWriter(self, identity)

    def truncate(self, ssp: SystemStreamPartition, before: int) -> None:
        """Forget the messages of a partition with smaller offsets than `before`, as retention would."""
        with self.lock:
            partition = self.partition(ssp)
            del partition.messages[partition.between(0, before)]

    def end(self, ssp: SystemStreamPartition) -> None:
        """Declare that no message will follow in a partition. A job that has read it to the end no longer waits for
        it."""
        with self.lock:
            partition = self.partition(ssp)
            partition.ended_at = partition.upcoming

    def create(self, stream: str, partitions: int) -> bool:
        base.check_stream_name(stream)
        if partitions < 1:
            raise ConfigError(f"a stream has at least one partition; {partitions} were asked for")
        with self.lock:
            found = self._streams.setdefault(stream, [])
            if not found:
                found.extend(_Partition() for _ in range(partitions))
                self.identities[stream] = uuid.uuid4().hex
                return True
            if len(found) != partitions:
                raise IncompatibleError(
                    f"the stream `{self.name}.{stream}` exists with {counted(len(found), 'partition')}; "
                    f"{partitions} were asked "
                    "for"
                )
            return False

    def streams(self) -> list[str]:
        with self.lock:
            return sorted(self._streams)

    def delete(self, stream: str) -> None:
        with self.lock:
            self.partitions(stream)
            del self._streams[stream]
            self.owners.pop(stream, None)
            self.identities.pop(stream, None)

    def partitions(self, stream: str) -> list[_Partition]:
        """The caller holds `lock`."""
        base.check_stream_name(stream)
        found = self._streams.get(stream)
        if found is None:
            raise NotFoundError(
                f"the stream `{self.name}.{stream}` does not exist; create it with `penstock stream create "
                f"{self.name}.{stream} --partitions N`, or, as it is in the memory of one process, there with "
                "`system.admin().create_stream(...)`"
            )
        return found

    def partition(self, ssp: SystemStreamPartition) -> _Partition:
        """The caller holds `lock`."""
        if ssp.system != self.name:
            raise ConfigError(f"`{ssp}` is not a partition of the system `{self.name}`")
        partitions = self.partitions(ssp.stream)
        if not 0 <= ssp.partition < len(partitions):
            raise NotFoundError(
                f"the stream `{ssp.system_stream}` has the partitions 0 to {len(partitions) - 1}, not {ssp.partition}"
            )
        return partitions[ssp.partition]


class MemoryAdmin(base.SystemAdmin):
    """Looks at and makes the streams of a `MemorySystem`."""

    def __init__(self, system: MemorySystem) -> None:
        self._system = system

    def partition_count(self, stream: str) -> int:
        with self._system.lock:
            return len(self._system.partitions(stream))

    def offsets(self, stream: str) -> dict[int, base.PartitionOffsets]:
        with self._system.lock:
            return {number: partition.ends() for number, partition in enumerate(self._system.partitions(stream))}

    def stream_identity(self, stream: str) -> str | None:
        with self._system.lock:
            self._system.partitions(stream)
            return self._system.identities[stream]

    def complete_from(self, stream: str) -> dict[int, int]:
        """The end of the last compaction, or the start that `truncate` left."""
        with self._system.lock:
            return {
                number: max(partition.compacted.end, partition.ends().oldest)
                for number, partition in enumerate(self._system.partitions(stream))
            }

    def create_stream(self, stream: str, partitions: int, retention: StreamRetention | None = None) -> bool:
        """Raises ConfigError if the stream is to delete old messages."""
        if retention is not None and retention.is_limited:
            raise ConfigError(f"the system `{self._system.name}` is in memory and cannot delete old messages")
        return self._system.create(stream, partitions)

    def streams(self) -> list[str]:
        return self._system.streams()

    def delete_stream(self, stream: str) -> None:
        self._system.delete(stream)

    def end_stream(self, stream: str) -> None:
        with self._system.lock:
            partitions = self._system.partitions(stream)
            if (owner := self._system.owners.get(stream)) is not None:
                raise ConfigError(
                    f"the stream `{self._system.name}.{stream}` is {owned_stream(owner)} that {owner} writes"
                )
            for partition in partitions:
                partition.ended_at = partition.upcoming

    def progress_of(
        self, name: str, ssps: Iterable[SystemStreamPartition]
    ) -> Mapping[SystemStreamPartition, base.Progress]:
        with self._system.lock:
            partitions = {ssp: self._system.partition(ssp) for ssp in ssps}
            return {ssp: own.progress[name] for ssp, own in partitions.items() if name in own.progress}

    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        with self._system.lock:
            partition = self._system.partition(ssp)
            found = (message[0] for message in partition.messages if message[1] >= timestamp_ms)
            return next(found, partition.ends().upcoming)

    def fence(self, stream: str, writer: base.WriterIdentity) -> None:
        with self._system.lock:
            for number, partition in enumerate(self._system.partitions(stream)):
                _raise_fence(partition, SystemStreamPartition(self._system.name, stream, number), writer)

    def own(self, stream: str, owner: str) -> str:
        with self._system.lock:
            self._system.partitions(stream)
            return self._system.owners.setdefault(stream, owner)

    def owner(self, stream: str) -> str | None:
        with self._system.lock:
            self._system.partitions(stream)
            return self._system.owners.get(stream)

    def compact(
        self,
        offsets: base.OffsetRange,
        writer: base.WriterIdentity,
        *,
        min_dirty_ratio: float = 0.0,
        dry_run: bool = False,
    ) -> int:
        with self._system.lock:
            partition = self._system.partition(offsets.ssp)
            done = partition.compacted
            done.check_compact(offsets, partition.upcoming)
            if not done.is_due(offsets, min_dirty_ratio):
                return 0
            superseded = partition.superseded(offsets)
            if not dry_run:
                _raise_fence(partition, offsets.ssp, writer)
                partition.messages = [message for message in partition.messages if message[0] not in superseded]
                kept = partition.between(0, offsets.end)
                partition.compacted = done.with_range(offsets, kept.stop - kept.start)
            return len(superseded)

    def close(self) -> None:
        """Does nothing: no resources are held."""


class MemoryReader(base.SystemReader):
    """Reads ranges of a `MemorySystem`."""

    def __init__(self, system: MemorySystem) -> None:
        self._system = system

    def read(
        self, offsets: base.OffsetRange, chunk_messages: int, chunk_bytes: int = base.CHUNK_BYTES
    ) -> Iterator[list[base.RawMessage]]:
        """Raises NotFoundError if a message is missing, ConfigError for an invalid range or bound."""
        check_call(offsets, chunk_messages, chunk_bytes)
        return self._chunks(offsets, chunk_messages, chunk_bytes)

    def read_compacted(
        self, offsets: base.OffsetRange, chunk_messages: int, chunk_bytes: int = base.CHUNK_BYTES
    ) -> Iterator[list[base.RawMessage]]:
        check_call(offsets, chunk_messages, chunk_bytes)
        return self._chunks_left(offsets, chunk_messages, chunk_bytes)

    def close(self) -> None:
        """Does nothing: no resources are held."""

    def _chunks_left(
        self, offsets: base.OffsetRange, chunk_messages: int, chunk_bytes: int
    ) -> Iterator[list[base.RawMessage]]:
        start, done = offsets.start, None
        while start < offsets.end:
            with self._system.lock:
                partition = self._system.partition(offsets.ssp)
                if done is not None and partition.compacted != done:
                    raise RetryableError(f"`{offsets.ssp}` was compacted while it was read; read it again")
                done = partition.compacted
                done.check_read(offsets, partition.upcoming)
                left = partition.messages[partition.between(start, offsets.end)][:chunk_messages]
            chunk = take_chunk(left, chunk_bytes)
            if not chunk:
                return
            start = chunk[-1][0] + 1
            yield chunk

    def _chunks(
        self, offsets: base.OffsetRange, chunk_messages: int, chunk_bytes: int
    ) -> Iterator[list[base.RawMessage]]:
        self._slice(offsets, 0)  # fails before the first chunk if a part is missing, also of an empty range's stream
        start = offsets.start
        while start < offsets.end:
            chunk = take_chunk(
                self._slice(base.OffsetRange(offsets.ssp, start, offsets.end), chunk_messages), chunk_bytes
            )
            start += len(chunk)
            yield chunk

    def _slice(self, offsets: base.OffsetRange, messages: int) -> list[base.RawMessage]:
        with self._system.lock:
            partition = self._system.partition(offsets.ssp)
            check_inside(offsets, partition.ends())
            end = min(offsets.start + messages, offsets.end)
            found = partition.messages[partition.between(offsets.start, end)]
            if len(found) != end - offsets.start:  # as in the local system: as many as expected means every one
                there = {message[0] for message in found}
                raise missing(offsets, next(o for o in range(offsets.start, end) if o not in there), "it is gone")
            return found


class MemoryWriter(base.SystemWriter):
    """Appends to a `MemorySystem`."""

    def __init__(self, system: MemorySystem, identity: base.WriterIdentity | None) -> None:
        self._system = system
        self._identity = identity

    def append(self, ssp: SystemStreamPartition, records: Iterable[base.RawRecord]) -> int:
        return self._append_to_all({ssp: records}, {})[ssp][0]

    def begin(self) -> base.WriterTransaction:
        return base.MarkedAtCommit(self._identity, self._append_and_report)

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, base.Progress]:
        """Raises FencedError if a larger epoch of this writer's name was seen."""
        writer = base.check_may_mark(self._identity)
        with self._system.lock:
            partitions = {ssp: self._system.partition(ssp) for ssp in ssps}
            for ssp, partition in partitions.items():
                _raise_fence(partition, ssp, writer)
            return {ssp: own.progress[writer.name] for ssp, own in partitions.items() if writer.name in own.progress}

    def close(self) -> None:
        """Does nothing: no resources are held."""

    def _append_and_report(self, records: Parts, marks: Marks) -> base.Appended:
        appended = self._append_to_all(records, marks)
        return {ssp: (offsets,) for ssp, offsets in appended.items() if offsets[1] > offsets[0]}

    def _append_to_all(self, records: Parts, marks: Marks) -> dict[SystemStreamPartition, tuple[int, int]]:
        """The offset of the first record, and the one behind the last, by partition."""
        taken = {ssp: list(own) for ssp, own in records.items()}
        for record in chain.from_iterable(taken.values()):
            _check_record(record)
        with self._system.lock:
            partitions = {ssp: self._system.partition(ssp) for ssp in taken}
            if self._identity is not None:
                for ssp, partition in partitions.items():
                    _check_fence(partition, ssp, self._identity)
                for ssp, mark in marks.items():
                    mark.check_follows(partitions[ssp].progress.get(self._identity.name), ssp)
                for partition in partitions.values():
                    partition.fences[self._identity.name] = self._identity.epoch
                for ssp, mark in marks.items():
                    partitions[ssp].progress[self._identity.name] = mark
            firsts = {ssp: partition.upcoming for ssp, partition in partitions.items()}
            for ssp, partition in partitions.items():
                partition.messages.extend((offset, *record) for offset, record in enumerate(taken[ssp], firsts[ssp]))
                partition.upcoming += len(taken[ssp])
            return {ssp: (first, first + len(taken[ssp])) for ssp, first in firsts.items()}


def _raise_fence(partition: _Partition, ssp: SystemStreamPartition, writer: base.WriterIdentity) -> None:
    _check_fence(partition, ssp, writer)
    partition.fences[writer.name] = writer.epoch


def _check_fence(partition: _Partition, ssp: SystemStreamPartition, writer: base.WriterIdentity) -> None:
    seen = partition.fences.get(writer.name, writer.epoch)
    if seen > writer.epoch:
        raise FencedError(
            f"the writer `{writer.name}` of epoch {writer.epoch} must not append to `{ssp.system_stream}` "
            f"partition {ssp.partition}: epoch {seen} has taken over. Stop this run"
        )


def _check_record(record: base.RawRecord) -> None:
    legal = 3 <= len(record) <= 4 and isinstance(record[0], int)
    try:
        headers_of(record[3] if len(record) == 4 else ())
    except TypeError:
        legal = False
    if not (legal and all(part is None or isinstance(part, bytes) for part in record[1:3])):
        raise ConfigError(
            "a record is not (timestamp in epoch milliseconds: int, key: bytes or None, value: bytes or None) and "
            f"perhaps headers: {record!r}; nothing was appended"
        )
