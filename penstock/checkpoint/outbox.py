"""What a commit has to publish: output that was processed, and that readers do not see yet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.api.ssp import SystemStreamPartition


@dataclass(frozen=True, slots=True)
class Part:
    """What an object has for one output partition."""

    chunks: int
    """How many there are, at least 1. Each is published in one atomic step."""
    messages: int


@dataclass(frozen=True, slots=True)
class OutboxObject:
    """The exactly-once output of one task in one commit, as an object of the job's store."""

    key: str
    task: int
    size_bytes: int
    sha256: str
    parts: Mapping[SystemStreamPartition, Part]


@dataclass(frozen=True, slots=True)
class Unpublished:
    """The objects of one record, all of which may still have to be published."""

    slot: int
    """The number of the record that named them first."""
    objects: tuple[OutboxObject, ...]
