"""The facts that a start reads before it decides. Nothing is written here."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.base.wording import counted
from penstock.checkpoint.log_view import LogView
from penstock.config.model import JobConfig
from penstock.graph.specs import ApplicationGraph
from penstock.job.paths import JobPaths
from penstock.start.startpoints.decide import JobInputs, Resolve, WaitingStartpoints
from penstock.start.startpoints.manager import StartpointManager
from penstock.start.startpoints.request import StartpointRequest
from penstock.system.base import SystemAdmin

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartRequest:
    """The wishes of the caller who starts a run."""

    run_id: str
    from_checkpoint: str | None = None
    until_latest: bool = False
    close: bool = True
    """True if a run that reaches its end closes the stream."""
    reset_operators: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class StartFacts:
    """The application, its inputs as they are now, the log, and the startpoints that wait."""

    graph: ApplicationGraph
    config: JobConfig
    inputs: JobInputs
    view: LogView
    requests: WaitingStartpoints
    from_checkpoint: str | None = None
    reset_operators: Sequence[str] = ()

    @property
    def job(self) -> str:
        """The job's name in commands."""
        return JobPaths(self.config.job.name, self.config.job.id).root


def read_requests(manager: StartpointManager, view: LogView, config: JobConfig) -> WaitingStartpoints:
    """The startpoints that wait; none if the configuration ignores them. Logs those that cannot be read."""
    requests = manager.waiting(view)
    if config.job.startpoint_enabled:
        for each in requests.unreadable:
            logger.error("%s", each)
        return requests
    if left := len(requests.live) + len(requests.expired):
        logger.warning("job.startpoint.enabled is false, so this start ignores %s", counted(left, "startpoint"))
    return WaitingStartpoints(taken=requests.taken)


def resolver(admins: Mapping[str, SystemAdmin]) -> Resolve:
    """Resolves requests by the systems of their streams."""

    def resolve(request: StartpointRequest) -> int:
        ssp = request.key.ssp
        return admins[ssp.system].resolve_startpoint_to_offset(ssp, request.startpoint, clamp=request.clamp)

    return resolve
