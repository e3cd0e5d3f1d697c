"""Reads the messages of a stream."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from penstock.admin.stream.names import FoundStream, no_stream
from penstock.api.messages import Headers
from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import counted, owned_stream
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.system.base import OffsetRange, PartitionOffsets, RawMessage, SystemReader

_LAST = 10
_CHUNK = 1000
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Message:
    """A message and its position. `timestamp` is in epoch milliseconds."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    name: str | None = None
    """Its name, as people know it, such as a file and a row; only of a message that was asked for by its offset."""


class StreamTail:
    """Reads the last messages of a stream, or all of them, and messages that are appended meanwhile. Used by one
    thread.

    Example:
        >>> tail = admin.StreamTail(admin.open_stream("trips"), partition=0)
        >>> [(message.offset, message.key, message.value) for message in tail.messages(count=2)]
        [(1, b'N2', b'200'), (2, b'N1', b'700')]
        >>> tail.close()
    """

    def __init__(
        self, found: FoundStream, partition: int | None = None, waiting: Callable[[], None] = lambda: None
    ) -> None:
        """Open the stream.

        Args:
            found: the stream, from `open_stream`.
            partition: the number of the only partition to read; None for all.
            waiting: called before each wait for new messages.
        """
        self._stream = found.stream
        self._waiting = waiting
        self._partition = partition
        self._admin = found.system.admin()
        self._reader: SystemReader = found.system.reader()
        self._dense = found.system.dense_offsets

    def messages(
        self, *, from_beginning: bool = False, count: int | None = None, follow: bool = False
    ) -> Iterator[Message]:
        """The messages, in the order of their timestamps if several partitions are read.

        Args:
            from_beginning: begin with the oldest message instead of the last ones.
            count: how many messages: the last ones (10 if None), or the first ones from the beginning (all if None).
            follow: continue with the messages that are appended, without an end.

        Raises:
            NotFoundError: the stream or the partition does not exist.
        """
        ends = self._ends()
        if from_beginning:
            begun = self._from({number: end.oldest for number, end in ends.items()}, ends, follow=follow)
            yield from islice(begun, count)
            return
        wanted = _LAST if count is None else count
        starts = {
            number: max(end.oldest, end.upcoming - wanted) if self._dense else end.oldest
            for number, end in ends.items()
        }
        yield from deque(self._merged(starts, ends), maxlen=wanted)
        if follow:
            yield from self._from({number: end.upcoming for number, end in ends.items()}, ends, follow=True)

    def at(self, offset: str, count: int = 1) -> Iterator[Message]:
        """The messages of a partition from an offset on, with their names.

        Args:
            offset: an offset, or the name of a message, as in a startpoint: of a folder, `FILE` or `FILE:ROW`.
            count: how many messages.

        Raises:
            NotFoundError: the stream or the partition does not exist.
            IncompatibleError: the text names no message of the partition.
            ConfigError: no partition was given, and the text does not say it.
        """
        ends, partition = self._ends(), self._partition
        if partition is None:
            partition = self._admin.named_partition(self._stream.stream, offset)
        if partition is None:
            raise ConfigError(
                f"`{offset}` is the name of no message of `{self._stream}`, and any partition may have an offset: name "
                "the partition as well"
            )
        ssp = SystemStreamPartition(self._stream.system, self._stream.stream, partition)
        start = self._admin.named_offset(ssp, offset)
        if not ends[partition].oldest <= start < ends[partition].upcoming:
            raise IncompatibleError(f"`{ssp}` has no message at offset {start}: it has {ends[partition]}")
        for message in islice(self._read(partition, start, ends[partition].upcoming), count):
            yield replace(message, name=self._admin.message_name(ssp, message.offset))

    def is_intermediate(self) -> bool:
        """True for a job's intermediate stream, where a byte before each value tells the kind of message.

        Raises:
            NotFoundError: the stream does not exist.
        """
        try:
            owner = self._admin.owner(self._stream.stream)
        except NotFoundError:
            raise no_stream(self._stream) from None
        return owner is not None and owned_stream(owner) == "an intermediate stream"

    def close(self) -> None:
        """Close the stream."""
        self._reader.close()
        self._admin.close()

    def _from(
        self, starts: Mapping[int, int], ends: Mapping[int, PartitionOffsets], *, follow: bool
    ) -> Iterator[Message]:
        yield from self._merged(starts, ends)
        while follow:
            self._waiting()
            starts, ends = {number: end.upcoming for number, end in ends.items()}, self._ends()
            if all(ends[number].upcoming == start for number, start in starts.items()):
                time.sleep(_POLL_S)
            else:
                yield from self._merged(starts, ends)

    def _ends(self) -> dict[int, PartitionOffsets]:
        try:
            ends = self._admin.offsets(self._stream.stream)
        except NotFoundError:
            raise no_stream(self._stream) from None
        if self._partition is None:
            return ends
        if self._partition not in ends:
            raise NotFoundError(
                f"stream `{self._stream}` has no partition {self._partition}: it has "
                f"{counted(len(ends), 'partition')}, numbered from 0"
            )
        return {self._partition: ends[self._partition]}

    def _merged(self, starts: Mapping[int, int], ends: Mapping[int, PartitionOffsets]) -> Iterator[Message]:
        parts = (self._read(number, start, ends[number].upcoming) for number, start in starts.items())
        return heapq.merge(*parts, key=lambda message: message.timestamp)

    def _read(self, partition: int, start: int, end: int) -> Iterator[Message]:
        ssp = SystemStreamPartition(self._stream.system, self._stream.stream, partition)
        return _messages(partition, self._reader.read(OffsetRange(ssp, start, end), _CHUNK))


def _messages(partition: int, chunks: Iterable[list[RawMessage]]) -> Iterator[Message]:
    return (Message(partition, *raw) for chunk in chunks for raw in chunk)
