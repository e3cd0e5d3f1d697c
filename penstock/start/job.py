"""A job that a driver has claimed: its plan, and what is open for its run.

The plan has the values that are decided once, before the first epoch of the run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.retry import Clock
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import Claim, Origin
from penstock.checkpoint.streams import IntermediateStream
from penstock.checkpoint.task_values import Markers as OfTask
from penstock.checkpoint.task_versions import choose_version, markers_elsewhere, read_task
from penstock.config.model import JobConfig
from penstock.graph.topology import Topology
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.runtime.settings import RuntimeSettings
from penstock.start.job_streams import JobStreams
from penstock.start.layout import store_layout
from penstock.start.part import StartPart
from penstock.start.plan import StartPlan
from penstock.start.positions import Identities, declared_streams
from penstock.start.startpoint_manager import StartpointManager
from penstock.state.backends.registry import BackendAdmins
from penstock.system.base import WriterIdentity
from penstock.wire.ports import JobPackage
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


@dataclass(slots=True, eq=False)
class ClaimedJob:
    """A job that this driver has claimed: the plan of its run, the store, the log, the streams and the backends.

    Its run closes `admins`. Everything else belongs to the caller of `prepare`.
    """

    plan: JobPlan
    objects: ObjectStore
    log: CheckpointLog
    streams: JobStreams
    startpoints: StartpointManager
    admins: BackendAdmins
    clock: Clock
    parts: Sequence[StartPart]

    @property
    def config(self) -> JobConfig:
        return self.plan.config

    @property
    def paths(self) -> JobPaths:
        return self.plan.paths

    @property
    def uid(self) -> str:
        return self.plan.uid

    @property
    def topology(self) -> Topology:
        return self.plan.topology

    @property
    def settings(self) -> RuntimeSettings:
        return self.plan.settings

    @property
    def claim(self) -> Claim:
        """The claim under which the run began. Each later epoch has another one."""
        return self.plan.claim

    @property
    def start(self) -> StartPlan:
        return self.plan.start

    def writer(self, epoch: int) -> WriterIdentity:
        """Who writes the outputs."""
        return self.plan.writer(epoch)

    def before_fences(self) -> None:
        """To be called before `fence_outputs`, which may make again what was lost, and empty.

        Raises:
            PenstockError: the outputs must not be fenced.
        """
        for part in self.parts:
            part.before_fences(self.plan, self.streams, self.log.known())

    def fence_outputs(self, epoch: int) -> None:
        """From now on no older epoch can append to an output or intermediate stream whose system fences writers."""
        for stream in self.streams.fenced:
            self.streams.admins[stream.system].fence(stream.stream, self.writer(epoch))

    def put_probe(self, epoch: int) -> None:
        """An object that every container must find, or its job.root is another one."""
        self.objects.put_if_absent(self._probe(epoch), self.uid.encode())

    def remove_probe(self, epoch: int) -> None:
        """Every container has found it."""
        self.objects.delete(self._probe(epoch))

    def container_package(self, epoch: int) -> JobPackage:
        """The job as containers get it."""
        plan = self.plan
        return JobPackage(
            plan.topology,
            plan.settings,
            plan.config,
            plan.uid,
            self._probe(epoch),
            self.streams.systems,
            plan.for_containers,
            plan.partitions,
            plan.publisher,
        )

    def _probe(self, epoch: int) -> str:
        return self.paths.metadata("probe", str(epoch))
