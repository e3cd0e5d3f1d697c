"""A job that a driver has claimed, and what is open for its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.base.clock import Clock
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import Claim
from penstock.config.model import JobConfig
from penstock.graph.topology import Topology
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.runtime.settings import RuntimeSettings
from penstock.start.job_plan import JobPlan
from penstock.start.part import StartPart
from penstock.start.plan import StartPlan
from penstock.start.startpoints.manager import StartpointManager
from penstock.start.streams.job_streams import JobStreams
from penstock.state.admins import BackendAdmins
from penstock.system.base import WriterIdentity
from penstock.wire.package import JobPackage


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
