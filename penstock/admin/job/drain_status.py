"""The drain of a job's present run, and what cannot be read of requests, for its status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import UUID

from penstock.admin.jobs import FoundJob
from penstock.api.drain import DrainMode, DrainNotification
from penstock.checkpoint.log_view import LogView
from penstock.drain.requests import DrainRequests
from penstock.drain.utils import asked_ms, present_run

DrainStep: TypeAlias = Literal["asked", "draining", "last commit", "drained"]


@dataclass(frozen=True, slots=True)
class DrainRequestFacts:
    """A request to drain. `asked_ms` is when it was written, in epoch milliseconds; None if that is not known, as of
    Samza's requests."""

    uuid: str
    asked_ms: int | None
    mode: str


@dataclass(frozen=True, slots=True)
class UnreadableDrain:
    """An object in place of a request to drain that cannot be read. No run drains for it."""

    name: str
    problem: str


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """`requests` are those of the present run, which are one drain, or those that it has answered."""

    step: DrainStep | None = None
    """None if nobody has asked the present run to drain."""
    requests: tuple[DrainRequestFacts, ...] = ()
    unreadable: tuple[UnreadableDrain, ...] = ()


NO_DRAIN = DrainStatus()
"""Nobody has asked."""


def drain_status(job: FoundJob, view: LogView) -> DrainStatus:
    """What is known of the drain of the present run.

    Args:
        job: the job.
        view: its log.
    """
    run_id, found = present_run(job.objects, job.paths), DrainRequests(job.objects, job.paths).find()
    unreadable = tuple(UnreadableDrain(name, problem) for name, problem in found.unreadable)
    if own := () if run_id is None else found.of_run(run_id):
        return DrainStatus("asked", tuple(map(_facts, own)), unreadable)
    last = view.latest
    if run_id is None and last is not None and last.ended == "drained":
        return DrainStatus("drained", tuple(map(_answered, last.drains)), unreadable)
    return DrainStatus(unreadable=unreadable)


def _facts(request: DrainNotification) -> DrainRequestFacts:
    return DrainRequestFacts(str(request.uuid), asked_ms(request.uuid), request.drain_mode.value)


def _answered(name: str) -> DrainRequestFacts:
    return DrainRequestFacts(name, asked_ms(UUID(name)), DrainMode.DEFAULT.value)
