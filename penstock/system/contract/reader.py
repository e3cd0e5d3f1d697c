"""Readers of ranges of offsets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.errors import IncompatibleError
from penstock.system.contract.messages import ColumnChunk, OffsetRange, RawMessage

if TYPE_CHECKING:
    import pyarrow as pa

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
