"""Describes and creates streams, and limits how long they keep their messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from penstock.admin.jobs import load_without_job
from penstock.admin.stream.audited import audited_stream
from penstock.admin.stream.names import FoundStream, no_stream
from penstock.api.retention import StreamRetention
from penstock.config.model import DEFAULT_SYSTEM
from penstock.errors import NotFoundError
from penstock.system.registry import open_system


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The offsets of a partition: `oldest`, `newest` (None if it is empty), and `upcoming`, the next one."""

    partition: int
    oldest: int
    newest: int | None
    upcoming: int
    messages: int | None
    """None where offsets have gaps."""
    ended: bool = False
    """Whether no message will follow."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A stream: its partitions, how many messages it has, and how long it keeps them."""

    stream: str
    partition_count: int
    messages: int | None
    retention_ms: int | None
    retention_bytes: int | None
    partitions: tuple[PartitionFacts, ...]

    @property
    def retention(self) -> StreamRetention:
        """How long the stream keeps its messages."""
        return StreamRetention(self.retention_ms, self.retention_bytes)


@dataclass(frozen=True, slots=True)
class ListedStream:
    """A stream of a system. A changelog has an `owner`, which alone writes to it."""

    stream: str
    partitions: int
    messages: int | None
    owner: str | None
    retention_ms: int | None
    retention_bytes: int | None

    @property
    def retention(self) -> StreamRetention:
        """How long the stream keeps its messages."""
        return StreamRetention(self.retention_ms, self.retention_bytes)


@dataclass(frozen=True, slots=True)
class DeletedStream:
    """A deleted stream, and how many messages it had."""

    stream: str
    deleted: bool
    messages: int | None


def streams(
    system: str = DEFAULT_SYSTEM,
    file: str | Path | None = None,
    assignments: Sequence[str] | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
) -> list[ListedStream]:
    """The streams of a system.

    Args:
        system: the name of the system.
        file, assignments, overrides: as in `open_job`.

    Example:
        >>> [(each.stream, each.partitions, each.messages) for each in admin.streams()]
        [('local.trips', 2, 4)]
    """
    opened = open_system(load_without_job(file, assignments, overrides).system(system))
    admin, found = opened.admin(), []
    try:
        for name in admin.streams():
            try:
                ends, owner, retention = admin.offsets(name), admin.owner(name), admin.retention(name)
            except NotFoundError:
                continue  # deleted meanwhile
            messages = opened.messages_in(ends.values())
            age, size = retention.max_age_ms, retention.max_bytes
            found.append(ListedStream(f"{system}.{name}", len(ends), messages, owner, age, size))
    finally:
        admin.close()
    return found


def describe_stream(found: FoundStream) -> StreamFacts:
    """Describe a stream: its partitions, their offsets, and how long it keeps messages.

    Args:
        found: the stream.

    Raises:
        NotFoundError: the stream does not exist.

    Example:
        >>> facts = admin.describe_stream(admin.open_stream("trips"))
        >>> [(each.partition, each.oldest, each.upcoming) for each in facts.partitions], str(facts.retention)
        ([(0, 0, 3), (1, 0, 1)], 'forever')
    """
    with closing(found.system.admin()) as admin:
        ends = admin.offsets(found.stream.stream)
        retention = admin.retention(found.stream.stream)
    partitions = tuple(
        PartitionFacts(number, end.oldest, end.newest, end.upcoming, found.system.messages_in([end]), end.ended)
        for number, end in sorted(ends.items())
    )
    messages = found.system.messages_in(ends.values())
    age, size = retention.max_age_ms, retention.max_bytes
    return StreamFacts(str(found.stream), len(partitions), messages, age, size, partitions)


def create_stream(found: FoundStream, partitions: int, retention: StreamRetention | None = None) -> bool:
    """Create a stream, unless it exists with the same number of partitions.

    Args:
        found: the stream.
        partitions: how many partitions it has.
        retention: how long it keeps its messages. An existing stream must have exactly these limits.

    Returns:
        Whether the stream was created.

    Raises:
        IncompatibleError: the stream exists with another number of partitions, or another retention.

    Example:
        >>> stream = admin.open_stream("delays")
        >>> admin.create_stream(stream, 4), admin.create_stream(stream, 4)
        (True, False)
    """
    with closing(found.system.admin()) as admin:
        return admin.create_stream(found.stream.stream, partitions, retention)


def stream_retention(found: FoundStream) -> StreamRetention:
    """How long a stream keeps its messages. Raises NotFoundError if there is none."""
    with closing(found.system.admin()) as admin:
        return admin.retention(found.stream.stream)


def set_retention(found: FoundStream, retention: StreamRetention) -> int:
    """Change how long a stream keeps its messages. A job that has not read a deleted message ends with an error, unless
    `streams.<id>.on.data.loss` is `skip`.

    Args:
        found: the stream.
        retention: the limits: age in milliseconds, and size of a partition in bytes.

    Returns:
        How many messages were deleted at once.

    Raises:
        NotFoundError: the stream does not exist.

    Example:
        >>> from penstock.api.retention import StreamRetention
        >>> admin.set_retention(admin.open_stream("trips"), StreamRetention(max_bytes=1 << 30))
        0
    """
    change = {"retention": f"{stream_retention(found)} -> {retention}"}
    with audited_stream([found], "stream retain", change), closing(found.system.admin()) as admin:
        return admin.set_retention(found.stream.stream, retention)


def end_stream(found: FoundStream) -> None:
    """Mark the end of a stream, after which no message follows. A job ends once it has read all its inputs to such an
    end. A message that is published afterwards reopens its partition.

    Args:
        found: the stream.

    Raises:
        NotFoundError: the stream does not exist.
        ConfigError: the stream is the changelog of a store, or its system cannot end streams.

    Example:
        >>> stream = admin.open_stream("trips")
        >>> admin.end_stream(stream)
        >>> [each.ended for each in admin.describe_stream(stream).partitions]
        [True, True]
    """
    with audited_stream([found], "stream end"), closing(found.system.admin()) as admin:
        admin.end_stream(found.stream.stream)


def existing_stream(found: FoundStream) -> StreamFacts:
    """As `describe_stream`, where the stream should be there: if there is none, the error does not advise to create it.

    Raises:
        NotFoundError: there is no such stream.
    """
    try:
        return describe_stream(found)
    except NotFoundError:
        raise no_stream(found.stream) from None
