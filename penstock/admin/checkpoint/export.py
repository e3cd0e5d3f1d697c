"""A checkpoint in the form of Samza's checkpoint topic."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from penstock.checkpoint.log_key import CheckpointLogKey
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.versions import samza_value
from penstock.errors import NotFoundError


def exported_lines(record: CheckpointRecord, version: int) -> Iterator[str]:
    """For each task an object `key`, `value`: two texts, the very bytes of Samza's message.

    Version 1 is made of version 2 where it was not written; markers that only version 2 can hold are then left out.

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
