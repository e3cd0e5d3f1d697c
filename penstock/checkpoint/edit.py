"""Checkpoints made from other ones by hand. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, field, replace

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint import task_versions
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord, Claim
from penstock.checkpoint.sections import Sections
from penstock.checkpoint.task_values import Markers
from penstock.config.settings import TaskSettings
from penstock.errors import ConfigError, IncompatibleError
from penstock.system.base import PartitionOffsets

MAX_OFFSET = 2**63 - 1
"""The largest offset a record can hold."""

NextOffsets = Mapping[int, Mapping[SystemStreamPartition, int]]
"""Task -> input partition -> the next offset to read."""
Changelogs = Callable[[int], Mapping[SystemStreamPartition, str]]
"""Changelog partition → store, for one task."""


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """The part of a checkpoint that a run takes: by task, where it reads on and what it restores its stores from."""

    next_offsets: NextOffsets
    markers: Mapping[int, Markers]
    identities: Mapping[SystemStream, str] = field(default_factory=dict)
    """`SystemAdmin.stream_identity` of the input streams that the offsets belong to."""
    moved: frozenset[SystemStreamPartition] = frozenset()
    """`CheckpointRecord.moved`."""


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """A partition in every task that reads it, or (`task`) in one."""

    ssp: SystemStreamPartition
    task: int | None = None

    def __str__(self) -> str:
        return f"`{self.ssp}`" if self.task is None else f"`{self.ssp}` of task {self.task}"


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The next offset of one input partition, before and after; `old` is None if the job has none yet."""

    task: int
    ssp: SystemStreamPartition
    old: int | None
    new: int


def choose_origin(view: LogView, wanted: str | None, settings: TaskSettings) -> CheckpointRecord | None:
    """The checkpoint that a start begins with and an edit changes: the retained one of that id, or the newest; None if
    there is none yet.

    Raises:
        NotFoundError: none that is retained has the id.
        IncompatibleError: it has no version that may be read.
    """
    if wanted is None:
        return task_versions.choose_newest(view.restorable, settings.checkpoint_read_versions)
    record = view.find(wanted)
    task_versions.choose_version(record, settings.checkpoint_read_versions)
    return record


def content_of(record: CheckpointRecord, changelogs: Changelogs) -> CheckpointContent:
    """The record's content; markers of version 2 if it has that, because version 1 cannot hold all of them.

    Raises:
        CorruptError: a value does not decode.
    """
    tasks = range(record.task_count)
    markers = {task: task_versions.markers_of(record, task, changelogs(task)) for task in tasks}
    return CheckpointContent(record.next_offsets, markers, record.identities, frozenset(record.moved))


def with_store(before: Markers, store: str, own: Mapping[str, str]) -> Markers:
    """The markers of a task, with `own` (backend → marker) as the only ones of the store."""
    kept = {
        backend: {name: marker for name, marker in stores.items() if name != store}
        for backend, stores in before.items()
    }
    for backend, marker in own.items():
        kept.setdefault(backend, {})[store] = marker
    return {backend: stores for backend, stores in kept.items() if stores}


def with_offsets(record: CheckpointRecord, wanted: Mapping[OffsetKey, int]) -> NextOffsets:
    """The record's next offsets with the wanted ones in the place of its own: of every task that reads the partition,
    if none is named.

    Raises:
        ConfigError: one is of a partition that the record does not have, or is no offset.
    """
    merged = {task: dict(own) for task, own in record.next_offsets.items()}
    for key, offset in wanted.items():
        asked = {task: own for task, own in merged.items() if key.task in {None, task}}
        readers = [own for own in asked.values() if key.ssp in own]
        if not readers:
            known = dict.fromkeys(ssp for own in asked.values() for ssp in own)
            raise ConfigError(f"checkpoint {record.id} has no input {key}; it has {inputs_text(known)}")
        if not 0 <= offset <= MAX_OFFSET:
            raise ConfigError(f"`{key.ssp}`: {offset} is not an offset: offsets are from 0 to 2^63 - 1")
        for own in readers:
            own[key.ssp] = offset
    return merged


def with_identities(
    record: CheckpointRecord, wanted: Collection[OffsetKey], now: Mapping[SystemStream, str]
) -> Mapping[SystemStream, str]:
    """The record's identities, with the present ones of streams that were created again since, if the wanted offsets
    are of all their positions.

    Raises:
        IncompatibleError: a position in such a stream is not among the wanted ones.
    """
    found = dict(record.identities)
    for stream, identity in now.items():
        if found.get(stream, identity) == identity:
            continue
        given = {(key.ssp, key.task) for key in wanted}
        own = [(ssp, task) for task, ssps in record.next_offsets.items() for ssp in ssps if ssp.system_stream == stream]
        left = dict.fromkeys(ssp for ssp, task in own if given.isdisjoint({(ssp, task), (ssp, None)}))
        if left:
            raise IncompatibleError(
                f"the input `{stream}` was deleted and created again after checkpoint {record.id}, so all positions in "
                f"it belong to the earlier stream. Give an offset for each of its partitions; missing: "
                f"{inputs_text(left)}. Nothing was changed"
            )
        found[stream] = identity
    return found


def offset_changes(old: NextOffsets, new: NextOffsets) -> tuple[OffsetChange, ...]:
    return tuple(
        OffsetChange(task, ssp, before, offset)
        for task, own in sorted(new.items())
        for ssp, offset in sorted(own.items())
        if (before := old.get(task, {}).get(ssp)) != offset
    )


def refuse_outside(
    changes: tuple[OffsetChange, ...],
    ends: Mapping[SystemStreamPartition, PartitionOffsets],
    unknown: Container[SystemStream],
) -> None:
    """Raise IncompatibleError, naming all of them, if partitions cannot be read from their new offsets.

    `ends` are those the systems reported; streams in `unknown` could not be asked and are not judged.
    """
    judged = [change for change in changes if change.ssp.system_stream not in unknown]
    problems = [text for change in judged if (text := _misfit(change, ends.get(change.ssp))) is not None]
    if problems:
        raise IncompatibleError("; ".join(problems) + ". Nothing was changed")


def successor(
    base: CheckpointRecord,
    content: CheckpointContent,
    view: LogView,
    claim: Claim,
    settings: TaskSettings,
    now_ms: int,
    nanos: int,
    sections: Sections,
) -> CheckpointRecord:
    """The record to append for the claim: `content` and `sections`, and for the rest what `base` says.

    Its parent is `base`, if that is in the log. It is written in every version that `base` has and in those of
    `task.checkpoint.write.versions`, and retains what a commit would. It ends the run that was the last one only if
    that had ended already: a run that broke off goes on under its id.

    Args:
        view: the log after the claim.
        now_ms: the wall clock in epoch milliseconds; `nanos` is any counter of nanoseconds.

    Raises:
        ConfigError: a store would have no marker in the only version that is written.
        IncompatibleError: no start with these settings would begin with it.
    """
    checkpoint_id = view.next_id(now_ms, nanos)
    parent = base.id if base in view.checkpoints else None
    versions = sorted({*settings.checkpoint_write_versions, *task_versions.versions_of(base)}, reverse=True)
    goes_on = view.latest is not None and view.latest.ended is None
    record = replace(
        base,
        id=checkpoint_id,
        parent=parent,
        epoch=claim.epoch,
        run_id=claim.run_id,
        writer=claim.writer,
        next_offsets=content.next_offsets,
        identities={**content.identities, **task_versions.changelog_identities(content.markers)},
        tasks={
            task: task_versions.build_versions(
                checkpoint_id,
                task_versions.last_processed(content.next_offsets[task]),
                content.markers.get(task, {}),
                versions,
            )
            for task in range(base.task_count)
        },
        kind_detail="commit",
        ended=None if goes_on else base.ended or "stopped",
        reset_operators=(),
        moved=tuple(sorted(content.moved)),
        quiet_until=base.quiet_until if content.next_offsets == base.next_offsets else {},
        sections=sections,
    )
    return replace(record, retained=view.retained_beside(record, settings.checkpoint_retained))


def inputs_text(ssps: Mapping[SystemStreamPartition, object]) -> str:
    """Streams and their partitions, for a message."""
    streams: dict[str, list[int]] = {}
    for ssp in sorted(ssps):
        streams.setdefault(str(ssp.system_stream), []).append(ssp.partition)
    named = (f"`{stream}` with the partitions {_numbers(found)}" for stream, found in streams.items())
    return ", ".join(named) or "no inputs"


def _misfit(change: OffsetChange, end: PartitionOffsets | None) -> str | None:
    if end is None:
        return f"`{change.ssp}` does not exist any more"
    if end.oldest <= change.new <= end.upcoming:
        return None
    holds = "no messages" if end.newest is None else f"messages from {end.oldest} to {end.newest}"
    return f"`{change.ssp}` cannot be read from {change.new}: it holds {holds}, upcoming is {end.upcoming}"


def _numbers(ascending: list[int]) -> str:
    first, last = ascending[0], ascending[-1]
    if len(ascending) > 2 and last - first == len(ascending) - 1:
        return f"{first} to {last}"
    return ", ".join(map(str, ascending))
