"""The storage of the simulation: an object store with conditional writes, and systems of streams. Replies are lost, and
effects come late. A subject may bring systems along, whose contract is here as well."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias, TypeVar

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.errors import FencedError, NotFoundError, RetryableError
from penstock.objects.store import ObjectStore, check_key, check_prefix
from penstock.system.base import (
    CHUNK_BYTES,
    OffsetRange,
    PartitionOffsets,
    Progress,
    RawMessage,
    RawRecord,
    System,
    WriterIdentity,
)
from penstock.system.contract.writer import Marks, Parts
from penstock.system.memory import MemoryAdmin, MemoryReader, MemorySystem, MemoryWriter
from penstock.testing.simulation.faults import Fate, Trouble

T = TypeVar("T")
SCHEME = "memory://simulated"


@dataclass
class Bucket:
    """The objects of one store, which outlive every process."""

    objects: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    writes: int = 0
    on_put: Callable[[str, bytes], None] = lambda _key, _data: None
    """Told what is put, and where, before it is there."""

    def put(self, key: str, data: bytes) -> None:
        self.on_put(key, data)
        self.writes += 1
        self.objects[key] = data, self.writes

    def create(self, key: str, data: bytes) -> bool:
        if key in self.objects:
            return False
        self.put(key, data)
        return True

    def replace(self, key: str, data: bytes, tag: str) -> bool:
        found = self.objects.get(key)
        if found is None or str(found[1]) != tag:
            return False
        self.put(key, data)
        return True

    def get(self, key: str) -> tuple[bytes, str]:
        if key not in self.objects:
            raise NotFoundError(f"there is no object `{key}` in the simulated store")
        data, version = self.objects[key]
        return data, str(version)

    def below(self, folder: str) -> dict[str, int]:
        return {key: len(data) for key, (data, _) in sorted(self.objects.items()) if key.startswith(folder)}


class SimulatedStore(ObjectStore):
    """One process's client of a bucket. Without a trouble, every call works at once."""

    def __init__(self, bucket: Bucket, trouble: Trouble | None) -> None:
        self._bucket = bucket
        self._trouble = trouble

    def put_if_absent(self, key: str, data: bytes) -> bool:
        check_key(key)
        return self._act(f"put {key}", lambda: self._bucket.create(key, bytes(data)), *Fate)

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        if tag is None:
            return self.put_if_absent(key, data)
        check_key(key)
        return self._act(f"replace {key}", lambda: self._bucket.replace(key, bytes(data), tag), *Fate)

    def get(self, key: str) -> bytes:
        return self.get_with_tag(key)[0]

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        check_key(key)
        return self._look(f"get {key}", lambda: self._bucket.get(key))

    def list(self, prefix: str, after: str | None = None) -> list[str]:
        return [key for key in self.sizes(prefix) if after is None or key > after]

    def sizes(self, prefix: str) -> dict[str, int]:
        folder = check_prefix(prefix)
        return self._look(f"list {folder}", lambda: self._bucket.below(folder))

    def delete(self, key: str) -> None:
        check_key(key)
        self._act(f"delete {key}", lambda: self._bucket.objects.pop(key, None), *Fate)

    def close(self) -> None:
        """Nothing is open."""

    def _look(self, what: str, call: Callable[[], T]) -> T:
        trouble = self._trouble
        return call() if trouble is None else trouble.look(what, call, trouble.rates.store, RetryableError)

    def _act(self, what: str, call: Callable[[], T], *fates: Fate) -> T:
        trouble = self._trouble
        if trouble is None:
            return call()
        # The records of the log are few among all objects, and decide everything.
        crash = trouble.rates.crash * (4 if "/checkpoints/" in what else 1)
        return trouble.act(what, call, trouble.rates.store, RetryableError, *fates, crash=crash)


Fed: TypeAlias = tuple[str | SystemStream, int, RawRecord]
"""A record of an input: stream, partition and record."""


class Feeder(Protocol):
    """Appends the records of the inputs, for somebody who is no part of the job."""

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> object:
        """Append records, or begin to do so."""
        ...

    def close(self) -> None:
        """Called once after the last record: from here on all of them can be read."""
        ...


class OutsideSystem(Protocol):
    """A system that outlives every process."""

    def options(self) -> Mapping[str, str]:
        """The configuration of a process, below `systems.<name>.`."""
        ...

    def calm(self) -> System:
        """The system for somebody whom no fault meets."""
        ...

    def feeder(self) -> Feeder:
        """A writer of the inputs."""
        ...

    def content(self) -> Mapping[str, Mapping[int, list[RawRecord]]]:
        """Stream → partition → all records that count, as an observer sees them in the end."""
        ...


def nothing_outside(_trouble: Trouble) -> Mapping[str, OutsideSystem]:
    return {}


def stream_name(stream: str | SystemStream) -> SystemStream:
    """The stream of a record of an input. A name alone is a stream of the system `m`."""
    return SystemStream("m", stream) if isinstance(stream, str) else stream


class Feed:
    """The records that are still to come."""

    def __init__(self, records: Sequence[Fed], writers: Mapping[str, Feeder]) -> None:
        self.left = deque(records)
        self._writers = writers

    def append(self, count: int) -> None:
        """Append so many of them."""
        for _ in range(min(count, len(self.left))):
            stream, partition, record = self.left.popleft()
            name = stream_name(stream)
            ssp = SystemStreamPartition(name.system, name.stream, partition)
            self._writers[name.system].append(ssp, [record])
        if not self.left:
            for writer in self._writers.values():
                writer.close()


_FATES = (Fate.FAILS, Fate.LOST_REPLY, Fate.LATE)


class SimulatedSystem(MemorySystem):
    """Streams that outlive every process. Its clients meet the faults of a `Trouble`."""

    world: ClassVar[dict[str, SimulatedSystem]] = {}
    """The systems of the life that is lived now, by name."""

    def __init__(self, name: str, trouble: Trouble | None) -> None:
        super().__init__(name)
        self.trouble = trouble
        self.begun: dict[tuple[str, SystemStreamPartition], object] = {}
        """The last append of a writer to a partition that has begun."""
        self._epochs: dict[tuple[str, SystemStreamPartition], int] = {}
        """The largest epoch of a writer that has fenced, asked or appended in a partition."""

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> SimulatedSystem:
        """The system of this name in the world, as every process sees it. Without a world, an empty one."""
        return cls.world.setdefault(name, cls(name, None))

    def undisturbed(self) -> SimulatedSystem:
        """The same streams for somebody whom no fault meets."""
        other = SimulatedSystem(self.name, None)
        other._streams, other.identities, other.owners = self._streams, self.identities, self.owners
        return other

    def admin(self) -> SimulatedAdmin:
        return SimulatedAdmin(self)

    def reader(self) -> SimulatedReader:
        return SimulatedReader(self)

    def writer(self, identity: WriterIdentity | None) -> SimulatedWriter:
        return SimulatedWriter(self, identity)

    def look(self, what: str, call: Callable[[], T]) -> T:
        trouble = self.trouble
        return call() if trouble is None else trouble.look(what, call, trouble.rates.stream, RetryableError)

    def note_writer(self, writer: WriterIdentity, ssps: Iterable[SystemStreamPartition], what: str) -> None:
        """A writer has done something: no later epoch may have done anything before."""
        for ssp in ssps:
            seen = self._epochs.get((writer.name, ssp), writer.epoch)
            if seen > writer.epoch and self.trouble is not None:
                text = f"the writer of epoch {writer.epoch} {what} `{ssp}`, although epoch {seen} has taken over"
                self.trouble.broken.append(text)
            self._epochs[writer.name, ssp] = max(seen, writer.epoch)

    def act(self, what: str, call: Callable[[], T], later: Callable[[], object] | None = None) -> T:
        trouble = self.trouble
        if trouble is None:
            return call()
        rates = trouble.rates
        return trouble.act(what, call, rates.stream, RetryableError, *_FATES, later=later, crash=rates.crash)


class SimulatedAdmin(MemoryAdmin):
    _system: SimulatedSystem

    def partition_count(self, stream: str) -> int:
        return self._system.look(f"look at {stream}", lambda: MemoryAdmin.partition_count(self, stream))

    def offsets(self, stream: str) -> dict[int, PartitionOffsets]:
        return self._system.look(f"ends of {stream}", lambda: MemoryAdmin.offsets(self, stream))

    def create_stream(self, stream: str, partitions: int, retention: StreamRetention | None = None) -> bool:
        create = MemoryAdmin.create_stream
        return self._system.act(f"create {stream}", lambda: create(self, stream, partitions, retention))

    def progress_of(self, name: str, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        found = tuple(ssps)
        return self._system.look(f"progress of {name}", lambda: MemoryAdmin.progress_of(self, name, found))

    def fence(self, stream: str, writer: WriterIdentity) -> None:
        def fence() -> None:
            MemoryAdmin.fence(self, stream, writer)
            parts = range(MemoryAdmin.partition_count(self, stream))
            self._system.note_writer(
                writer, (SystemStreamPartition(self._system.name, stream, each) for each in parts), "has fenced"
            )

        self._system.act(f"fence {stream}", fence)


class SimulatedReader(MemoryReader):
    _system: SimulatedSystem

    def read(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        for chunk in super().read(offsets, chunk_messages, chunk_bytes):
            yield self._system.look(f"read {offsets.ssp}", lambda found=chunk: found)  # type: ignore[misc]


class SimulatedWriter(MemoryWriter):
    _system: SimulatedSystem

    def progress(self, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        found = tuple(ssps)

        def progress() -> Mapping[SystemStreamPartition, Progress]:
            known = MemoryWriter.progress(self, found)
            if self._identity is not None:
                self._system.note_writer(self._identity, found, "has asked for its progress in")
            return known

        return self._system.act("fencing progress", progress)

    def _append_to_all(self, records: Parts, marks: Marks) -> dict[SystemStreamPartition, tuple[int, int]]:
        taken: dict[SystemStreamPartition, list[RawRecord]] = {ssp: list(own) for ssp, own in records.items()}
        name = "" if self._identity is None else f"{self._identity.name} of epoch {self._identity.epoch}"
        begun, mine = self._system.begun, object()
        begun.update({(name, ssp): mine for ssp in taken})

        def append() -> dict[SystemStreamPartition, tuple[int, int]]:
            appended = MemoryWriter._append_to_all(self, taken, marks)
            if self._identity is not None:
                self._system.note_writer(self._identity, taken, "has appended to")
            return appended

        def later() -> None:
            """As a transaction: it cannot end after the next one of its writer has begun. What keeps it from ending
            after those of a later epoch is the fence alone."""
            if any(begun[name, ssp] is not mine for ssp in taken):
                raise FencedError("a later append of this writer has begun")
            append()

        return self._system.act(f"append {sum(map(len, taken.values()))} records", append, later)
