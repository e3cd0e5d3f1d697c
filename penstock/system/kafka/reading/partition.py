"""The fetched part of one partition, and its messages that wait to be read. Nothing is opened here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import islice
from typing import cast

from confluent_kafka import Message

from penstock.api.messages.headers import UNREADABLE
from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import RawMessage
from penstock.system.kafka.client import received_headers
from penstock.system.kafka.writing.timestamps import event_time, own_headers
from penstock.system.ranges import take_chunk

_MESSAGE_BYTES = 200


class FetchedPartition:
    """The part of a partition that a reader knows: offsets, and the messages between the first two.

    `next` is the offset that the reader gives next, and every message below `known` was given or is in the buffer. So a
    range that begins between the two continues, and any other one has to be fetched from its beginning.
    """

    __slots__ = ("_buffer", "_size", "at_end", "known", "next", "ssp")

    def __init__(self, ssp: SystemStreamPartition, start: int) -> None:
        self.ssp = ssp
        self.next = start
        self.known = start
        self.at_end = False
        """True if `known` is the end of the partition when it was last looked at."""
        self._buffer: list[RawMessage] = []
        self._size = 0
        """The least number of bytes of the buffer's keys and values."""

    @property
    def waits(self) -> bool:
        return bool(self._buffer)

    @property
    def held_bytes(self) -> int:
        """The approximate memory of the buffer."""
        return self._size + _MESSAGE_BYTES * len(self._buffer)

    def move(self, start: int) -> bool:
        """Move to an offset, without the messages below it. False if it has to be fetched from there."""
        if not self.next <= start <= self.known:
            return False
        if self.next < start:
            del self._buffer[: bisect_left(self._buffer, (start,))]
            self.next = start
        return True

    def restart(self, start: int) -> None:
        self.next = self.known = start
        self._buffer, self._size, self.at_end = [], 0, False

    def accept(self, messages: Sequence[Message]) -> None:
        """Put messages into the buffer. They must follow the known ones."""
        # Without a line of Python for each message without headers: this is where the time goes.
        keys, values = list(map(_KEY, messages)), list(map(_VALUE, messages))
        times = [time for _, time in map(_TIMESTAMP, messages)]
        headers = received_headers(messages)
        found: list[RawMessage] = list(zip(map(_OFFSET, messages), times, keys, values, strict=True))
        if any(headers):
            found = list(map(_with_headers, found, headers))
        if self._buffer:
            self._buffer += found
        else:
            self._buffer, self._size = found, 0
        self._size += sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))
        last = found[-1][0] + 1
        if last > self.known:
            self.known, self.at_end = last, False

    def ended(self, offset: int) -> None:
        if offset >= self.known:
            self.known, self.at_end = offset, True

    def take(self, end: int, chunk_messages: int, chunk_bytes: int) -> list[RawMessage]:
        """The next messages below `end`, in the bounds of `SystemReader.read`; none if the buffer has none."""
        buffer = self._buffer
        if not buffer:
            return []
        if len(buffer) <= chunk_messages and buffer[-1][0] < end and self._size < chunk_bytes:
            self._buffer, self._size = [], 0
            return buffer
        inside = bisect_left(buffer, (end,))
        chunk = take_chunk(islice(buffer, inside), chunk_bytes, chunk_messages)
        del buffer[: len(chunk)]
        if not buffer:
            self._size = 0
        return chunk


def _with_headers(message: RawMessage, headers: Sequence[tuple[str, bytes | None]] | None) -> RawMessage:
    if not headers:
        return message
    if headers is UNREADABLE:
        return (*message[:4], UNREADABLE)
    offset, timestamp, key, value = message[:4]
    others = own_headers(headers)
    found = (offset, event_time(headers, timestamp), key, value)
    return (*found, others) if others else found


_TIMESTAMP, _KEY, _VALUE = Message.timestamp, Message.key, Message.value
_OFFSET = cast("Callable[[Message], int]", Message.offset)
"""None only for an object that is not a message."""
