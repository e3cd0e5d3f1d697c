"""`penstock stop`."""

from __future__ import annotations

import getpass
import os
import socket
import time
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from penstock.admin.job.lease import watch_lease
from penstock.admin.jobs import FoundJob, JobName, open_job
from penstock.checkpoint.log import CheckpointLog
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile
from penstock.cli.shared.output import print_json
from penstock.errors import NotFoundError, PenstockTimeoutError
from penstock.metadata.lease import LeaseState
from penstock.metadata.stop_request import StopRequests

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class StopFacts:
    """What came of it. `run_id` is that of the run that was asked, `last_checkpoint` the last one of the job."""

    job: str
    status: Literal["not running", "asked", "stopped"]
    run_id: str | None
    last_checkpoint: str | None


def stop(
    job: JobName,
    config: ConfigFile = None,
    assignments: Assignments = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the run has ended.")] = True,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait at the most.")
    ] = 600.0,
    as_json: AsJson = False,
) -> None:
    """Ask a running job to stop after its current batch, with a last commit.

    It works from every machine that reaches the job root. Only the run that has the job now is asked: a later one is
    never stopped by it.
    """
    with open_job(job, config, assignments) as found:
        facts = ask_to_stop(found, wait=wait, timeout_s=timeout_s)
    if as_json:
        print_json(facts)
    else:
        checkpoint = f"the last checkpoint is {facts.last_checkpoint}"
        if facts.status == "not running":
            typer.echo(f"job {facts.job} does not run; {checkpoint}")
        elif facts.status == "asked":
            typer.echo(f"job {facts.job}, run {facts.run_id}, was asked to stop after its current batch")
        else:
            typer.echo(f"job {facts.job}, run {facts.run_id}, has ended; {checkpoint}")


def ask_to_stop(found: FoundJob, *, wait: bool, timeout_s: float) -> StopFacts:
    """Ask, and wait for the end.

    Raises:
        PenstockTimeoutError: the run has not ended in time; the request stays.
    """
    deadline = time.monotonic() + timeout_s
    lease = watch_lease(found.objects, found.paths.lease, wait=True)
    state = _state(found)
    if lease.running == "not running" or state is None:
        return StopFacts(found.paths.root, "not running", None, _last_checkpoint(found))
    who = f"{getpass.getuser()} on host `{socket.gethostname()}` (process {os.getpid()})"
    StopRequests(found.objects, found.paths).ask(state.token, who)
    if not wait:
        return StopFacts(found.paths.root, "asked", state.holder.run_id, _last_checkpoint(found))
    while _holds(found, state):
        if time.monotonic() > deadline:
            raise PenstockTimeoutError(
                f"{state.holder} was asked to stop and has not ended within {timeout_s:g} s. The request stays: it "
                "ends after its current batch. If it does not, kill its process: the state is as of the last "
                "checkpoint"
            )
        time.sleep(_POLL_SECONDS)
    return StopFacts(found.paths.root, "stopped", state.holder.run_id, _last_checkpoint(found))


def _holds(found: FoundJob, asked: LeaseState) -> bool:
    """Whether the driver that was asked still has the job."""
    state = _state(found)
    if state is None or state.token != asked.token or state.released or state.holder.known_dead():
        return False
    # One that died on another host never releases its lease, which then stands still.
    return watch_lease(found.objects, found.paths.lease, wait=True).running != "not running"


def _state(found: FoundJob) -> LeaseState | None:
    try:
        return LeaseState.decode(found.objects.get(found.paths.lease), found.paths.lease)
    except NotFoundError:
        return None


def _last_checkpoint(found: FoundJob) -> str | None:
    latest = CheckpointLog(found.objects, found.paths).read("report").latest
    return None if latest is None else str(latest.id)
