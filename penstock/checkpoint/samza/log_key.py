"""The key of one task's checkpoint in Samza's checkpoint topic (Samza's `KafkaCheckpointLogKey`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import orjson
from msgspec import Meta, Struct, field

from penstock.base.documents import decode

GROUP_BY_PARTITION = "org.apache.samza.container.grouper.stream.GroupByPartitionFactory"
"""Samza's name for Penstock's assignment: partition i of every input to task i."""

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
        own = decode(_Fields, text, f"not a key of a checkpoint topic, {text[:200]!r}")
        return cls(own.grouper, own.task_name, own.type)


_Filled: TypeAlias = Annotated[str, Meta(min_length=1)]


class _Fields(Struct):
    """The fields of a key."""

    grouper: _Filled = field(name="systemstreampartition-grouper-factory")
    task_name: _Filled = field(name="taskName")
    type: _Filled
