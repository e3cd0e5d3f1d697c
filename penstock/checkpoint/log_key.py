"""The key of one task's checkpoint in Samza's checkpoint topic (Samza's `KafkaCheckpointLogKey`)."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from penstock.errors import CorruptError

GROUP_BY_PARTITION = "org.apache.samza.container.grouper.stream.GroupByPartitionFactory"
"""How Samza calls the way Penstock gives partitions to tasks: partition i of every input to task i."""

_TYPES = {1: "checkpoint", 2: "checkpoint-v2"}
_VERSIONS = {name: version for version, name in _TYPES.items()}


@dataclass(frozen=True, slots=True)
class CheckpointLogKey:
    """Grouper, task and type. Samza compacts the topic by these bytes, so equal keys are equal bytes."""

    grouper: str
    task_name: str
    type: str

    @classmethod
    def of(cls, task: int, version: int) -> CheckpointLogKey:
        """The key of a task of Penstock for checkpoint version 1 or 2."""
        return cls(GROUP_BY_PARTITION, f"Partition {task}", _TYPES[version])

    @property
    def version(self) -> int | None:
        """The checkpoint's version; None for a type of a later Samza, whose messages are to be skipped."""
        return _VERSIONS.get(self.type)

    def encode(self) -> str:
        """The JSON Samza writes; the order of the fields is part of the key."""
        return orjson.dumps(
            {
                "systemstreampartition-grouper-factory": self.grouper,
                "taskName": self.task_name,
                "type": self.type,
            }
        ).decode()

    @classmethod
    def decode(cls, text: str | bytes) -> CheckpointLogKey:
        """Read a key; unknown fields are ignored, unknown types are kept. Raises CorruptError if this is no key."""
        try:
            document = orjson.loads(text)
            fields = (document["systemstreampartition-grouper-factory"], document["taskName"], document["type"])
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptError(f"not a key of a checkpoint topic: {error!r} in {text[:200]!r}") from error
        if not all(isinstance(field, str) and field for field in fields):
            raise CorruptError(f"a key of a checkpoint topic has an empty field: {text[:200]!r}")
        return cls(*fields)
