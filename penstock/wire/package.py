"""The part of a job that containers get."""

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
    """A job as the driver pickles it for its containers."""

    topology: Topology
    settings: RuntimeSettings
    config: JobConfig
    job_uid: str
    probe: str
    """Key of an object that the driver has just put under job.root: a container that cannot read it sees another root.
    """
    systems: Mapping[str, System]
    side_fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Store → fingerprint of everything but messages that determines its content, for stores that side inputs fill. The
    driver computes it, because its processors have processed nothing: what they gather later must not look like another
    processor."""
    partitions: Mapping[int, tuple[SystemStreamPartition, ...]] = field(default_factory=dict)
    writer: str = ""
    """The name under which the job writes its outputs (`WriterIdentity.name`)."""
