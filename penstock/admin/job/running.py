"""Finds out whether a driver runs, by the job's lease."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import psutil

from penstock.admin.jobs import FoundJob
from penstock.errors import NotFoundError
from penstock.job.lease import LeaseHeldError, LeaseHolder, LeaseState, LeaseVerdict, Sighting, judge
from penstock.objects.store import ObjectStore

Running: TypeAlias = Literal["running", "not running", "not responding", "held, not verified"]
"""`not responding`: its process lives on this host, and does not renew the lease."""

_MOST_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """The verdict on a job's lease. `holder` has the lease, or had it last; None if there never was a holder."""

    running: Running
    reason: str
    holder: LeaseHolder | None = None
    gone: bool = False
    """True if the holder is gone and did not release the lease."""
    token: str = ""
    """It distinguishes this holding of the lease from others; empty if there never was a holder."""
    last_sign_ms: int | None = None
    """The last write of the lease, by its holder's clock, in epoch milliseconds; None if unknown."""


def watch_lease(
    objects: ObjectStore,
    key: str,
    *,
    wait: bool,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> LeaseFacts:
    """Look at the lease until it is certain whether its holder lives: when it is renewed, or after its own time.

    Without `wait` one look has to do. Written times are not compared with a clock.
    """
    first: Sighting | None = None
    while True:
        state, tag = _read(objects, key)
        first = first or Sighting(tag, clock())
        if state is None:
            return LeaseFacts("not running", "no driver has the lease")
        match judge(first, state, tag, clock(), lease_ms=0):
            case LeaseVerdict.FREE:
                alive = None if state.released else state.holder.known_alive()
                if alive is not None:
                    return LeaseFacts("not responding", _why_silent(state, alive), state.holder, token=state.token)
                gone = not state.released
                return LeaseFacts("not running", _why_free(state), state.holder, gone, state.token, state.renewed_ms)
            case LeaseVerdict.WAIT if state.holder.known_alive() == psutil.STATUS_STOPPED:
                return LeaseFacts(
                    "not responding", _why_silent(state, psutil.STATUS_STOPPED), state.holder, token=state.token
                )
            case LeaseVerdict.HELD:
                return LeaseFacts("running", "its lease is being renewed", state.holder, token=state.token)
        if not wait:
            return LeaseFacts("held, not verified", "its lease was read only once", state.holder, token=state.token)
        pause(min(state.lease_ms / 20_000, _MOST_PAUSE_S))


def lease(job: FoundJob, *, wait: bool = True) -> LeaseFacts:
    """The verdict on the job's lease: is a driver running, and which driver has the lease or had it last?

    Args:
        job: the job.
        wait: watch the lease until the answer is certain, for `job.lease.ms` at most. Otherwise a lease that is held is
            `held, not verified`.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     admin.lease(job).running
        'not running'
    """
    return watch_lease(job.objects, job.paths.lease, wait=wait)


def refuse_running(job: FoundJob) -> None:
    """Raise LeaseHeldError if the job runs."""
    facts = lease(job)
    if facts.running == "running" and facts.holder is not None:
        raise LeaseHeldError(job.paths.lease, facts.holder)


def _read(objects: ObjectStore, key: str) -> tuple[LeaseState, str] | tuple[None, None]:
    try:
        data, tag = objects.get_with_tag(key)
    except NotFoundError:
        return None, None
    return LeaseState.decode(data, key), tag


def _why_silent(state: LeaseState, process: str) -> str:
    pid, lease_s = state.holder.pid, state.lease_ms / 1000
    if process == psutil.STATUS_STOPPED:
        return (
            f"its process {pid} is stopped (SIGSTOP, or Ctrl-Z in its terminal): `kill -CONT {pid}` continues it; a "
            f"start takes the job over once the lease was not renewed for {lease_s:g} s"
        )
    return (
        f"its process {pid} lives ({process}), but has not renewed the lease for {lease_s:g} s: see its log; a start "
        "takes the job over"
    )


def _why_free(state: LeaseState) -> str:
    if state.released:
        return "its last run released the lease"
    if state.holder.known_dead():
        return "the process that holds the lease is gone"
    return f"the lease was not renewed for {state.lease_ms / 1000:g} s"
