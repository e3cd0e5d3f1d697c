"""Asks the run of a job to stop."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from penstock.admin.job.audit import audited, this_process
from penstock.admin.job.running import lease
from penstock.admin.jobs import FoundJob
from penstock.errors import NotFoundError, PenstockTimeoutError
from penstock.job.lease import LeaseState
from penstock.job.stop_request import StopRequests

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class StopFacts:
    """The result of `stop`. `run_id` names the run that was asked; `last_checkpoint` is the job's."""

    job: str
    status: Literal["not running", "asked", "stopped"]
    run_id: str | None
    last_checkpoint: str | None
    drains: bool = False
    """True if the run drains before it ends, because it was asked to, or has drained."""


def stop(job: FoundJob, *, wait: bool = True, timeout_s: float = 600.0, run_id: str | None = None) -> StopFacts:
    """Ask the present run of the job to stop after its current batch, with a last commit. Later runs are not affected.
    A run that was asked to drain drains first.

    Args:
        job: the job.
        wait: wait until the run has ended.
        timeout_s: how long to wait, in seconds.
        run_id: the run that is meant; None: whichever runs.

    Raises:
        NotFoundError: another run has the job than the one that is meant. Nothing was written.
        PenstockTimeoutError: the run has not ended in time; the request stays.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     admin.stop(job).status
        'not running'
    """
    deadline = time.monotonic() + timeout_s
    found = lease(job)
    state = _state(job)
    if found.running == "not running" or state is None:
        return StopFacts(job.paths.root, "not running", None, _last_checkpoint(job))
    if run_id not in (None, state.holder.run_id):
        raise NotFoundError(f"run {run_id} does not have job {job.paths.root}, but {state.holder}: it was not stopped")
    with audited(job, "stop", {"run": state.holder.run_id}):
        StopRequests(job.objects, job.paths).ask(state.token, this_process())
    if not wait:
        waiting = job.drains.find().for_run(state.holder.run_id)
        return StopFacts(job.paths.root, "asked", state.holder.run_id, _last_checkpoint(job), bool(waiting))
    while _holds(job, state):
        if time.monotonic() > deadline:
            raise PenstockTimeoutError(
                f"{state.holder} was asked to stop and has not ended within {timeout_s:g} s. The request stays: the "
                "run ends after its current batch. If it does not, kill its process; the next start continues from "
                "the last checkpoint"
            )
        time.sleep(_POLL_SECONDS)
    latest = job.log.read("report").latest
    drained = latest is not None and (latest.run_id, latest.ended) == (state.holder.run_id, "drained")
    return StopFacts(job.paths.root, "stopped", state.holder.run_id, _last_checkpoint(job), drained)


def _holds(job: FoundJob, asked: LeaseState) -> bool:
    """True if the driver that was asked still has the job."""
    state = _state(job)
    if state is None or state.token != asked.token or state.released or state.holder.known_dead():
        return False
    # One that died on another host never releases its lease, which then stands still.
    return lease(job).running != "not running"


def _state(job: FoundJob) -> LeaseState | None:
    try:
        return LeaseState.decode(job.objects.get(job.paths.lease), job.paths.lease)
    except NotFoundError:
        return None


def _last_checkpoint(job: FoundJob) -> str | None:
    latest = job.log.read("report").latest
    return None if latest is None else str(latest.id)
