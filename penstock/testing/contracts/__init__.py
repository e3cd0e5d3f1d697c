"""The parts of contracts, and what those of the contract of systems share: fixtures that each may override, and short
ways to append and read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import OffsetRange, RawMessage, RawRecord, System, SystemAdmin, SystemWriter, WriterIdentity

STREAM = "flights.by.origin"
COMPACTOR = WriterIdentity("compactor", 1)


class SystemRoom:
    """The fixtures of every part."""

    timestamps: ClassVar[tuple[int, int]] = (-5, 2**62)
    """The smallest and the largest timestamp that is tried, in epoch milliseconds; override it for a system that takes
    less."""

    @pytest.fixture
    def system(self) -> System:
        """A new, empty system."""
        raise NotImplementedError

    @pytest.fixture
    def admin(self, system: System) -> Iterator[SystemAdmin]:
        """An admin of the system, closed after the test."""
        admin = system.admin()
        yield admin
        admin.close()

    @pytest.fixture
    def dense(self, system: System) -> None:
        """Skip the test for a system whose offsets have gaps."""
        if not system.dense_offsets:
            pytest.skip(f"{type(system).__name__} has gaps between its offsets")

    @pytest.fixture
    def fences(self, system: System) -> None:
        """Skip the test for a system that does not fence writers."""
        if not system.fences:
            pytest.skip(f"{type(system).__name__} does not fence writers")

    def truncate(self, system: System, ssp: SystemStreamPartition, before: int) -> None:
        """Make the messages with smaller offsets than `before` disappear, as retention would; override it."""
        pytest.skip(f"{type(system).__name__} has no retention to test")


def records(first: int, count: int) -> list[RawRecord]:
    """`count` records that differ in their numbers, with rising timestamps."""
    return [(1000 + i, b"key-%d" % i, b"value-%d" % i) for i in range(first, first + count)]


def ssp(system: System, partition: int) -> SystemStreamPartition:
    """A partition of the stream the contract works on."""
    return SystemStreamPartition(system.name, STREAM, partition)


def messages(start: int, end: int) -> list[RawMessage]:
    """The messages of a range, after `records(0, ...)` were appended to an empty partition."""
    return [(i, *record) for i, record in enumerate(records(start, end - start), start)]


def append(system: System, where: SystemStreamPartition, batch: Sequence[RawRecord]) -> int:
    """Append with a separate writer."""
    writer = system.writer(None)
    try:
        return writer.append(where, batch)
    finally:
        writer.close()


def append_all(writer: SystemWriter, batches: Mapping[SystemStreamPartition, Sequence[RawRecord]]) -> None:
    """Append to several partitions in one transaction."""
    with writer.begin() as transaction:
        for where, batch in batches.items():
            transaction.append(where, batch)


def read(system: System, where: SystemStreamPartition, start: int, end: int) -> list[RawMessage]:
    """Read a range with a separate reader."""
    reader = system.reader()
    try:
        return [message for chunk in reader.read(OffsetRange(where, start, end), 1000) for message in chunk]
    finally:
        reader.close()


def read_all(system: System, where: SystemStreamPartition) -> list[RawMessage]:
    """Read a partition from its oldest message to its end."""
    admin = system.admin()
    try:
        ends = admin.offsets(where.stream)[where.partition]
    finally:
        admin.close()
    return read(system, where, ends.oldest, ends.upcoming)


def read_compacted(system: System, where: SystemStreamPartition, start: int, end: int) -> list[RawMessage]:
    """Read the messages of a range that compaction has kept, with a separate reader."""
    reader = system.reader()
    try:
        chunks = reader.read_compacted(OffsetRange(where, start, end), 1000)
        return [message for chunk in chunks for message in chunk]
    finally:
        reader.close()
