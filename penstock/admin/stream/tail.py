"""Reading the messages of a stream."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from penstock.admin.stream.names import FoundStream, no_stream
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import NotFoundError
from penstock.system.base import OffsetRange, PartitionOffsets, RawMessage, SystemReader
from penstock.wording import counted

_LAST = 10
_CHUNK = 1000
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Message:
    """A message and where it lies."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class StreamTail:
    """Reads the end of a stream, or all of it, and what is appended meanwhile. Used by one thread."""

    def __init__(
        self, found: FoundStream, partition: int | None = None, waiting: Callable[[], None] = lambda: None
    ) -> None:
        """`partition`: only this one. `waiting` is called before it waits for new messages."""
        self._stream = found.stream
        self._waiting = waiting
        self._partition = partition
        self._admin = found.system.admin()
        self._reader: SystemReader = found.system.reader()
        self._dense = found.system.dense_offsets

    def messages(
        self, *, from_beginning: bool = False, count: int | None = None, follow: bool = False
    ) -> Iterator[Message]:
        """The messages that are there, and with `follow` those that come, without an end.

        Raises:
            NotFoundError: there is no such stream or partition.
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

    def close(self) -> None:
        """Close what is open."""
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
