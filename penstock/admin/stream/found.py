"""A stream that is found by its name, the jobs that use or own it, and its messages.

Changes of a stream are recorded in the audit logs of these jobs.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

from penstock.admin.job.logs import audited
from penstock.admin.jobs import FoundJob, load_without_job, open_all_jobs
from penstock.admin.questions import Questions, answer_or_problem
from penstock.admin.table import side_stores
from penstock.api.messages import Headers
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.wording import counted, owned_stream
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.streams import CHANGELOG_STREAM, STREAMS, ChangelogStreamMarker
from penstock.checkpoint.task_versions import needed_markers
from penstock.config.settings import DEFAULT_SYSTEM, JobSettings
from penstock.errors import ConfigError, CorruptError, IncompatibleError, NotFoundError, PenstockError
from penstock.job.identity import is_owned_by, known_uid, owner_uid
from penstock.system.base import OffsetRange, PartitionOffsets, RawMessage, System, SystemReader
from penstock.system.registry import open_system


@dataclass(frozen=True, slots=True)
class ConfigSources:
    """The sources of a configuration. The fields are the arguments of `open_job`."""

    file: str | Path | None = None
    assignments: Sequence[str] | None = None
    overrides: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class FoundStream:
    """A stream's full name and its system. The stream need not exist."""

    stream: SystemStream
    system: System = field(repr=False)
    sources: ConfigSources = field(repr=False)


def no_stream(stream: SystemStream) -> NotFoundError:
    """The error for a stream that should exist. It does not advise to create the stream."""
    return NotFoundError(
        f"the stream `{stream}` does not exist; `penstock stream list {stream.system}` lists those that do"
    )


def closed_to_others(stream: object, owner: str | None) -> str | None:
    """The reason why nobody but its owner may write to a stream; None if everybody may."""
    return None if owner is None else f"`{stream}` is {owned_stream(owner)} that only its owner writes: {owner}"


def refuse_shadow(system: System) -> None:
    """Raise ConfigError if a system is that of a shadow. An input that somebody else wrote to would be held back from
    then on, and the shadow would not read what really comes."""
    from penstock.system.held import HeldSystem  # loads Arrow, and the list of commands does not

    if isinstance(system, HeldSystem):
        raise ConfigError(
            f"`{JobSettings.shadow_enabled.name}`: what a shadow does not write itself belongs to the real streams. "
            "Leave the option out for this command"
        )


def full_name(name: str) -> str:
    """The name with its system, which is `local` if the name has no dot."""
    return name if "." in name else f"{DEFAULT_SYSTEM}.{name}"


def open_stream(
    name: str,
    file: str | Path | None = None,
    assignments: Sequence[str] | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
) -> FoundStream:
    """Find a stream and its system. The stream need not exist.

    Args:
        name: `system.stream`, or a name without a dot for a stream of the system `local`.
        file, assignments, overrides: as in `open_job`.

    Raises:
        ConfigError: the system is not configured.

    Example:
        >>> str(admin.open_stream("trips").stream)
        'local.trips'
    """
    config = load_without_job(file, assignments, overrides)
    stream = SystemStream.parse(full_name(name))
    try:
        system = open_system(config.system(stream.system))
    except ConfigError as error:
        if stream.system in config.system_names:
            raise
        raise ConfigError(
            f"{error}. If `{name}` is the name of a local stream, write `{DEFAULT_SYSTEM}.{name}`"
        ) from None
    return FoundStream(stream, system, ConfigSources(file, assignments, overrides))


logger = logging.getLogger(__name__)


@contextmanager
def audited_stream(
    streams: Sequence[FoundStream], action: str, changes: Mapping[str, str] | None = None
) -> Iterator[dict[str, str]]:
    """As `audited`, in the log of each job under `job.root` that uses one of the streams, or that cannot be read. If
    there is none, nothing is recorded. Yields further changes, which are written with the outcome.

    Raises:
        PenstockError: the jobs could not be found, or a record could not be written. The block has not begun.
    """
    if not streams:
        yield {}
        return
    uids = [_owner_uid(each) for each in streams]
    sources = streams[0].sources
    with open_all_jobs(sources.file, sources.assignments, overrides=sources.overrides) as jobs, ExitStack() as stack:
        under_way, more = [], dict[str, str]()
        for job in jobs:
            used = [str(found.stream) for found, uid in zip(streams, uids, strict=True) if _may_use(job, found, uid)]
            if used:
                entry = audited(job, action, {"stream": ", ".join(used), **(changes or {})})
                under_way.append(stack.enter_context(entry))
        yield more
        for change in under_way:
            change.changes |= more


def is_position(stream: SystemStream, record: CheckpointRecord) -> bool:
    """True if a checkpoint has a position in the stream."""
    return stream in record.streams or stream in record.section(STREAMS).streams


def is_side_input(stream: SystemStream, job: FoundJob) -> bool:
    """True if the last run filled a store from the stream."""
    return any(str(stream) in each.side_inputs for each in side_stores(job))


def _may_use(job: FoundJob, found: FoundStream, owner: str | None) -> bool:
    try:
        if owner is not None and known_uid(job.objects, job.paths) == owner:
            return True
        record = job.log.read("report").latest
        used = record is not None and (is_position(found.stream, record) or is_restored_from(found.stream, record))
        return used or is_side_input(found.stream, job)
    except (CorruptError, IncompatibleError):
        return True


def _owner_uid(found: FoundStream) -> str | None:
    with closing(found.system.admin()) as admin:
        try:
            owner = admin.owner(found.stream.stream)
        except NotFoundError:
            return None  # the change itself says so
    return None if owner is None else owner_uid(owner)


def changelogs_of(found: FoundJob, uid: str) -> tuple[str, ...]:
    """The streams that the job with this uid owns, in every system that records owners and can be reached."""
    questions, streams = Questions(within_s=None), list[str]()
    answers = {name: questions.put(name, partial(_owned, found, name, uid)) for name in found.config.system_names}
    questions.await_answers()
    for name, answer in answers.items():
        owned = answer_or_problem(answer)
        if isinstance(owned, PenstockError):
            logger.info("system %s was not searched for the job's changelog streams: %s", name, owned)
        else:
            streams += owned
    return tuple(streams)


def is_restored_from(stream: SystemStream, record: CheckpointRecord) -> bool:
    """True if a store's state at the checkpoint is in the stream."""
    streamed = (needed_markers(record, task, {}).get(CHANGELOG_STREAM, {}) for task in record.tasks)
    texts = (text for stores in streamed for own in stores.values() for text in own)
    return any(ChangelogStreamMarker.parse(text).ssp.system_stream == stream for text in texts)


def _owned(found: FoundJob, name: str, uid: str) -> list[str]:
    system = open_system(found.config.system(name))
    if not system.keeps_owners:
        return []
    with closing(system.admin()) as admin:
        owners = admin.owners()
    return [f"{name}.{stream}" for stream, owner in sorted(owners.items()) if is_owned_by(owner, found.paths.root, uid)]


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
