"""The versions of a task's checkpoint (SEP-28). Pure.

Their table writes and reads a task's values. A task's markers are read from one of the versions, or from all. A
start chooses the checkpoint that it begins from, and the version to read it in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.wording import argument, listed
from penstock.checkpoint import task_values
from penstock.checkpoint.record import CheckpointId, CheckpointRecord
from penstock.checkpoint.streams import CHANGELOG_STREAM, changelog_markers
from penstock.errors import ConfigError, CorruptError, IncompatibleError

FORMATS: Mapping[int, task_values.CheckpointFormat] = {
    each.version: each for each in (task_values.FormatV2(), task_values.FormatV1())
}
"""All versions; one that can hold more comes first."""


def format_of(version: int) -> task_values.CheckpointFormat:
    """The format of a version. Raises ConfigError if there is none."""
    if version not in FORMATS:
        raise ConfigError(f"there is no checkpoint version {version}; known: {', '.join(map(str, FORMATS))}")
    return FORMATS[version]


def last_processed(next_offsets: Mapping[SystemStreamPartition, int]) -> dict[SystemStreamPartition, str]:
    """As Samza's checkpoints have it; where nothing was processed they have nothing."""
    return {ssp: str(offset - 1) for ssp, offset in next_offsets.items() if offset > 0}


def build_versions(
    checkpoint_id: CheckpointId,
    offsets: Mapping[SystemStreamPartition, str],
    markers: task_values.Markers,
    versions: Iterable[int],
) -> dict[str, str]:
    """One task's values by version, as a record holds them and in the order of `task.checkpoint.write.versions`.

    `offsets` are the last processed ones. Markers of the `changelog-stream` backend are written under Samza's name
    of it; in V1 they become positions among the offsets.

    Raises:
        ConfigError: a store would have no marker in any of these versions: V1 has those of `changelog-stream` only.
        CorruptError: a marker of `changelog-stream` is not one.
    """
    formats = [format_of(version) for version in versions]
    written = {str(each.version): each.write(checkpoint_id, offsets, markers) for each in formats}
    stores = {store for own in markers.values() for store in own}
    lost = sorted(stores.difference(*(each.restorable(markers) for each in formats)))
    if lost:
        raise ConfigError(
            f"checkpoint {checkpoint_id} could not restore the stores {', '.join(f'`{store}`' for store in lost)}: "
            f"version 1 holds markers of `{CHANGELOG_STREAM}` only, and only where a store's history begins "
            "with its stream. Add 2 to task.checkpoint.write.versions"
        )
    return written


def versions_of(record: CheckpointRecord) -> frozenset[int]:
    """The known versions that every task of the checkpoint has; those of a later Penstock do not count."""
    return frozenset(
        version
        for version in FORMATS
        if all(str(version) in record.tasks.get(task, {}) for task in range(record.task_count))
    )


def samza_value(record: CheckpointRecord, task: int, version: int) -> str | None:
    """One task's value as Samza writes it: the one in the record, or one made of a better version; None if neither is
    there. What only the better version can say is then left out.

    Raises:
        CorruptError: the value of the better version does not decode.
    """
    own = record.tasks.get(task, {})
    if str(version) in own:
        return own[str(version)]
    for better in FORMATS.values():
        if better.version == version:
            return None
        if str(better.version) in own:
            read = better.read(own[str(better.version)], {})
            processed = {ssp: offset for ssp, offset in read.offsets.items() if offset is not None}
            return format_of(version).write(record.id, processed, read.markers)
    return None


_NO_CHANGELOGS: task_values.StoresOfChangelogs = MappingProxyType({})


def read_task(
    record: CheckpointRecord, task: int, version: int, changelogs: task_values.StoresOfChangelogs
) -> task_values.TaskCheckpoint:
    """A task's content in one version of a checkpoint; empty for a task that it does not have.

    `changelogs` maps each changelog partition of the task's stores to its store: a V1 value mixes their positions
    among the offsets of inputs, and has no other markers. It cannot say which stream they are of, if one was deleted
    and created again; the rest of the checkpoint says it.

    Raises:
        CorruptError: the value does not decode.
    """
    value = record.tasks.get(task, {}).get(str(version))
    if value is None:
        return task_values.TaskCheckpoint({}, {})
    form = format_of(version)
    read = form.read(value, changelogs)
    processed = {ssp: offset for ssp, offset in read.offsets.items() if offset is not None}
    markers = form.with_streams(read.markers, partial(_better_markers, record, task, version), record.identities)
    return task_values.TaskCheckpoint(processed, markers, read.id)


def _better_markers(record: CheckpointRecord, task: int, version: int) -> task_values.Markers:
    """A task's markers in a version that can say more than this one; empty if the record has none."""
    for better, form in FORMATS.items():
        if better == version:
            break
        if (value := record.tasks.get(task, {}).get(str(better))) is not None:
            return form.read(value, {}).markers
    return {}


def changelog_identities(markers: Mapping[Any, task_values.Markers]) -> dict[SystemStream, str]:
    """The identities of the streams of all tasks' markers. Records have them, because version 1 cannot."""
    found = (marker for own in markers.values() for marker in changelog_markers(own).values())
    return {marker.ssp.system_stream: marker.stream_identity for marker in found if marker.stream_identity}


def markers_of(
    record: CheckpointRecord, task: int, changelogs: task_values.StoresOfChangelogs = _NO_CHANGELOGS
) -> task_values.Markers:
    """The markers of one task, in the best version that is there; none for a task that is not.

    Args:
        record: the checkpoint.
        task: the task's number.
        changelogs: as for `read_task`. Without them there are no markers in version 1.

    Raises:
        CorruptError: the value does not decode.
    """
    version = next((each for each in FORMATS if str(each) in record.tasks.get(task, {})), next(iter(FORMATS)))
    return read_task(record, task, version, changelogs).markers


def only_in_changelogs(
    record: CheckpointRecord, partitions: Callable[[int], Mapping[SystemStreamPartition, str]]
) -> dict[str, frozenset[SystemStream]]:
    """The stores that no backend but `changelog-stream` has, with their changelogs.

    Args:
        record: the checkpoint.
        partitions: from a task to its changelog partitions, as for `markers_of`.
    """
    found: dict[str, set[SystemStream]] = {}
    elsewhere = set[str]()
    for task in record.tasks:
        own = markers_of(record, task, partitions(task))
        for store, marker in changelog_markers(own).items():
            found.setdefault(store, set()).add(marker.ssp.system_stream)
        elsewhere.update(store for backend, stores in own.items() if backend != CHANGELOG_STREAM for store in stores)
    return {store: frozenset(streams) for store, streams in sorted(found.items()) if store not in elsewhere}


def needed_markers(
    record: CheckpointRecord, task: int, changelogs: task_values.StoresOfChangelogs
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Backend -> store -> every marker of one task that any version of the checkpoint holds: what must stay for it.

    Raises:
        CorruptError: a value does not decode.
    """
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for version, form in FORMATS.items():
        value = record.tasks.get(task, {}).get(str(version))
        for backend, store, marker in () if value is None else form.needed(value, changelogs):
            stores = found.setdefault(backend, {})
            stores[store] = (*stores.get(store, ()), marker)
    return found


_LISTED = 10
"""The most checkpoints that an error names one by one."""


def choose_version(record: CheckpointRecord, read_versions: Sequence[int]) -> int:
    """The version that all tasks of a checkpoint are read in.

    Args:
        record: the checkpoint.
        read_versions: `task.checkpoint.read.versions`, the preferred one first.

    Raises:
        IncompatibleError: it has no version that may be read.
    """
    there = versions_of(record)
    for version in read_versions:
        if version in there:
            return version
    raise IncompatibleError(
        f"checkpoint {record.id} has no version that task.checkpoint.read.versions allows ("
        f"{_listed(read_versions)}); it has: {_numbers(there)}. Add one of these to the key"
    )


def markers_elsewhere(record: CheckpointRecord, read_versions: Sequence[int]) -> str:
    """A hint if another version of a checkpoint has markers of backends that the version in which it is read cannot
    keep; else an empty text. A damaged version gives no hint, and hides no error.

    Args:
        record: a checkpoint that could not be restored.
        read_versions: `task.checkpoint.read.versions`.
    """
    chosen = format_of(choose_version(record, read_versions))
    for other in sorted(versions_of(record) - {chosen.version}):
        try:
            names = {name for task in record.tasks for name in read_task(record, task, other, {}).markers}
        except CorruptError:
            continue
        if found := sorted(f"`{name}`" for name in names if not chosen.holds(name)):
            return (
                f". Version {other} of the checkpoint has markers of {listed(found)}: to restore from them, set "
                f"task.checkpoint.read.versions to {other},{chosen.version}; it is {_listed(read_versions)} now"
            )
    return ""


def refuse_unknown(record: CheckpointRecord, known: Collection[str]) -> None:
    """Refuse to restore a checkpoint without a wing that it needs.

    Args:
        record: the checkpoint.
        known: the names of the sections that can be restored here.

    Raises:
        IncompatibleError: another section is needed.
    """
    if missing := record.sections.missing(known):
        named = listed([f"`{name}`" for name in missing])
        raise IncompatibleError(
            f"checkpoint {record.id} cannot be restored here: it needs {named}, which wrote a section of it, and this "
            "installation of Penstock has nothing of that name. Install the distribution that brings it, or start from "
            f"an older checkpoint ({argument('from_checkpoint')})"
        )


def choose_newest(checkpoints: Sequence[CheckpointRecord], read_versions: Sequence[int]) -> CheckpointRecord | None:
    """The checkpoint that a start without `from_checkpoint` begins with: the newest one; None if there is none.

    Args:
        checkpoints: those that may be restored, oldest first.
        read_versions: `task.checkpoint.read.versions`.

    Raises:
        IncompatibleError: it has no version that may be read. If an older one has, a start with that would process and
            send messages again; the error names the newer ones.
    """
    if not checkpoints:
        return None
    newest, allowed = checkpoints[-1], set(read_versions)
    readable = [number for number, each in enumerate(checkpoints) if versions_of(each) & allowed]
    if not readable or checkpoints[readable[-1]] == newest:
        choose_version(newest, read_versions)
        return newest
    older, passed_over = checkpoints[readable[-1]], checkpoints[readable[-1] + 1 :]
    named = ", ".join(f"{each.id} (version {_numbers(versions_of(each))})" for each in passed_over[-_LISTED:])
    more = f"{len(passed_over) - _LISTED} more, and " if len(passed_over) > _LISTED else ""
    raise IncompatibleError(
        f"a start would go back to checkpoint {older.id}, because task.checkpoint.read.versions is "
        f"{_listed(read_versions)}, and pass over the newer checkpoints {more}{named}. Everything processed since "
        "would be processed and sent again. To continue from the newest one, add "
        f"{_numbers(versions_of(newest))} to task.checkpoint.read.versions; to go back on purpose, give "
        f"{argument('from_checkpoint', str(older.id))}"
    )


def _numbers(versions: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(versions))) or "none"


def _listed(read_versions: Sequence[int]) -> str:
    return ",".join(map(str, read_versions))
