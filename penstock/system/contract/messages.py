"""Messages in their raw form, and their offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from penstock.api.messages.headers import Headers
from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import counted, utc_text

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
