"""Systems of streams that a subject brings along, in place of those in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import RawRecord, System
from penstock.testing.simulation.faults import Trouble


class Feeder(Protocol):
    """Appends the records of the inputs, for somebody who is no part of the job."""

    def append(self, ssp: SystemStreamPartition, records: Iterable[RawRecord]) -> object:
        """Append records, or begin to do so."""
        ...

    def close(self) -> None:
        """Called once after the last record: from here on all of them can be read."""
        ...


class OutsideSystem(Protocol):
    """A system that outlives every process."""

    def options(self) -> Mapping[str, str]:
        """The configuration of a process, below `systems.<name>.`."""
        ...

    def calm(self) -> System:
        """The system for somebody whom no fault meets."""
        ...

    def feeder(self) -> Feeder:
        """A writer of the inputs."""
        ...

    def content(self) -> Mapping[str, Mapping[int, list[RawRecord]]]:
        """Stream → partition → all records that count, as an observer sees them in the end."""
        ...


def nothing_outside(_trouble: Trouble) -> Mapping[str, OutsideSystem]:
    return {}
