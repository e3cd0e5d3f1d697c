"""The plan of a run: values that are decided once, before its first epoch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.choice import choose_version, markers_elsewhere
from penstock.checkpoint.intermediate import IntermediateStream
from penstock.checkpoint.origin import Origin
from penstock.checkpoint.record import Claim
from penstock.checkpoint.versions.markers import read_task
from penstock.checkpoint.versions.value import Markers as OfTask
from penstock.config.model import JobConfig
from penstock.graph.topology import Topology
from penstock.job.paths import JobPaths
from penstock.runtime.settings import RuntimeSettings
from penstock.start.layout import store_layout
from penstock.start.plan import StartPlan
from penstock.start.streams.identities import Identities
from penstock.start.streams.intermediate import declared_streams
from penstock.system.base import WriterIdentity
from penstock.wire.protocol import Markers


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Everything a run needs and does not change. Pure."""

    config: JobConfig
    paths: JobPaths
    uid: str
    topology: Topology
    settings: RuntimeSettings
    claim: Claim
    start: StartPlan
    inputs: tuple[SystemStream, ...]
    """The input streams, in the order of their numbers."""
    intermediate: Mapping[SystemStream, IntermediateStream]
    """Where the run begins in each durable intermediate stream."""
    until: Mapping[SystemStreamPartition, int] | None
    close: bool
    """True if a run that reaches its end closes the stream."""
    publisher: str
    """The name of who writes the outputs, the same for every run."""
    identities: Identities
    """The identities of the inputs at the start."""
    recorded_identities: Identities
    """The identities that records have: those of the inputs and of exactly-once outputs at the start."""
    for_containers: Mapping[str, Any]
    """See `JobPackage.of_start`."""

    @property
    def layout(self) -> dict[str, str]:
        """Store → its recorded layout."""
        return store_layout(self.topology.graph)

    @property
    def intermediate_layout(self) -> dict[SystemStream, str]:
        """Durable intermediate stream → its recorded layout."""
        return declared_streams(self.topology.graph)

    @property
    def partitions(self) -> dict[int, tuple[SystemStreamPartition, ...]]:
        """Task → the partitions of inputs that it reads."""
        found: dict[int, tuple[SystemStreamPartition, ...]] = {}
        for at in sorted(self.start.positions):
            found[at.task] = (*found.get(at.task, ()), at.ssp)
        return found

    def writer(self, epoch: int) -> WriterIdentity:
        """Who writes the outputs."""
        return WriterIdentity(self.publisher, epoch)

    def markers_of(self, origin: Origin) -> Markers:
        """Task (as text) -> backend -> store -> marker to restore from, in the checkpoint version to be read."""
        record = origin.record
        if record is None or origin.cleared:
            return {}
        layout, version = self.layout, choose_version(record, self.config.task.checkpoint_read_versions)
        return {
            str(task): _without(
                read_task(record, task, version, self.config.changelog_partitions(layout, task)).markers,
                origin.emptied,
            )
            for task in record.tasks
        }

    def markers_elsewhere(self, origin: Origin) -> str:
        """A hint for an error about damage that a restore met, or an empty text."""
        if origin.record is None or origin.cleared:
            return ""
        return markers_elsewhere(origin.record, self.config.task.checkpoint_read_versions)


def _without(markers: OfTask, stores: Collection[str]) -> dict[str, dict[str, str]]:
    return {
        backend: {store: marker for store, marker in own.items() if store not in stores}
        for backend, own in markers.items()
    }
