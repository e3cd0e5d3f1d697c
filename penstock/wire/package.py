"""The parts of a job that other processes get: containers, and those that read and write its streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.api.ssp import SystemStreamPartition
from penstock.base.application_code import read_shipped
from penstock.config.model import JobConfig
from penstock.graph.topology import Topology
from penstock.runtime.settings import RuntimeSettings
from penstock.system.base import System
from penstock.wing import wings


@dataclass(frozen=True, slots=True)
class JobPackage:
    """A job as the driver pickles it for its containers."""

    topology: Topology
    settings: RuntimeSettings
    config: JobConfig
    job_uid: str
    probe: str
    """Key of an object that the driver has just put under job.root: a container that cannot read it sees another root.
    """
    systems: Mapping[str, System]
    of_start: Mapping[str, Any] = field(default_factory=dict)
    """By wing, what its part of the start gives to its part in containers (`StartPart.for_containers`)."""
    partitions: Mapping[int, tuple[SystemStreamPartition, ...]] = field(default_factory=dict)
    writer: str = ""
    """The name under which the job writes its outputs (`WriterIdentity.name`)."""
    wings: tuple[str, ...] = field(default_factory=lambda: tuple(wing.name for wing in wings()))
    """The names of the driver's wings: each container needs the same ones."""


@dataclass(frozen=True, slots=True)
class WorkerPackage:
    """The part of a job that a process needs to read its inputs and to write its outputs."""

    topology: Topology
    settings: RuntimeSettings
    systems: Mapping[str, System]
    pages: str = ""
    """The folder on each host for the pages of its workers (`penstock.host.position_page`); empty: none are kept."""


@dataclass(frozen=True, slots=True)
class PackedPackage:
    """A pickled WorkerPackage. Unpickled once per process, however many batches it serves."""

    digest: str
    data: bytes = field(repr=False)

    def load(self) -> WorkerPackage:
        """Raises ConfigError if the application's code is not on this host."""
        if self.digest not in _packages:
            _packages.clear()
            _packages[self.digest] = read_shipped(self.data)
        return _packages[self.digest]


_packages: dict[str, WorkerPackage] = {}
