"""Which versions of a task's checkpoint are written, which one a job reads, and what that one says (SEP-28).

Pure functions over the values of a checkpoint record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint import changelog_marker, v1, v2
from penstock.checkpoint.changelog_marker import ChangelogOffset, ChangelogStreamMarker
from penstock.checkpoint.id import CheckpointId
from penstock.checkpoint.record import CheckpointRecord, markers
from penstock.checkpoint.v1 import CheckpointV1
from penstock.checkpoint.v2 import CheckpointV2
from penstock.checkpoint.value import Checkpoint
from penstock.errors import ConfigError, IncompatibleError

KNOWN = (v2.VERSION, v1.VERSION)

_LISTED = 10
"""How many checkpoints an error names one by one."""

Markers = Mapping[str, Mapping[str, str]]
"""Backend -> store -> marker."""


@dataclass(frozen=True, slots=True)
class ChosenVersion:
    """The checkpoint a job starts from, and the version of it that all its tasks are read in."""

    record: CheckpointRecord
    version: int


@dataclass(frozen=True, slots=True)
class TaskCheckpoint:
    """What one task's checkpoint says, whatever its version: the last processed offsets of inputs, and markers."""

    offsets: Mapping[SystemStreamPartition, str]
    markers: Markers


def decode_checkpoint(version: int, text: str | bytes) -> Checkpoint:
    """One task's checkpoint of a version.

    Raises:
        CorruptError: the text is no checkpoint of that version.
        ConfigError: there is no such version.
    """
    if version == v1.VERSION:
        return CheckpointV1.decode(text)
    if version == v2.VERSION:
        return CheckpointV2.decode(text)
    raise ConfigError(f"there is no checkpoint version {version}; known: {', '.join(map(str, KNOWN))}")


def build_versions(
    checkpoint_id: CheckpointId,
    offsets: Mapping[SystemStreamPartition, str],
    task_markers: Markers,
    versions: Iterable[int],
) -> dict[str, str]:
    """One task's values by version, as a record holds them and in the order of `task.checkpoint.write.versions`.

    `offsets` are the last processed ones. Markers of the `changelog-stream` backend are written under Samza's name
    of it; in V1 they become positions among the offsets.

    Raises:
        ConfigError: V1 is all that is to be written, and a store would have no marker in it, which only
            `changelog-stream` can have there.
        CorruptError: a marker of `changelog-stream` is not one.
    """
    written = {version: _write(version, checkpoint_id, offsets, task_markers) for version in versions}
    if v2.VERSION not in written:
        _refuse_loss(checkpoint_id, task_markers)
    return {str(version): value for version, value in written.items()}


def versions_of(record: CheckpointRecord) -> frozenset[int]:
    """The known versions that every task of the checkpoint has; those of a later Penstock do not count."""
    return frozenset(
        version
        for version in KNOWN
        if all(str(version) in record.tasks.get(task, {}) for task in range(record.task_count))
    )


def choose_version(
    checkpoints: Sequence[CheckpointRecord], read_versions: Sequence[int], max_age_ms: int
) -> ChosenVersion | None:
    """Which checkpoint to start from and in which version, once for the whole job; None if there is no checkpoint.

    Args:
        checkpoints: those that may be restored, oldest first.
        read_versions: `task.checkpoint.read.versions`, the preferred one first.
        max_age_ms: `task.live.checkpoint.max.age`. As in Samza, a newer checkpoint that has only a less preferred
            version takes the place of an older one only if it is more than this much newer; with 0 the latest wins.
            A start refuses to go back like that (`choose_newest`).

    Raises:
        IncompatibleError: there are checkpoints, but none has a version that may be read.
    """
    held: ChosenVersion | None = None
    for record in checkpoints:
        there = versions_of(record)
        version = next((each for each in read_versions if each in there), None)
        if version is None:
            continue
        if held is None or _overrides(ChosenVersion(record, version), held, read_versions, max_age_ms):
            held = ChosenVersion(record, version)
    if held is None and checkpoints:
        last = checkpoints[-1]
        found = _numbers(versions_of(last))
        raise IncompatibleError(
            f"no checkpoint has a version that task.checkpoint.read.versions allows ("
            f"{','.join(map(str, read_versions))}); the last one, {last.id}, has: {found}. Add one of these to the key"
        )
    return held


def choose_newest(
    checkpoints: Sequence[CheckpointRecord], read_versions: Sequence[int], max_age_ms: int
) -> ChosenVersion | None:
    """What a start without `--from` begins with: `choose_version`, if that is the newest checkpoint.

    Args:
        checkpoints: those that may be restored, oldest first.
        read_versions: `task.checkpoint.read.versions`, the preferred one first.
        max_age_ms: `task.live.checkpoint.max.age`, in milliseconds.

    Raises:
        IncompatibleError: newer checkpoints would be passed over, so that messages would be processed and sent again;
            names them. Or none has a version that may be read.
    """
    chosen = choose_version(checkpoints, read_versions, max_age_ms)
    if chosen is None or chosen.record == checkpoints[-1]:
        return chosen
    passed_over = checkpoints[checkpoints.index(chosen.record) + 1 :]
    newest = passed_over[-1]
    listed = ", ".join(f"{each.id} (version {_numbers(versions_of(each))})" for each in passed_over[-_LISTED:])
    more = f"{len(passed_over) - _LISTED} more, and " if len(passed_over) > _LISTED else ""
    continued = (
        f"give `--from {newest.id}`"
        if versions_of(newest) & set(read_versions)
        else f"add {_numbers(versions_of(newest))} to task.checkpoint.read.versions"
    )
    raise IncompatibleError(
        f"a start would go back to checkpoint {chosen.record.id}, because task.checkpoint.read.versions is "
        f"{','.join(map(str, read_versions))} and task.live.checkpoint.max.age is {max_age_ms} ms, and pass over the "
        f"newer checkpoints {more}{listed}. Everything processed since would be processed and sent again. To continue "
        f"from the newest one, {continued}; to go back on purpose, give `--from {chosen.record.id}`"
    )


def read_task(
    record: CheckpointRecord, task: int, version: int, changelogs: Mapping[SystemStreamPartition, str]
) -> TaskCheckpoint:
    """What a checkpoint says of a task in one of its versions; nothing for a task it does not have.

    `changelogs` maps each changelog partition of the task's stores to its store: a V1 value mixes their positions
    among the offsets of inputs, and has no other markers.

    Raises:
        CorruptError: the value does not decode.
    """
    value = record.tasks.get(task, {}).get(str(version))
    if value is None:
        return TaskCheckpoint({}, {})
    checkpoint = decode_checkpoint(version, value)
    offsets, found = {}, {}
    for ssp, offset in checkpoint.offsets.items():
        if offset is None:
            continue
        if checkpoint.version == v1.VERSION and ssp in changelogs:
            position = ChangelogOffset.parse(offset)
            found[changelogs[ssp]] = ChangelogStreamMarker(ssp, position.offset).serialize()
        else:
            offsets[ssp] = offset
    if checkpoint.version == v2.VERSION:
        return TaskCheckpoint(offsets, markers(record, task))
    return TaskCheckpoint(offsets, {changelog_marker.BACKEND: found} if found else {})


def needed_markers(
    record: CheckpointRecord, task: int, changelogs: Mapping[SystemStreamPartition, str]
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Backend -> store -> every marker of one task that any version of the checkpoint holds: what must stay for it.

    A changelog's position in V1 is told by its form, so one in a stream that the configuration does not name any more
    counts too; its store is then called by the stream's name.

    Raises:
        CorruptError: a value does not decode.
    """
    found: dict[str, dict[str, tuple[str, ...]]] = {
        backend: {store: (marker,) for store, marker in stores.items()}
        for backend, stores in markers(record, task).items()
    }
    first = record.tasks.get(task, {}).get(str(v1.VERSION))
    if first is None:
        return found
    streamed = found.setdefault(changelog_marker.BACKEND, {})
    for ssp, offset in CheckpointV1.decode(first).offsets.items():
        if offset is None or not (ssp in changelogs or ChangelogOffset.is_one(offset)):
            continue
        store = changelogs.get(ssp, ssp.stream)
        marker = ChangelogStreamMarker(ssp, ChangelogOffset.parse(offset).offset).serialize()
        streamed[store] = (*streamed.get(store, ()), marker)
    return found


def samza_value(record: CheckpointRecord, task: int, version: int) -> str | None:
    """One task's value as Samza writes it: the one in the record, or a V1 made of its V2; None if neither is there.

    Raises:
        CorruptError: the V2 value does not decode.
    """
    own = record.tasks.get(task, {})
    if str(version) in own or version != v1.VERSION or str(v2.VERSION) not in own:
        return own.get(str(version))
    return _v1(record.id, CheckpointV2.decode(own[str(v2.VERSION)]).input_offsets, markers(record, task)).encode()


def _numbers(versions: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(versions))) or "none"


def _overrides(newer: ChosenVersion, held: ChosenVersion, order: Sequence[int], max_age_ms: int) -> bool:
    if order.index(newer.version) <= order.index(held.version):
        return True
    return newer.record.id.millis - held.record.id.millis > max_age_ms


def _write(
    version: int, checkpoint_id: CheckpointId, offsets: Mapping[SystemStreamPartition, str], task_markers: Markers
) -> str:
    if version == v2.VERSION:
        named = {
            changelog_marker.SAMZA_BACKEND if backend == changelog_marker.BACKEND else backend: stores
            for backend, stores in task_markers.items()
        }
        return CheckpointV2(checkpoint_id, offsets, named).encode()
    if version == v1.VERSION:
        return _v1(checkpoint_id, offsets, task_markers).encode()
    raise ConfigError(f"there is no checkpoint version {version}; known: {', '.join(map(str, KNOWN))}")


def _v1(
    checkpoint_id: CheckpointId, offsets: Mapping[SystemStreamPartition, str], task_markers: Markers
) -> CheckpointV1:
    positions = {m.ssp: str(ChangelogOffset(checkpoint_id, m.offset)) for m in _in_v1(task_markers).values()}
    return CheckpointV1({**offsets, **positions})


def _in_v1(task_markers: Markers) -> dict[str, ChangelogStreamMarker]:
    """Store -> marker that version 1 can say. It has no generation: read back, one that does not begin with the
    stream would take in what came before it."""
    found = {
        store: ChangelogStreamMarker.deserialize(text)
        for store, text in task_markers.get(changelog_marker.BACKEND, {}).items()
    }
    return {store: marker for store, marker in found.items() if marker.generation_offset in {None, "0"}}


def _refuse_loss(checkpoint_id: CheckpointId, task_markers: Markers) -> None:
    kept = _in_v1(task_markers).keys()
    lost = sorted({store for stores in task_markers.values() for store in stores} - kept)
    if lost:
        raise ConfigError(
            f"checkpoint {checkpoint_id} could not restore the stores {', '.join(f'`{store}`' for store in lost)}: "
            f"version 1 holds markers of `{changelog_marker.BACKEND}` only, and only where a store's history begins "
            "with its stream. Add 2 to task.checkpoint.write.versions"
        )
