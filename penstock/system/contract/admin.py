"""Admins, which look at streams and make them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from penstock.api import requests
from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import counted, flag
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.system.contract.messages import Compaction, OffsetRange, OpenTransaction, PartitionOffsets, RecordLimits
from penstock.system.contract.writer import Progress, WriterIdentity


class SystemAdmin(ABC):
    """Looks at and makes streams. Thread-safe.

    Example:
        >>> from penstock.system.memory import MemorySystem
        >>> admin = MemorySystem("m").admin()
        >>> admin.create_stream("flights", partitions=2)
        True
        >>> [admin.partition_count("flights"), admin.streams(), admin.offsets("flights")[0].upcoming]
        [2, ['flights'], 0]
    """

    @abstractmethod
    def partition_count(self, stream: str) -> int:
        """The number of partitions. Raises NotFoundError, naming the stream and the way to create it."""

    @abstractmethod
    def offsets(self, stream: str) -> dict[int, PartitionOffsets]:
        """The ends of every partition, each read atomically."""

    def stream_identity(self, stream: str) -> str | None:
        """The identity that distinguishes the stream from an earlier or later one of its name: a text that stays as
        long as the stream does, and that no other stream ever has. None if the system has none.

        Data made from a stream is only valid for the same stream. Raises NotFoundError if there is none.
        """
        self.partition_count(stream)
        return None

    def missing_columns(self, stream: str, names: Sequence[str]) -> Sequence[str]:
        """Returns the names that are no columns of the stream's newest messages. A system whose messages are not in
        columns, or that does not know them without reading messages, returns none.

        Args:
            stream: the stream.
            names: columns that the application declares.
        """
        return ()

    def keeps_order(self, stream: str) -> bool:
        """True if messages that belong together are read in their order, however many partitions the stream has. So it
        is where a writer puts the messages of a key into one partition, as here. False if the system spreads messages
        over partitions by something else, such as the names of files: a start then warns of operators that depend on
        the order.

        Raises NotFoundError if there is no such stream.
        """
        self.partition_count(stream)
        return True

    def open_transactions(self, stream: str) -> dict[int, OpenTransaction]:
        """The transaction that keeps readers from newer messages, by partition; partitions without one are left out. A
        system without transactions of several appends has none.

        Raises NotFoundError if there is no such stream.
        """
        self.partition_count(stream)
        return {}

    def complete_from(self, stream: str) -> dict[int, int]:
        """By partition, the offset from which on every message is still there, deletions (value None) included.

        Who has read everything below an offset and continues there misses nothing if this is not larger. Below it,
        messages and deletions may have gone, through retention or compaction. A system that compacts in its own time
        cannot say that of deletions; it gives the oldest offset, as here, and `deletions_kept_ms`.
        """
        return {partition: ends.oldest for partition, ends in self.offsets(stream).items()}

    def deletions_kept_ms(self, stream: str) -> int | None:
        """The time for which a deletion can be read at least, in milliseconds. Who comes later may miss one. None: all
        that `complete_from` names are there, as in a system that does not compact in its own time.

        Raises NotFoundError if there is no such stream.
        """
        self.partition_count(stream)
        return None

    @abstractmethod
    def create_stream(self, stream: str, partitions: int, retention: StreamRetention | None = None) -> bool:
        """Create the stream; True if it was made, False if it existed already with this many partitions.

        Idempotent, atomic: no reader sees half a stream.

        Args:
            stream: its name in this system.
            partitions: the number of its partitions, at least 1.
            retention: when messages are deleted. None accepts that of an existing stream, and lets a new one keep its
                messages forever.

        Raises:
            IncompatibleError: it exists with another partition count, or with another retention.
            ConfigError: the system cannot delete old messages (`System.retains`).
        """

    def create_compacted(self, stream: str, partitions: int, settings: Mapping[str, str]) -> bool:
        """Create a stream that keeps the newest record of every key; True if it was made, False if it existed.

        Args:
            stream: its name in this system.
            partitions: the number of its partitions, at least 1.
            settings: of the stream, in the system's names. One that exists must compact, no earlier than these say;
                other differences are logged.

        Raises:
            IncompatibleError: it exists with another partition count, or the system cannot do it
                (`System.compacts_by_age`).
            ConfigError: it exists with settings that would lose records, or the system does not take the settings.
        """
        raise IncompatibleError(f"the system of the stream `{stream}` does not compact streams by the age of records")

    def compaction(self, stream: str) -> Compaction:
        """The part of the stream that may have been compacted by now.

        Raises:
            NotFoundError: there is no such stream.
            IncompatibleError: the system cannot tell (`System.compacts_by_age`).
        """
        raise IncompatibleError(f"the system of the stream `{stream}` does not say how far it is compacted")

    def streams(self) -> list[str]:
        """The names of all streams, ascending. Raises ConfigError if the system cannot list them."""
        raise ConfigError("this system cannot list its streams")

    def delete_stream(self, stream: str) -> None:
        """Delete the stream and all its messages, in one step as others see it.

        Raises NotFoundError if there is none, ConfigError if the system cannot do that.
        """
        raise ConfigError("this system cannot delete streams")

    def retention(self, stream: str) -> StreamRetention:
        """The limits by which the stream deletes its oldest messages. Raises NotFoundError if there is no such
        stream."""
        self.partition_count(stream)
        return StreamRetention()

    def record_limits(self, stream: str) -> RecordLimits:
        """The records that the stream refuses from any writer. A job with exactly-once output asks it at its start,
        and takes no such record into a checkpoint. By default, nothing is refused.

        Raises NotFoundError if there is no such stream.
        """
        self.partition_count(stream)
        return RecordLimits()

    def check_writable(self, stream: str) -> None:  # noqa: B027
        """Raise ConfigError if Penstock cannot write to the stream as it is configured, or must not because others
        write it. The stream need not exist, and nothing is written. A start asks it for each output before it makes
        anything, and `penstock check` asks it too. By default, nothing is refused.

        Args:
            stream: its name in this system.
        """

    def set_retention(self, stream: str, retention: StreamRetention) -> int:
        """Change when the stream deletes its oldest messages, and delete the ones that are due now.

        A reader that has not read a deleted message gets an error that names its offset and the oldest one. If it
        raises half-way, some partitions have the new limits; calling it again completes it.

        Args:
            stream: its name in this system.
            retention: the new limits.

        Returns:
            the number of messages that were deleted.

        Raises:
            NotFoundError: there is no such stream.
            ConfigError: the stream has an owner (`own`), or the system cannot do it (`System.retains`).
        """
        raise ConfigError(f"the system of the stream `{stream}` cannot delete old messages")

    def end_stream(self, stream: str) -> None:
        """Declare that no message will follow in the stream: its partitions have `PartitionOffsets.ended`. Durable.

        An append begins the partition again. If this raises half-way, some partitions have ended; calling it again
        completes it.

        Raises:
            NotFoundError: there is no such stream.
            ConfigError: the stream has an owner (`own`), or the system cannot do it (`System.ends_streams`).
        """
        raise ConfigError(f"the system of the stream `{stream}` cannot end a stream")

    @abstractmethod
    def offset_at_time(self, ssp: SystemStreamPartition, timestamp_ms: int) -> int:
        """The smallest offset whose message has a timestamp at or after a time; upcoming if none has.

        Args:
            ssp: the partition.
            timestamp_ms: the time, in epoch milliseconds.
        """

    def named_offset(self, ssp: SystemStreamPartition, name: str) -> int:
        """The offset that a text names, as the partition is now. It need not be one that the partition holds.

        A system whose messages have names of their own, such as a file and a row, or a sequence number beyond 64 bits,
        finds their offsets here: a startpoint then names a message as people know it. Without that, as here, a text
        names the integer that it is.

        Args:
            ssp: the partition.
            name: the text, such as that of a StartpointSpecific.

        Raises:
            IncompatibleError: it names no offset.
        """
        if not (name.isascii() and name.removeprefix("-").isdigit() and len(name) <= 20):
            raise IncompatibleError(f"`{name}` is not an offset of `{ssp}`: offsets are integers")
        return int(name)

    def named_partition(self, stream: str, name: str) -> int | None:
        """The partition with the message that a text names, if the text says that by itself, as a file and a row do;
        None if it names none, or an offset that any partition may have.

        Args:
            stream: the stream.
            name: the text, as in `named_offset`.
        """
        return None

    def message_name(self, ssp: SystemStreamPartition, offset: int, *, with_line: bool = False) -> str | None:
        """The name of the message at an offset, as people know it: the inverse of `named_offset`. None if messages have
        no names, or there is none at this offset. Errors show it.

        Args:
            ssp: the partition.
            offset: the message's.
            with_line: add the number of its line, if it has one. That takes reading the file up to there.
        """
        return None

    def resolve_startpoint_to_offset(
        self, ssp: SystemStreamPartition, startpoint: requests.Startpoint, *, clamp: bool = False
    ) -> int:
        """The offset of the first message to be read, as the partition is now: between oldest and upcoming.

        Args:
            ssp: the partition.
            startpoint: the place that was asked for.
            clamp: move an offset outside of the partition to the nearest end.

        Raises:
            IncompatibleError: the partition has no such offset; says which it has.
            NotFoundError: there is no such stream or partition.
        """
        return startpoint.apply(ssp, _OffsetResolver(self, clamp=clamp))

    def fence(self, stream: str, writer: WriterIdentity) -> None:
        """From now on refuse appends of the same writer name with a smaller epoch, in every partition.

        Args:
            stream: its name in this system.
            writer: the name, and the epoch that may append.

        Raises:
            FencedError: a larger epoch of this name was seen.
            IncompatibleError: the system cannot do it (`System.fences`).
        """
        raise IncompatibleError(f"the system of the stream `{stream}` does not fence writers")

    def keeps_progress_of(self, name: str) -> bool:
        """True if the marks of writers of this name still exist (`WriterTransaction.mark`). If a system keeps them
        apart from the messages, somebody may have deleted them; published messages would then be published again.

        Args:
            name: that of a `WriterIdentity`.
        """
        return True

    def progress_of(self, name: str, ssps: Iterable[SystemStreamPartition]) -> Mapping[SystemStreamPartition, Progress]:
        """The last marks of writers of this name: unlike `SystemWriter.progress` it fences nobody, so a transaction
        that is open may follow. `penstock status` shows them, and a start refuses a job whose checkpoint log is older.

        Args:
            name: that of a `WriterIdentity`.
            ssps: the partitions that are asked about; one without a mark is not in the answer.

        Raises:
            IncompatibleError: the system does not say it.
        """
        raise IncompatibleError("this system does not say how far a writer has published")

    def published(self, stream: str, name: str, slot: int) -> None:  # noqa: B027
        """Note that all messages of a record for the stream have been published, in every partition.

        The driver calls it behind the last transaction, and after a crash there again: it is idempotent. A system whose
        transactions are seen at once has nothing to do, as here. One that shows a commit as a whole shows it from now
        on, together with the published messages of earlier records.

        Args:
            stream: its name in this system.
            name: that of the `WriterIdentity` that published.
            slot: the record, as in `Progress`.
        """

    def show_positions(self, group: str, positions: Mapping[SystemStreamPartition, int]) -> None:
        """Let the system's own tools show how far a job has read. Nothing else follows from it.

        Args:
            group: the name under which they show it, such as that of a consumer group.
            positions: by partition, the next offset.

        Raises:
            IncompatibleError: the system has no such place (`System.shows_positions`).
            PenstockError: the system refuses it, or does not answer.
        """
        raise IncompatibleError("this system does not show positions")

    def progress_place(self, name: str) -> str:
        """The place where the system keeps the marks of writers of this name, in words, as a user would restore it.

        Args:
            name: that of a `WriterIdentity`.
        """
        return "its record"

    def own(self, stream: str, owner: str) -> str:
        """Make `owner` the only writer of the stream, unless it has an owner already. Atomic and durable.

        Args:
            stream: the stream's name in this system.
            owner: a text that names one owner among all that may ever use the system.

        Returns:
            the owner on record, which is another one if the stream was taken.

        Raises:
            NotFoundError: there is no such stream.
            IncompatibleError: the system keeps no owners (`System.keeps_owners`).
            ConfigError: the stream deletes old messages (`set_retention`), which its owner would miss.
        """
        raise IncompatibleError(f"the system of the stream `{stream}` does not record who owns a stream")

    def owner(self, stream: str) -> str | None:
        """The owner on record; None if the stream has none. Raises NotFoundError if there is no such stream."""
        return None

    def owners(self) -> dict[str, str]:
        """The owner of every stream that has one, by the stream's name."""
        found = {}
        for stream in self.streams():
            with suppress(NotFoundError):  # deleted meanwhile
                if (owner := self.owner(stream)) is not None:
                    found[stream] = owner
        return found

    def compact(
        self, offsets: OffsetRange, writer: WriterIdentity, *, min_dirty_ratio: float = 0.0, dry_run: bool = False
    ) -> int:
        """Let the partition begin with the range, and in the range keep only the newest record of every key.

        Three kinds of records go, in one atomic, durable step: all before the range; in the range those with a newer
        one of their key in it; and the range's deletes (value None), which have nothing left in it to delete. Records
        at or above its end stay as they are, and so do those without a key. An empty range drops all before it.
        Offsets do not change and are never used again.

        It does nothing while the records that came since the last compaction are less than `min_dirty_ratio` of
        those it would look at: the cost of many compactions then grows with the amount written, not with the size.
        A dry run only counts, and is not fenced.

        Args:
            offsets: the range that the partition is to begin with, and to keep the newest records of.
            writer: the writer that asks for it.
            min_dirty_ratio: the part of the records that must have come since the last time, from 0 to 1.
            dry_run: count only.

        Returns:
            the number of records that went, or would go.

        Raises:
            NotFoundError: the range ends beyond upcoming, or begins before one that was compacted earlier.
            FencedError: a larger epoch of this writer's name was seen, checked in the same transaction.
            IncompatibleError: the system cannot do it (`System.compacts_on_request`).
        """
        raise IncompatibleError(f"the system of `{offsets.ssp}` cannot compact a partition on request")

    @abstractmethod
    def close(self) -> None:
        """Close connections and files. No call follows."""


class _OffsetResolver(requests.StartpointVisitor[SystemStreamPartition, int]):
    """Asks an admin for the offset of a startpoint."""

    def __init__(self, admin: SystemAdmin, *, clamp: bool) -> None:
        self._admin = admin
        self._clamp = clamp

    def visit_specific(self, given: SystemStreamPartition, startpoint: requests.StartpointSpecific) -> int:
        text, ends = startpoint.specific_offset, self._ends(given)
        offset = self._admin.named_offset(given, text)
        if ends.oldest <= offset <= ends.upcoming:
            return offset
        if self._clamp:
            return min(max(offset, ends.oldest), ends.upcoming)
        raise IncompatibleError(
            f"`{given}` cannot be read from offset {text}: it holds {ends}. Choose an offset that it holds, or give "
            f"{flag('clamp')} to begin at the nearest one"
        )

    def visit_timestamp(self, given: SystemStreamPartition, startpoint: requests.StartpointTimestamp) -> int:
        self._ends(given)  # says so if there is no such partition
        return self._admin.offset_at_time(given, startpoint.timestamp_offset)

    def visit_oldest(self, given: SystemStreamPartition, startpoint: requests.StartpointOldest) -> int:
        return self._ends(given).oldest

    def visit_upcoming(self, given: SystemStreamPartition, startpoint: requests.StartpointUpcoming) -> int:
        return self._ends(given).upcoming

    def _ends(self, ssp: SystemStreamPartition) -> PartitionOffsets:
        found = self._admin.offsets(ssp.stream)
        if ssp.partition not in found:
            raise NotFoundError(
                f"stream `{ssp.system_stream}` has {counted(len(found), 'partition')}, there is no `{ssp}`"
            )
        return found[ssp.partition]
