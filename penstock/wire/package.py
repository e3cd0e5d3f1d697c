"""What a container needs of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.api.ssp import SystemStreamPartition
from penstock.config.model import JobConfig
from penstock.graph.topology import Topology
from penstock.runtime.stage.instance import RuntimeSettings
from penstock.system.base import System


@dataclass(frozen=True, slots=True)
class JobPackage:
    """Everything of a job that a container needs, pickled by the driver."""

    topology: Topology
    settings: RuntimeSettings
    config: JobConfig
    job_uid: str
    probe: str
    """Key of an object that the driver has just put under job.root."""
    systems: Mapping[str, System]
    side_fingerprints: Mapping[str, str] = field(default_factory=dict)
    """By store that side inputs fill: what makes its content besides the messages. The driver's, whose processors have
    processed nothing: what they gather while they process is not taken for another processor."""
    partitions: Mapping[int, tuple[SystemStreamPartition, ...]] = field(default_factory=dict)
    """The input partitions that each task reads."""
    writer: str = ""
    """By which name the job writes its outputs (`WriterIdentity.name`)."""
