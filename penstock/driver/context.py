"""The values that all parts of one run share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.base.clock import Clock
from penstock.driver.feed.stop import StopRequest
from penstock.driver.show.progress import ProgressBoard
from penstock.job.lease import LeaseKeeper
from penstock.start.job import ClaimedJob
from penstock.wire.ports import BatchRunner, Fleet


@dataclass(frozen=True, slots=True)
class RunContext:
    """A claimed job, its lease, the two ports of its run, its progress, and the request to end it."""

    job: ClaimedJob
    keeper: LeaseKeeper
    fleet: Fleet
    runner: BatchRunner
    stop: StopRequest
    board: ProgressBoard
    check_next: Callable[[], object] | None = None
    """Raises the error by which a start would be refused now. None: the job never begins again by itself."""

    tools: Mapping[str, Any] = field(default_factory=dict)
    """By wing, the thing that the host has made for it (`Wing.on_host`)."""

    @property
    def clock(self) -> Clock:
        return self.job.clock
