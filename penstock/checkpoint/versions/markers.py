"""The markers of a task in a checkpoint: in one of its versions, or in all. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from penstock.api.ssp import SystemStream
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.versions.changelog_marker import changelog_markers
from penstock.checkpoint.versions.table import FORMATS, format_of
from penstock.checkpoint.versions.value import Markers, StoresOfChangelogs, TaskCheckpoint

_NO_CHANGELOGS: StoresOfChangelogs = MappingProxyType({})


def read_task(record: CheckpointRecord, task: int, version: int, changelogs: StoresOfChangelogs) -> TaskCheckpoint:
    """A task's content in one version of a checkpoint; empty for a task that it does not have.

    `changelogs` maps each changelog partition of the task's stores to its store: a V1 value mixes their positions
    among the offsets of inputs, and has no other markers. It cannot say which stream they are of, if one was deleted
    and created again; the rest of the checkpoint says it.

    Raises:
        CorruptError: the value does not decode.
    """
    value = record.tasks.get(task, {}).get(str(version))
    if value is None:
        return TaskCheckpoint({}, {})
    form = format_of(version)
    read = form.read(value, changelogs)
    processed = {ssp: offset for ssp, offset in read.offsets.items() if offset is not None}
    markers = form.with_streams(read.markers, partial(_better_markers, record, task, version), record.identities)
    return TaskCheckpoint(processed, markers, read.id)


def _better_markers(record: CheckpointRecord, task: int, version: int) -> Markers:
    """A task's markers in a version that can say more than this one; empty if the record has none."""
    for better, form in FORMATS.items():
        if better == version:
            break
        if (value := record.tasks.get(task, {}).get(str(better))) is not None:
            return form.read(value, {}).markers
    return {}


def changelog_identities(markers: Mapping[Any, Markers]) -> dict[SystemStream, str]:
    """The identities of the streams of all tasks' markers. Records have them, because version 1 cannot."""
    found = (marker for own in markers.values() for marker in changelog_markers(own).values())
    return {marker.ssp.system_stream: marker.stream_identity for marker in found if marker.stream_identity}


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
