"""Messages in their raw form, and their offsets. Pure.

Limits say which records a stream refuses from any writer. A row that its system could not read has a message in its
place, with the reason and the row as it is there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from penstock.api.messages import Headers
from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import counted, utc_text
from penstock.errors import IncompatibleError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


RawMessage: TypeAlias = (
    tuple[int, int, bytes | None, bytes | None] | tuple[int, int, bytes | None, bytes | None, Headers]
)
"""A message as it is read: (offset, timestamp in epoch milliseconds, key, value), and its headers if it has some."""

RawRecord: TypeAlias = tuple[int, bytes | None, bytes | None] | tuple[int, bytes | None, bytes | None, Headers]
"""A message to be written: (timestamp in epoch milliseconds, key, value), and its headers if it has some. A system gets
headers only if it `carries_headers`."""


def headers_in(message: RawMessage) -> Headers:
    """The headers of a message that was read; empty if it has none.

    Example:
        >>> headers_in((7, 1000, b"k", b"v")), headers_in((8, 1000, b"k", b"v", (("trace", b"7f"),)))
        ((), (('trace', b'7f'),))
    """
    return message[4] if len(message) == 5 else ()


def without_headers(records: Iterable[RawRecord]) -> Iterator[RawRecord]:
    """The records without their headers, for a system that has none.

    Example:
        >>> list(without_headers([(1000, b"k", b"v", (("trace", b"7f"),)), (1001, None, b"w")]))
        [(1000, b'k', b'v'), (1001, None, b'w')]
    """
    return (record[:3] for record in records)


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """Messages in the form of columns, in offset order.

    Example:
        >>> import numpy as np, pyarrow as pa
        >>> rows = pa.array([{"n": 1}, {"n": 2}])
        >>> chunk = ColumnChunk(np.array([5, 6]), np.array([1000, 2000]), pa.nulls(2, pa.binary()), rows)
        >>> len(chunk), chunk.values[1].as_py()
        (2, {'n': 2})
    """

    offsets: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]
    """In epoch milliseconds."""
    keys: pa.Array
    """The bytes of the keys."""
    values: pa.StructArray
    """The values, as rows of the schema that was asked for."""

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The messages of one partition with `start <= offset < end`. Its length is the most messages that it can have; it
    is their number if a system has `dense_offsets`.

    Example:
        >>> from penstock.api.ssp import SystemStreamPartition
        >>> len(OffsetRange(SystemStreamPartition("local", "flights", 0), 10, 25))
        15
    """

    ssp: SystemStreamPartition
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The ends of a partition: `oldest` is the first offset that still exists (equal to `upcoming` if there is none),
    `upcoming` the one the next message will get. `ended` declares that no message will follow.

    Example:
        >>> print(PartitionOffsets(oldest=3, upcoming=8))
        messages from 3 (oldest) to 7 (newest), the next one will be 8
    """

    oldest: int
    upcoming: int
    ended: bool = False

    @property
    def newest(self) -> int | None:
        """The offset before `upcoming`, or None if the partition holds no message. It is the last message's if a system
        has `dense_offsets`."""
        return self.upcoming - 1 if self.upcoming > self.oldest else None

    def __str__(self) -> str:
        if self.newest is None:
            return f"no messages, the next one will be {self.upcoming}"
        return f"messages from {self.oldest} (oldest) to {self.newest} (newest), the next one will be {self.upcoming}"


@dataclass(frozen=True, slots=True)
class Compaction:
    """The extent of compaction in a stream that the system compacts in its own time.

    Example:
        >>> Compaction(untouched_from={0: 120}, lag_ms=14_400_000, deletes_stay_ms=86_400_000).untouched_from[0]
        120
    """

    untouched_from: Mapping[int, int]
    """By partition, an offset: no record at or above it has gone, and none has made an older one of its key go."""
    lag_ms: int
    """The least age of a record before it goes, or makes an older one go."""
    deletes_stay_ms: int
    """The time that a delete (value None) stays after it has made the older records of its key go."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A writer's transaction that is not over, and the messages behind its first one: a reader sees none of them yet.

    Example:
        >>> print(OpenTransaction(offset=120, messages=40, since_ms=1_700_000_000_000))
        at most 40 messages behind an open transaction since 2023-11-14T22:13:20.000Z
    """

    offset: int
    """The offset of its first message; everything before it can be read."""
    messages: int
    """The number of offsets behind that: at most so many messages wait."""
    since_ms: int
    """The timestamp of its first message, in epoch milliseconds; 0 if unknown."""

    def __str__(self) -> str:
        since = f" since {utc_text(self.since_ms)}" if self.since_ms else ""
        return f"at most {counted(self.messages, 'message')} behind an open transaction{since}"


def partitions_with_messages(ends: Mapping[int, PartitionOffsets]) -> tuple[int, ...]:
    """The partitions of a stream that hold messages, ascending.

    Example:
        >>> partitions_with_messages({1: PartitionOffsets(0, 2), 0: PartitionOffsets(4, 4)})
        (1,)
    """
    return tuple(partition for partition, own in sorted(ends.items()) if own.newest is not None)


_DOUBT = 1.1
"""A tolerance, because another program compresses, which may be somewhat better at it."""


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """The records that a stream refuses, as far as that is certain. The default: none.

    Args:
        needs_key: records without a key are refused.
        max_bytes: the most bytes of a record as it is sent, with its key; None: any number.
        compression: the compression before sending: `gzip`, `snappy`, `lz4`, `zstd`, or None.
        max_plain_bytes: the most bytes before compression; None: any number.

    Example:
        >>> RecordLimits(needs_key=True).refused(None, b"v")
        'it has no key, and the stream is compacted'
        >>> limits = RecordLimits(max_bytes=1000, compression="lz4")
        >>> limits.refused(b"k", b"v" * 2000) is None  # compressed, it is smaller
        True
    """

    needs_key: bool = False
    max_bytes: int | None = None
    compression: str | None = None
    max_plain_bytes: int | None = None

    @property
    def remedy(self) -> str:
        """The advice for an application whose messages are refused: a sentence without its full stop, or nothing."""
        return ""

    @property
    def least_bytes(self) -> int | None:
        """A record of at most so many bytes is not too large."""
        return min((each for each in (self.max_bytes, self.max_plain_bytes) if each is not None), default=None)

    def refused(self, key: bytes | None, value: bytes | None, headers_bytes: int = 0) -> str | None:
        """The reason why the stream refuses a record for certain; None if it may take it.

        Args:
            key, value: the record's bytes.
            headers_bytes: the bytes of the names and values of its headers.
        """
        if self.needs_key and key is None:
            return "it has no key, and the stream is compacted"
        size = len(key or b"") + len(value or b"") + headers_bytes
        if self.max_plain_bytes is not None and size > self.max_plain_bytes:
            return f"it has {size:,} bytes, and the client sends at most {self.max_plain_bytes:,}"
        if self.max_bytes is None or size <= self.max_bytes:
            return None
        if self.compression is None:
            return f"it has {size:,} bytes, and the stream takes at most {self.max_bytes:,}"
        import pyarrow as pa  # late: commands load this module

        sent = len(pa.Codec(self.compression).compress((key or b"") + (value or b""), asbytes=True))  # and headers
        if sent <= self.max_bytes * _DOUBT:
            return None
        return f"it has {size:,} bytes, {sent:,} when compressed, and the stream takes at most {self.max_bytes:,}"


_MARK = b"\0unreadable row\0"
"""No text of a file or a system begins so, and no serde of rows takes it."""


class UnreadableRow(NamedTuple):
    """A row that could not be read."""

    reason: str
    """Says where it is and why."""
    data: bytes | None
    """The row as it is in the file; None if the format has no text of a row."""

    def message(self) -> bytes:
        """The bytes of the message.

        Example:
            >>> row = UnreadableRow("`a.csv`, line 9: it has 1 cell, and the header has 2", b"b")
            >>> unreadable_row(row.message()) == row, unreadable_row(b"b")
            (True, None)
        """
        reason = self.reason.replace("\0", "\\0").encode("utf-8", "backslashreplace")
        return _MARK + reason + (b"" if self.data is None else b"\0" + self.data)


def unreadable_row(data: bytes | None) -> UnreadableRow | None:
    """The unreadable row in the bytes of a message; None if the message is another one."""
    if data is None or not data.startswith(_MARK):
        return None
    reason, has_data, own = data.removeprefix(_MARK).partition(b"\0")
    return UnreadableRow(reason.decode("utf-8", "replace"), own if has_data else None)


CHUNK_BYTES = 8 << 20
"""The default limit for the bytes of keys and values that a reader brings at once."""


class SystemReader(ABC):
    """Reads offset ranges. Used by one thread at a time.

    Example:
        >>> from penstock.api.ssp import SystemStreamPartition
        >>> from penstock.system.base import OffsetRange
        >>> from penstock.system.memory import MemorySystem
        >>> system, ssp = MemorySystem("m"), SystemStreamPartition("m", "in", 0)
        >>> system.admin().create_stream("in", 1)
        True
        >>> system.writer(None).append(ssp, [(1000, b"key", b"one"), (2000, None, b"two")])
        0
        >>> for messages in system.reader().read(OffsetRange(ssp, 0, 2), chunk_messages=100):
        ...     print(messages)
        [(0, 1000, b'key', b'one'), (1, 2000, None, b'two')]

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

        The range may be longer than needed: the caller may leave the iterator after any list. Nothing behind that list
        counts as read, and the next range begins there.

        Args:
            offsets: the range to read. Only messages with these offsets are in the lists.
            chunk_messages: the most messages in a list.
            chunk_bytes: a list ends with the message with which its keys and values reach so many bytes.

        Raises:
            NotFoundError: a message of the range no longer exists or does not exist yet; none is ever skipped.
            ConfigError: the range ends before it starts, or a bound is not positive.
        """

    def read_columns(
        self, offsets: OffsetRange, schema: pa.Schema, chunk_messages: int
    ) -> Iterator[ColumnChunk | list[RawMessage]] | None:
        """As `read`, of messages that the system has in columns: their values as rows of a schema.

        Columns that the schema does not have are not read, and one that is missing is null. Messages that are not in
        columns, or do not fit the schema, may come among them in lists, as from `read`; the serde reads these.

        Args:
            offsets: the range to read.
            schema: the columns.
            chunk_messages: the most messages in a chunk.

        Returns:
            The chunks; None if the messages of the range are to be read by `read`, because they are no columns.

        Raises:
            NotFoundError: as `read`.
            IncompatibleError: a column has a type that does not fit the schema.
        """
        return None

    def expect(self, ranges: Sequence[OffsetRange]) -> None:  # noqa: B027
        """Be ready for these ranges: each will be read next, or a part of it from its beginning. Partitions that are
        not among them will not be read for a while.

        It only saves time, and any range may still be read. Nothing is opened here and nothing is raised.

        Args:
            ranges: at most one for each partition.
        """

    def read_compacted(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        """The records of the range that `SystemAdmin.compact` has left, in offset order, in bounded lists.

        Applied to an empty map, record by record, they give the same as the whole range would. Keys that were
        deleted may not occur at all.

        Args:
            offsets: the range to read.
            chunk_messages: the most messages in a list.
            chunk_bytes: a list ends with the message with which its keys and values reach so many bytes.

        Raises:
            NotFoundError: the range ends beyond upcoming, or records of it went that it needs: it begins before the
                partition's compacted part, or ends inside that part.
            RetryableError: the partition was compacted meanwhile; the messages read so far are of no use.
            IncompatibleError: the system drops records in its own time (`System.compacts_on_request`).
        """
        raise IncompatibleError(f"the system of `{offsets.ssp}` does not say which records of a range are gone")

    @abstractmethod
    def close(self) -> None:
        """Close connections and files. No call follows."""
