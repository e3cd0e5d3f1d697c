"""A checkpoint in the form of Samza's checkpoint topic."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from penstock.admin.checkpoint.facts import find_checkpoint
from penstock.admin.jobs import FoundJob
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.samza.log_key import CheckpointLogKey
from penstock.checkpoint.versions.changelog_marker import BACKEND
from penstock.checkpoint.versions.markers import markers_of
from penstock.checkpoint.versions.table import format_of, samza_value
from penstock.checkpoint.versions.v1 import VERSION as V1
from penstock.errors import NotFoundError
from penstock.wording import listed


def export_checkpoint(job: FoundJob, checkpoint_id: str | None = None, version: int = 2) -> list[str]:
    """A checkpoint in the form of Samza's checkpoint topic: one JSON text with `key` and `value` for each task.

    Args:
        job: the job.
        checkpoint_id: the checkpoint, retained or not; the last one, if None.
        version: the version of Samza's checkpoint values, 1 or 2. Version 1 has markers of `changelog-stream` alone.

    Raises:
        NotFoundError: there is no such checkpoint, or a task has no value of that version.
        CorruptError: a value does not decode.

    Example:
        >>> import json
        >>> with admin.open_job("flights") as job:
        ...     for line in admin.export_checkpoint(job):
        ...         print(json.loads(json.loads(line)["value"])["input-offsets"])
        {'local.trips.0': '2'}
        {'local.trips.1': '0'}
    """
    return list(_exported_lines(_found(job, checkpoint_id), version))


def left_out(job: FoundJob, checkpoint_id: str | None = None, version: int = 2) -> tuple[str, ...]:
    """What an export in this version cannot say of the checkpoint, for people: the markers that only version 2 has.

    Args:
        job: the job.
        checkpoint_id: the checkpoint; the last one, if None.
        version: the version of Samza's checkpoint values, 1 or 2.

    Raises:
        NotFoundError: there is no such checkpoint.
        CorruptError: a value does not decode.
    """
    record, form = _found(job, checkpoint_id), format_of(version)
    stores: dict[str, set[str]] = {}
    for task in range(record.task_count):
        markers = markers_of(record, task)
        kept = form.restorable(markers)
        for backend, own in markers.items():
            if lost := own.keys() - (kept if version != V1 or backend == BACKEND else frozenset()):
                stores.setdefault(backend, set()).update(lost)
    return tuple(
        f"version {version} has no place for the markers of `{backend}`"
        + (" in which a store's history does not begin with its stream" if backend == BACKEND else "")
        + f". It leaves out those of {listed([f'`{store}`' for store in sorted(own)])}"
        for backend, own in sorted(stores.items())
    )


def _found(job: FoundJob, checkpoint_id: str | None) -> CheckpointRecord:
    view = CheckpointLog(job.objects, job.paths).read("report")
    return find_checkpoint(view, checkpoint_id, job.paths.root)


def _exported_lines(record: CheckpointRecord, version: int) -> Iterator[str]:
    """For each task an object `key`, `value`: two texts with the bytes of Samza's message.

    A version 1 that was not written is made from version 2, without the markers that only version 2 can hold.

    Raises:
        NotFoundError: a task has no value of that version.
        CorruptError: a value does not decode.
    """
    for task in range(record.task_count):
        value = samza_value(record, task, version)
        if value is None:
            raise NotFoundError(
                f"checkpoint {record.id} has no version {version} of task {task}: it was not among "
                "task.checkpoint.write.versions when it was made"
            )
        yield orjson.dumps({"key": CheckpointLogKey.of(task, version).encode(), "value": value}).decode()
