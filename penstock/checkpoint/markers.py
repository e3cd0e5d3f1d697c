"""The markers of a task: which a checkpoint has, in one of its versions or in all of them. Pure."""

from __future__ import annotations

from types import MappingProxyType

from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.value import Markers, StoresOfChangelogs, TaskCheckpoint
from penstock.checkpoint.versions import FORMATS, format_of

_NO_CHANGELOGS: StoresOfChangelogs = MappingProxyType({})


def read_task(record: CheckpointRecord, task: int, version: int, changelogs: StoresOfChangelogs) -> TaskCheckpoint:
    """What a checkpoint says of a task in one of its versions; nothing for a task it does not have.

    `changelogs` maps each changelog partition of the task's stores to its store: a V1 value mixes their positions
    among the offsets of inputs, and has no other markers.

    Raises:
        CorruptError: the value does not decode.
    """
    value = record.tasks.get(task, {}).get(str(version))
    if value is None:
        return TaskCheckpoint({}, {})
    read = format_of(version).read(value, changelogs)
    processed = {ssp: offset for ssp, offset in read.offsets.items() if offset is not None}
    return TaskCheckpoint(processed, read.markers, read.id)


def markers_of(record: CheckpointRecord, task: int, changelogs: StoresOfChangelogs = _NO_CHANGELOGS) -> Markers:
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


def needed_markers(
    record: CheckpointRecord, task: int, changelogs: StoresOfChangelogs
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
