"""What Penstock needs of a system that holds streams: an admin, a reader of offset ranges, a writer.

Offsets are non-negative integers that grow within a partition. A position is always the *next* offset to read;
ranges are half-open, `[start, end)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.api.ssp import SystemStreamPartition

RawMessage: TypeAlias = tuple[int, int, bytes | None, bytes | None]
"""A message as it is read: (offset, timestamp in epoch milliseconds, key, value)."""

RawRecord: TypeAlias = tuple[int, bytes | None, bytes | None]
"""A message to be written: (timestamp in epoch milliseconds, key, value)."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The messages of one partition with `start <= offset < end`."""

    ssp: SystemStreamPartition
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The ends of a partition: `oldest` is the first offset still there (equal to `upcoming` if there is none),
    `upcoming` the one the next message will get."""

    oldest: int
    upcoming: int

    @property
    def newest(self) -> int | None:
        """The offset of the last message, or None if the partition holds none."""
        return self.upcoming - 1 if self.upcoming > self.oldest else None


@dataclass(frozen=True, slots=True)
class WriterIdentity:
    """Who appends: a name that is the same for every run of one job, and the epoch that fences older ones."""

    name: str
    epoch: int


class SystemAdmin(ABC):
    """Looks at and makes streams. Thread-safe."""

    @abstractmethod
    def partition_count(self, stream: str) -> int:
        """The number of partitions. Raises NotFoundError, naming the stream and the way to create it."""

    @abstractmethod
    def offsets(self, stream: str) -> dict[int, PartitionOffsets]:
        """The ends of every partition, each read atomically."""

    @abstractmethod
    def create_stream(self, stream: str, partitions: int) -> bool:
        """Create the stream; True if it was made, False if it stood there with this many partitions.

        Raises IncompatibleError if it exists with another partition count. Idempotent, atomic: no reader sees
        half a stream.
        """

    @abstractmethod
    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        """The smallest offset whose message has a timestamp at or after `timestamp_ms`; upcoming if none has."""

    @abstractmethod
    def fence(self, stream: str, writer: WriterIdentity) -> None:
        """From now on refuse appends of the same writer name with a smaller epoch, in every partition.

        Raises FencedError if a larger epoch of this name was seen.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what is open. No call follows."""


class SystemReader(ABC):
    """Reads offset ranges. Used by one thread."""

    @abstractmethod
    def read(self, offsets: OffsetRange, chunk_messages: int) -> Iterator[list[RawMessage]]:
        """Every message of the range, in offset order, in lists of at most `chunk_messages`.

        Raises NotFoundError if a message of the range no longer exists or does not exist yet; never skips.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what is open. No call follows."""


class SystemWriter(ABC):
    """Appends. Used by one thread."""

    @abstractmethod
    def append(self, ssp: SystemStreamPartition, records: Sequence[RawRecord]) -> int:
        """Append all records to the partition as one atomic, durable step; returns the first one's offset.

        Raises FencedError if a larger epoch of this writer's name was seen, checked in the same transaction.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what is open. No call follows."""


class System(ABC):
    """A system by its configuration (plain data, picklable); makes admins, readers and writers."""

    name: str

    @abstractmethod
    def admin(self) -> SystemAdmin: ...

    @abstractmethod
    def reader(self) -> SystemReader: ...

    @abstractmethod
    def writer(self, identity: WriterIdentity | None) -> SystemWriter:
        """A writer; without an identity it appends unfenced (a person publishing by hand)."""
