"""Describes, creates, limits, ends and deletes streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from penstock.admin.jobs import load_without_job, open_all_jobs
from penstock.admin.stream.found import (
    FoundStream,
    audited_stream,
    is_position,
    is_restored_from,
    is_side_input,
    no_stream,
    refuse_shadow,
)
from penstock.api.retention import StreamRetention
from penstock.api.ssp import SystemStream
from penstock.base.wording import flag, listed, owned_stream
from penstock.config.settings import DEFAULT_SYSTEM
from penstock.errors import ConfigError, NotFoundError
from penstock.facts import Column, Facts, FactTable, Shown
from penstock.job.identity import known_uid, owner_uid
from penstock.system.registry import open_system


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The offsets of a partition: `oldest`, `newest` (None if it is empty), and `upcoming`, the next one."""

    partition: Annotated[int, Column("partition", right=True)]
    oldest: Annotated[int, Column("oldest", right=True)]
    newest: Annotated[int | None, Column("newest", right=True)]
    upcoming: Annotated[int, Column("upcoming", right=True)]
    messages: Annotated[int | None, Column("messages", right=True)]
    """None where offsets have gaps."""
    ended: Annotated[bool, Column("ended", lambda ended: "yes" if ended else "no")] = False
    """True if no message will follow."""


@dataclass(frozen=True, slots=True)
class StreamFacts(Shown):
    """A stream: its partitions, how many messages it has, and how long it keeps them."""

    stream: str
    partition_count: int
    messages: int | None
    retention_ms: int | None
    retention_bytes: int | None
    partitions: tuple[PartitionFacts, ...]

    @property
    def retention(self) -> StreamRetention:
        """The limits on the age and size of the stream."""
        return StreamRetention(self.retention_ms, self.retention_bytes)

    def as_facts(self) -> Facts:
        count, messages = self.partition_count, self.messages
        lines = {"stream": self.stream, "partitions": count, "messages": messages, "retention": self.retention}
        return Facts(lines, (FactTable("", self.partitions),))


@dataclass(frozen=True, slots=True)
class ListedStream:
    """A stream of a system. A changelog has an `owner`, which alone writes to it."""

    stream: Annotated[str, Column("stream")]
    partitions: Annotated[int, Column("partitions", right=True)]
    messages: Annotated[int | None, Column("messages", right=True)]
    owner: Annotated[
        str | None, Column("retention", of=lambda each: each.retention, first_to_go=2), Column("owner", first_to_go=1)
    ]
    retention_ms: int | None
    retention_bytes: int | None

    @property
    def retention(self) -> StreamRetention:
        """The limits on the age and size of the stream."""
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
    found = []
    with closing(opened.admin()) as admin:
        for name in admin.streams():
            try:
                ends, owner, retention = admin.offsets(name), admin.owner(name), admin.retention(name)
            except NotFoundError:
                continue  # deleted meanwhile
            messages = opened.messages_in(ends.values())
            age, size = retention.max_age_ms, retention.max_bytes
            found.append(ListedStream(f"{system}.{name}", len(ends), messages, owner, age, size))
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
        ConfigError: the configuration is that of a shadow.

    Example:
        >>> stream = admin.open_stream("delays")
        >>> admin.create_stream(stream, 4), admin.create_stream(stream, 4)
        (True, False)
    """
    refuse_shadow(found.system)
    with closing(found.system.admin()) as admin:
        return admin.create_stream(found.stream.stream, partitions, retention)


def stream_retention(found: FoundStream) -> StreamRetention:
    """The limits on a stream's messages. Raises NotFoundError."""
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
        ConfigError: the configuration is that of a shadow.

    Example:
        >>> from penstock.api.retention import StreamRetention
        >>> admin.set_retention(admin.open_stream("trips"), StreamRetention(max_bytes=1 << 30))
        0
    """
    refuse_shadow(found.system)
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
        ConfigError: the stream is the changelog of a store, or its system cannot end streams; or the configuration
            is that of a shadow.

    Example:
        >>> stream = admin.open_stream("trips")
        >>> admin.end_stream(stream)
        >>> [each.ended for each in admin.describe_stream(stream).partitions]
        [True, True]
    """
    refuse_shadow(found.system)
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


@dataclass(frozen=True, slots=True)
class StreamUse:
    """The users of a stream: `readers` are the jobs whose last checkpoint has a position in it, or that have it as a
    side input; `owner` is that of a changelog. If the owner's job is gone, `note` says so, and `readers` includes jobs
    whose state may be in it. If `only_fills` is true, the stream is only a side input for all readers."""

    readers: tuple[str, ...]
    owner: str | None
    note: str | None = None
    only_fills: bool = False


def refuse_used(found: FoundStream, use: StreamUse) -> None:
    """Raise ConfigError, with who needs the stream, if anybody does."""
    if use.readers or use.owner is not None:
        raise ConfigError(_used(found.stream, use))


def delete_stream(found: FoundStream, *, force: bool = False) -> DeletedStream:
    """Delete a stream and all its messages. Jobs that only write to it, or that have another `job.root`, are not found.

    Args:
        found: the stream.
        force: delete the stream even if a job under `job.root` has a position in it, or it is a job's side input or a
            store's changelog.

    Raises:
        NotFoundError: the stream does not exist.
        ConfigError: a job needs the stream. Nothing was deleted.

    Example:
        >>> admin.delete_stream(admin.open_stream("trips"))
        Traceback (most recent call last):
        ...
        penstock.errors.ConfigError: stream `local.trips` is read by job flights-1. ...
        >>> admin.delete_stream(admin.open_stream("trips"), force=True).messages
        4
    """
    messages = existing_stream(found).messages
    if not force:
        refuse_used(found, stream_use(found))
    change = {"messages": f"{'unknown' if messages is None else messages} -> none"}
    with audited_stream([found], "stream delete", change), closing(found.system.admin()) as admin:
        admin.delete_stream(found.stream.stream)
    return DeletedStream(str(found.stream), deleted=True, messages=messages)


def stream_use(found: FoundStream) -> StreamUse:
    """The jobs under `job.root` that need a stream.

    Args:
        found: the stream.

    Raises:
        NotFoundError: the stream does not exist.

    Example:
        >>> admin.stream_use(admin.open_stream("trips")).readers
        ('flights-1',)
    """
    stream, sources = found.stream, found.sources
    with closing(found.system.admin()) as admin:
        owner = admin.owner(stream.stream)
    with open_all_jobs(sources.file, sources.assignments, overrides=sources.overrides) as jobs:
        latest = {job.paths.root: job.log.read("report").latest for job in jobs}
        uids = {known_uid(job.objects, job.paths) for job in jobs}
        filled = {job.paths.root for job in jobs if is_side_input(stream, job)}
    records = [(name, record) for name, record in latest.items() if record is not None]
    positions = {name for name, record in records if is_position(stream, record)}
    readers = [name for name, _ in records if name in positions or name in filled]
    uid = None if owner is None else owner_uid(owner)
    if owner is None or uid is None or uid in uids:
        return StreamUse(tuple(readers), owner, only_fills=bool(readers) and not positions)
    root = load_without_job(sources.file, sources.assignments, sources.overrides).job.root
    note = f"`{stream}` is {_of(owner)}, which is gone: no job in job.root {root} has this uid"
    copies = [name for name, record in records if name not in readers and is_restored_from(stream, record)]
    return StreamUse((*readers, *copies), None, note)


def _used(stream: SystemStream, use: StreamUse) -> str:
    readers, owner = use.readers, use.owner
    uses = []
    if use.only_fills and owner is None:
        return (
            f"stream `{stream}` is a side input of {'job' if len(readers) == 1 else 'jobs'} {listed(readers)}. To "
            f"fill it again, give {flag('force')}, and create it again at once: its stores are then filled from the "
            "new stream. Without it they cannot be updated, and the jobs cannot start"
        )
    if readers:
        uses.append(f"is read by {'job' if len(readers) == 1 else 'jobs'} {listed(readers)}")
    if owner is not None:
        uses.append(f"is {_of(owner)}")
    first = "the job" if len(readers) < 2 else "the jobs"
    but = "" if owner is not None else ", unless its input is a pattern: it then continues without the stream"
    return (
        f"stream `{stream}` {listed(uses)}. Delete {first} first (`penstock job delete`), or give {flag('force')}: "
        f"{first} cannot continue then{but}"
    )


def _of(owner: str) -> str:
    what = owned_stream(owner).partition(" ")[2]
    return f"the {what} of {owner.removesuffix(f', {what}')}"
