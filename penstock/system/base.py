"""What Penstock needs of a system that holds streams: an admin, a reader of offset ranges, a writer.

Offsets are non-negative integers that grow within a partition. A position is always the *next* offset to read;
ranges are half-open, `[start, end)`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Self, TypeAlias

from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.api.startpoint import (
    Startpoint,
    StartpointOldest,
    StartpointSpecific,
    StartpointTimestamp,
    StartpointUpcoming,
    StartpointVisitor,
)
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.wording import counted

RawMessage: TypeAlias = tuple[int, int, bytes | None, bytes | None]
"""A message as it is read: (offset, timestamp in epoch milliseconds, key, value)."""

RawRecord: TypeAlias = tuple[int, bytes | None, bytes | None]
"""A message to be written: (timestamp in epoch milliseconds, key, value)."""


_STREAM_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,248}")

CHUNK_BYTES = 8 << 20
"""How many bytes of keys and values a reader brings at once, if no other number is given."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The messages of one partition with `start <= offset < end`. Its length is how many there are at most; it is
    the number of messages where a system has `dense_offsets`."""

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
        """The offset before `upcoming`, or None if the partition holds no message. It is the last message's where a
        system has `dense_offsets`."""
        return self.upcoming - 1 if self.upcoming > self.oldest else None

    def __str__(self) -> str:
        if self.newest is None:
            return f"no messages, the next one will be {self.upcoming}"
        return f"messages from {self.oldest} (oldest) to {self.newest} (newest), the next one will be {self.upcoming}"


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
    def create_stream(self, stream: str, partitions: int, retention: StreamRetention | None = None) -> bool:
        """Create the stream; True if it was made, False if it was there already with this many partitions.

        Idempotent, atomic: no reader sees half a stream. `retention` says when messages are deleted: None accepts what
        a stream that exists has, and lets a new one keep its messages forever.

        Raises:
            IncompatibleError: it exists with another partition count, or with another retention.
            ConfigError: the system cannot delete old messages (`System.retains`).
        """

    def streams(self) -> list[str]:
        """The names of all streams, ascending. Raises ConfigError if the system cannot list them."""
        raise ConfigError("this system cannot list its streams")

    def delete_stream(self, stream: str) -> None:
        """Delete the stream and all its messages, in one step as others see it.

        Raises NotFoundError if there is none, ConfigError if the system cannot do that.
        """
        raise ConfigError("this system cannot delete streams")

    def retention(self, stream: str) -> StreamRetention:
        """When the stream deletes its oldest messages. Raises NotFoundError if there is no such stream."""
        self.partition_count(stream)
        return StreamRetention()

    def set_retention(self, stream: str, retention: StreamRetention) -> int:
        """Change when the stream deletes its oldest messages, and delete those that are to go now.

        A reader that has not read a deleted message gets an error that names its offset and the oldest one. If it
        raises half-way, some partitions have the new limits; calling it again completes it.

        Returns:
            how many messages were deleted.

        Raises:
            NotFoundError: there is no such stream.
            ConfigError: the stream has an owner (`own`), or the system cannot do it (`System.retains`).
        """
        raise ConfigError(f"the system of the stream `{stream}` cannot delete old messages")

    @abstractmethod
    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        """The smallest offset whose message has a timestamp at or after `timestamp_ms`; upcoming if none has."""

    def resolve_startpoint_to_offset(
        self, ssp: SystemStreamPartition, startpoint: Startpoint, *, clamp: bool = False
    ) -> int:
        """The offset of the first message to be read, as the partition is now: between oldest and upcoming.

        With `clamp`, an offset outside of that is moved to the nearest end.

        Raises:
            IncompatibleError: the partition has no such offset; says which it has.
            NotFoundError: there is no such stream or partition.
        """
        return startpoint.apply(ssp, _OffsetResolver(self, clamp=clamp))

    def fence(self, stream: str, writer: WriterIdentity) -> None:
        """From now on refuse appends of the same writer name with a smaller epoch, in every partition.

        Raises:
            FencedError: a larger epoch of this name was seen.
            IncompatibleError: the system cannot do it (`System.fences`).
        """
        raise IncompatibleError(f"the system of the stream `{stream}` does not fence writers")

    def own(self, stream: str, owner: str) -> str:
        """Who alone writes the stream: `owner`, if nobody was named before. Atomic and durable.

        Args:
            stream: the stream's name in this system.
            owner: a text that names one owner among all that may ever use the system.

        Returns:
            the owner on record, which is another one if the stream was taken.

        Raises:
            NotFoundError: there is no such stream.
            IncompatibleError: the system keeps no owners (`System.compacts_on_request`).
            ConfigError: the stream deletes old messages (`set_retention`), which its owner would miss.
        """
        raise IncompatibleError(f"the system of the stream `{stream}` does not record who owns a stream")

    def owner(self, stream: str) -> str | None:
        """The owner on record; None if the stream has none. Raises NotFoundError if there is no such stream."""
        return None

    def compact(
        self, offsets: OffsetRange, writer: WriterIdentity, *, min_dirty_ratio: float = 0.0, dry_run: bool = False
    ) -> int:
        """Let the partition begin with the range, and in the range keep only the newest record of every key.

        Three kinds of records go, in one atomic, durable step: all before the range; in the range those with a newer
        one of their key in it; and the range's deletes (value None), which have nothing left in it to delete. Records
        at or above its end stay as they are, and so do those without a key. An empty range drops what is before it.
        Offsets do not change and are never used again.

        It does nothing while the records that came since the last compaction are less than `min_dirty_ratio` of
        those it would look at: what many compactions cost then grows with what was written, not with what is there.
        A dry run only counts, and is not fenced.

        Returns:
            how many records went, or would go.

        Raises:
            NotFoundError: the range ends beyond upcoming, or begins before one that was compacted earlier.
            FencedError: a larger epoch of this writer's name was seen, checked in the same transaction.
            IncompatibleError: the system cannot do it (`System.compacts_on_request`).
        """
        raise IncompatibleError(f"the system of `{offsets.ssp}` cannot compact a partition on request")

    @abstractmethod
    def close(self) -> None:
        """Release what is open. No call follows."""


class _OffsetResolver(StartpointVisitor[SystemStreamPartition, int]):
    """Asks an admin where a startpoint is."""

    def __init__(self, admin: SystemAdmin, *, clamp: bool) -> None:
        self._admin = admin
        self._clamp = clamp

    def visit_specific(self, given: SystemStreamPartition, startpoint: StartpointSpecific) -> int:
        text, ends = startpoint.specific_offset, self._ends(given)
        if not (text.isascii() and text.removeprefix("-").isdigit()):
            raise IncompatibleError(f"`{text}` is not an offset of `{given}`, which are whole numbers")
        offset = int(text)
        if ends.oldest <= offset <= ends.upcoming:
            return offset
        if self._clamp:
            return min(max(offset, ends.oldest), ends.upcoming)
        raise IncompatibleError(
            f"`{given}` cannot be read from offset {offset}: it holds {ends}. Name an offset that is there, or give "
            "--clamp to begin at the nearest one"
        )

    def visit_timestamp(self, given: SystemStreamPartition, startpoint: StartpointTimestamp) -> int:
        self._ends(given)  # says so if there is no such partition
        return self._admin.offset_at_time(given, startpoint.timestamp_offset)

    def visit_oldest(self, given: SystemStreamPartition, startpoint: StartpointOldest) -> int:
        return self._ends(given).oldest

    def visit_upcoming(self, given: SystemStreamPartition, startpoint: StartpointUpcoming) -> int:
        return self._ends(given).upcoming

    def _ends(self, ssp: SystemStreamPartition) -> PartitionOffsets:
        found = self._admin.offsets(ssp.stream)
        if ssp.partition not in found:
            raise NotFoundError(
                f"stream `{ssp.system_stream}` has {counted(len(found), 'partition')}, there is no `{ssp}`"
            )
        return found[ssp.partition]


class SystemReader(ABC):
    """Reads offset ranges. Used by one thread at a time.

    It is kept for many ranges, over thousands of batches: each call sees the partition as it is then, also one that
    was deleted and created again. After an error it is closed and not used again.

    Lists are bounded twice: they hold at most `chunk_messages`, and end with the message with which their keys and
    values reach `chunk_bytes`. No more than that may be in memory, however large messages are.
    """

    @abstractmethod
    def read(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        """Every message of the range, in offset order, in bounded lists.

        The range may be longer than what is wanted of it: the caller may leave the iterator after any list. Nothing
        behind that list counts as read, and the next range begins there.

        Raises NotFoundError if a message of the range no longer exists or does not exist yet; never skips.
        """

    def read_compacted(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        """What `SystemAdmin.compact` left of the range, in offset order, in bounded lists.

        Whoever applies it to an empty map, record by record, has what the whole range would have made of it. Keys
        that were deleted may not occur at all.

        Raises:
            NotFoundError: the range ends beyond upcoming, or records of it went that it needs: it begins before the
                partition's compacted part, or ends inside that part.
            RetryableError: the partition was compacted meanwhile; what was read so far is of no use.
            IncompatibleError: the system drops records in its own time (`System.compacts_on_request`).
        """
        raise IncompatibleError(f"the system of `{offsets.ssp}` does not say which records of a range are gone")

    @abstractmethod
    def close(self) -> None:
        """Release what is open. No call follows."""


class WriterTransaction(ABC):
    """Records for several partitions. As a context manager it commits at the end, and aborts after an error."""

    @abstractmethod
    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> None:
        """Add records, behind those added to the partition before. They may be taken as late as in `commit`.

        Raises FencedError if a larger epoch of this writer's name was seen; `commit` may be the one to find it out.
        """

    @abstractmethod
    def commit(self) -> None:
        """Make all records durable and readable, each partition's in one atomic step, and where the system commits
        atomically (`System.commits_atomically`) all partitions' in one.

        It returns, or raises, only once nothing is under way. If there are several errors, it raises one that is no
        RetryableError if there is one. After an error each partition has all of its records or none.
        """

    @abstractmethod
    def abort(self) -> None:
        """Drop what was added, before a commit or after one that failed. The writer can begin again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.abort()
            return
        try:
            self.commit()
        except BaseException:
            self.abort()
            raise


class AppendedAtCommit(WriterTransaction):
    """A transaction that sends nothing before its commit, which is one call."""

    def __init__(self, append: Callable[[Mapping[SystemStreamPartition, Iterable[RawRecord]]], object]) -> None:
        """`append` appends to every partition, and does what `commit` promises."""
        self._append = append
        self._parts: dict[SystemStreamPartition, list[Iterable[RawRecord]]] = {}

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> None:
        """Keep the records for the commit."""
        self._parts.setdefault(ssp, []).append(records)

    def commit(self) -> None:
        """Append everything."""
        parts, self._parts = self._parts, {}
        self._append({ssp: chain.from_iterable(records) for ssp, records in parts.items()})

    def abort(self) -> None:
        """Forget everything."""
        self._parts.clear()


class SystemWriter(ABC):
    """Appends. Used by one thread."""

    @abstractmethod
    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> int:
        """Append all records to the partition as one atomic, durable step; returns the first one's offset.

        They are taken one by one: what they come from need not hold all of them. If it raises, nothing is appended.
        With no records it takes over from older epochs as any append does, and returns the upcoming offset.

        Where the system fences (`System.fences`), it raises FencedError if a larger epoch of this writer's name was
        seen, checked in the same transaction.
        """

    def begin(self) -> WriterTransaction:
        """Begin to append to several partitions, those of a task's outputs. One transaction of a writer at a time.

        Example:
            >>> from penstock.api.ssp import SystemStreamPartition
            >>> from penstock.system.memory import MemorySystem
            >>> system = MemorySystem("m")
            >>> system.admin().create_stream("out", 2)
            True
            >>> with system.writer(None).begin() as transaction:
            ...     for partition in range(2):
            ...         transaction.append(SystemStreamPartition("m", "out", partition), [(0, b"key", b"value")])
            >>> [ends.upcoming for ends in system.admin().offsets("out").values()]
            [1, 1]
        """
        return AppendedAtCommit(self._append_one_by_one)

    def _append_one_by_one(self, records: Mapping[SystemStreamPartition, Iterable[RawRecord]]) -> None:
        for ssp in sorted(records):
            self.append(ssp, records[ssp])

    @abstractmethod
    def close(self) -> None:
        """Release what is open. No call follows."""


def is_stream_name(text: str) -> bool:
    """Whether the text can be a stream's name."""
    return _STREAM_NAME.fullmatch(text) is not None


def check_stream_name(stream: str) -> None:
    """Accept what can be a folder here and a topic in Kafka.

    Raises:
        ConfigError: naming the stream and the rule.
    """
    if not is_stream_name(stream):
        raise ConfigError(
            f"`{stream}` cannot be a stream's name: it is 1 to 249 of the characters a-z A-Z 0-9 . _ - "
            "and does not start with a dot"
        )


def check_options(name: str, options: Mapping[str, str], known: Iterable[str]) -> None:
    """For `System.configured`: refuse options that a system does not know.

    Raises:
        ConfigError: names every unknown option, and those there are.

    Example:
        >>> check_options("archive", {"folder": "/srv"}, ["folder"])
    """
    known = sorted(known)
    unknown = [f"`systems.{name}.{option}`" for option in sorted(options) if option not in known]
    if unknown:
        there = ", ".join(f"`{option}`" for option in known) or "none"
        raise ConfigError(f"unknown: {', '.join(unknown)}; the options of the system `{name}` are: {there}")


class System(ABC):
    """A system by its configuration (plain data, picklable); makes admins, readers and writers."""

    name: str

    @classmethod
    def configured(cls, name: str, options: Mapping[str, str]) -> System:
        """The system that `systems.<name>.*` describes, for which this class is `systems.<name>.samza.factory`.

        Args:
            name: the system's name in the configuration; the new system must have it.
            options: every other key of the system, without `systems.<name>.`. `check_options` refuses unknown ones.

        Raises:
            ConfigError: an option is missing, unknown or wrong. Nothing is opened here.
        """
        raise ConfigError(f"{cls.__module__}:{cls.__qualname__} cannot be configured: it has no method `configured`")

    dense_offsets: ClassVar[bool] = False
    """Whether offsets have no gaps, so that a range holds as many messages as it is long. Where it is False, how many
    messages are left to read is not known; offsets are shown instead."""
    fences: ClassVar[bool] = False
    """Whether a larger epoch of a writer's name refuses the smaller ones (`SystemAdmin.fence`). Where it is False, a
    driver that lost its job to another may still append to outputs."""
    compacts_on_request: ClassVar[bool] = False
    """Whether a record goes only by `SystemAdmin.compact`. A system that drops records in its own time, as a log
    cleaner does, cannot hold what must be readable up to an offset exactly."""
    retains: ClassVar[bool] = False
    """Whether a stream can delete its oldest messages (`SystemAdmin.set_retention`)."""
    commits_atomically: ClassVar[bool] = False
    """Whether a writer's commit is one step for all partitions (`SystemWriter.begin`), not one for each."""
    readers_seek: ClassVar[bool] = False
    """Whether a reader that was used reads any range as well as a new one. Where it is False, as for a consumer that
    fetches ahead, a reader is used again only for the range of its partition that begins behind what it read last."""

    def messages_in(self, ends: Iterable[PartitionOffsets]) -> int | None:
        """How many messages are between these ends; None where offsets have gaps, and only reading would tell."""
        return sum(end.upcoming - end.oldest for end in ends) if self.dense_offsets else None

    @abstractmethod
    def admin(self) -> SystemAdmin: ...

    @abstractmethod
    def reader(self) -> SystemReader: ...

    @abstractmethod
    def writer(self, identity: WriterIdentity | None) -> SystemWriter:
        """A writer; without an identity it appends unfenced (a person publishing by hand)."""
