"""A partition as its leader keeps it: records and markers, producers and their numbers, and the last stable offset."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from confluent_kafka import KafkaError

Headers: TypeAlias = Sequence[tuple[str, str | bytes | None]]
Sent: TypeAlias = tuple[int, bytes | None, bytes | None, Headers]
"""Timestamp in epoch milliseconds, key, value, headers."""
NO_PRODUCER = -1
_REMEMBERED = 5
"""The last batches of a producer that a partition knows by their numbers."""


class BrokerError(Exception):
    """A broker refuses a request, with this code."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(f"{KafkaError(code).name()} {text}")
        self.code = code


@dataclass(slots=True)
class Entry:
    """A record, or the marker of a transaction's end, which takes an offset as well."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    producer: int = NO_PRODUCER
    transactional: bool = False
    commits: bool | None = None
    """None for a record; for a marker, whether it commits."""


@dataclass(slots=True)
class _Producer:
    """The state of a producer in one partition."""

    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    """(first number, last number, first offset)"""
    open_since: int | None = None
    """The first offset of its open transaction."""

    @property
    def last(self) -> int:
        return self.batches[-1][1] if self.batches else -1


@dataclass(slots=True)
class Partition:
    """The log of one partition. All replicas have what is in it."""

    start: int = 0
    end: int = 0
    entries: deque[Entry] = field(default_factory=deque)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """(producer, first offset, offset of the marker) of transactions that were aborted."""
    _producers: dict[int, _Producer] = field(default_factory=dict)

    @property
    def stable(self) -> int:
        """The last stable offset: every transaction with a record before it has ended."""
        opened = [each.open_since for each in self._producers.values() if each.open_since is not None]
        return max(self.start, min([*opened, self.end]))

    def is_open(self, producer: int) -> bool:
        """True if the partition has records of an open transaction of this producer."""
        known = self._producers.get(producer)
        return known is not None and known.open_since is not None

    def append(
        self,
        records: Sequence[Sent],
        producer: int = NO_PRODUCER,
        epoch: int = -1,
        first: int = 0,
        *,
        transactional: bool = False,
    ) -> int:
        """Append a batch. Returns the offset of its first record; that of the first time, if it is a double.

        Args:
            first: the number of the first record, which idempotent producers count for each partition.
        """
        if producer == NO_PRODUCER:
            return self._add(records, producer, transactional=False)
        known = self._producers.get(producer)
        if known is not None:
            if epoch < known.epoch:
                raise BrokerError(KafkaError.INVALID_PRODUCER_EPOCH)
            for low, high, offset in known.batches if epoch == known.epoch else ():
                if (low, high) == (first, first + len(records) - 1):
                    return offset
            if first != (known.last + 1 if epoch == known.epoch else 0):
                raise BrokerError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
        if known is None:
            known = self._producers[producer] = _Producer(epoch)
        elif epoch > known.epoch:
            known.epoch = epoch
            known.batches.clear()
        offset = self._add(records, producer, transactional=transactional)
        known.batches.append((first, first + len(records) - 1, offset))
        if transactional and known.open_since is None:
            known.open_since = offset
        return offset

    def mark(self, producer: int, epoch: int, timestamp: int, *, commits: bool) -> None:
        """Write the marker at the end of a transaction."""
        known = self._producers.setdefault(producer, _Producer(epoch))
        if epoch < known.epoch:
            raise BrokerError(KafkaError.INVALID_PRODUCER_EPOCH)
        if epoch > known.epoch:
            known.epoch = epoch
            known.batches.clear()
        self.entries.append(Entry(self.end, timestamp, None, None, (), producer, True, commits))
        if known.open_since is not None and not commits:
            self.aborted.append((producer, known.open_since, self.end))
        known.open_since = None
        self.end += 1

    def _add(self, records: Sequence[Sent], producer: int, *, transactional: bool) -> int:
        offset = self.end
        for timestamp, key, value, headers in records:
            self.entries.append(
                Entry(self.end, timestamp, key, value, tuple(headers), producer, transactional=transactional)
            )
            self.end += 1
        return offset

    def read(self, offset: int, *, committed: bool, most: int = 1_000_000) -> tuple[list[Entry], int]:
        """The records from an offset on, at most so many, and the offset behind what was looked at."""
        bound = self.stable if committed else self.end
        found: list[Entry] = []
        while offset < bound and len(found) < most:
            entry = self.entries[offset - self.start]
            offset += 1
            if entry.commits is None and not (committed and self._is_aborted(entry)):
                found.append(entry)
        return found, offset

    def _is_aborted(self, entry: Entry) -> bool:
        return entry.transactional and any(
            producer == entry.producer and first <= entry.offset < marker for producer, first, marker in self.aborted
        )

    def at_time(self, timestamp: int, *, committed: bool) -> tuple[int, int]:
        """The offset and time of the first entry that is so late; markers count. (-1, -1) if there is none."""
        bound = self.stable if committed else self.end
        late = (each for each in self._below(bound) if each.timestamp >= timestamp)
        found = next(late, None)
        return (-1, -1) if found is None else (found.offset, found.timestamp)

    def _below(self, bound: int) -> Iterator[Entry]:
        return (each for each in self.entries if each.offset < bound)

    def delete_before(self, offset: int) -> int:
        """Delete the records before an offset; -1 is the end. Returns the first offset that is left."""
        wanted = self.end if offset == -1 else offset
        if wanted > self.end:
            raise BrokerError(KafkaError.OFFSET_OUT_OF_RANGE)
        while self.start < wanted:
            self.entries.popleft()
            self.start += 1
        return self.start
