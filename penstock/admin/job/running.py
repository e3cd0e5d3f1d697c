"""The run of a job: its lease, which says whether a driver runs; the request to stop it; and its drain, with what
cannot be read of requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias
from uuid import UUID

import psutil

from penstock.admin.job.logs import audited, this_process
from penstock.admin.jobs import FoundJob
from penstock.api.requests import NEXT_RUN, DrainMode, DrainNotification
from penstock.base.wording import utc_text
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.drain.requests import DRAIN, asked_ms, present_run
from penstock.drain.wing import DrainProgress as DrainProgress
from penstock.drain.wing import StageDrain as StageDrain
from penstock.drain.wing import drain_board
from penstock.errors import CorruptError, IncompatibleError, NotFoundError, PenstockTimeoutError
from penstock.facts import Facts
from penstock.job.commands import StopRequests
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


logger = logging.getLogger(__name__)

DrainStep: TypeAlias = Literal["asked", "draining", "last commit", "drained"]
_MEANS: dict[DrainStep, str] = {
    "asked": "the run has not noticed it yet",
    "draining": "the run reads nothing more, and ends once everything in flight is processed",
    "last commit": "everything in flight is processed, and the drain can no longer be cancelled",
    "drained": "nothing is in flight, and the next start may be of a changed program",
}


@dataclass(frozen=True, slots=True)
class DrainRequestFacts:
    """A request to drain. `asked_ms` is when it was written, in epoch milliseconds; None if that is not known, as of
    Samza's requests."""

    uuid: str
    asked_ms: int | None
    mode: str
    run_id: str | None = None
    """The run that it is for; None: the one that comes next, or in an answered request, the one that drained."""
    operators: tuple[str, ...] = ()
    """The operators that drain alone; empty: all drain."""

    def __str__(self) -> str:
        asked = "" if self.asked_ms is None else f", asked at {utc_text(self.asked_ms)}"
        return f"{self.uuid}{asked}, mode {self.mode}"


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
    awaiting: tuple[DrainRequestFacts, ...] = ()
    """Requests for a run that has not started yet, or that was stopped and goes on when a start has its name. The start
    of another run deletes them."""
    late: tuple[DrainRequestFacts, ...] = ()
    """Requests to drain runs that are over: they drain nothing, and the next start deletes them."""
    progress: DrainProgress | None = None
    """The work of each stage, as of a second ago; the summary, once the run has drained. None before the run
    has noticed the request, and if it could not write it."""

    def as_facts(self, *, has_ended: bool) -> Facts:
        """The drain for people. `has_ended`: no driver has the job."""
        lines: dict[str, object] = {}
        if self.step is not None:
            waits = has_ended and self.step != "drained"
            means = "the job is not running, and its next start drains" if waits else _MEANS[self.step]
            lines["drain"] = f"{self.step}: {means}"
            lines["  request"] = tuple(map(str, self.requests))
        notes = [f"warning: {each.problem}. No run drains for it: delete the object" for each in self.unreadable]
        for each in self.awaiting:
            whom = "the next run" if each.run_id is None else f"run {each.run_id}"
            back = "`penstock drain --cancel` takes it back"
            notes.append(f"note: request {each}: {whom} drains as it starts; {back}")
        for each in self.late:
            is_over = "was to drain has ended; the next start deletes the request"
            notes.append(f"note: the run that request {each.uuid} {is_over}")
        progress = Facts() if self.progress is None else self.progress.as_facts(running=not has_ended)
        return Facts(lines, notes=tuple(notes)) + progress


NO_DRAIN = DrainStatus()


def drain_status(job: FoundJob, view: LogView) -> DrainStatus:
    """The drain of the present run.

    Args:
        job: the job.
        view: its log.
    """
    run_id, found = present_run(view, job.objects, job.paths), job.drains.find()
    unreadable = tuple(UnreadableDrain(name, problem) for name, problem in found.unreadable)
    own = () if run_id is None else found.for_run(run_id)
    waits = [each for each in found.awaiting(view) if each not in own]
    awaiting = tuple(map(_facts, waits))
    late = tuple(_facts(each) for each in found.notifications if each not in own and each not in waits)
    if run_id is not None and own:
        progress = shown_drain(job, run_id)
        if progress is not None and not {str(each.uuid) for each in own}.intersection(progress.requests):
            progress = None  # of a drain that was cancelled before this one was asked for
        return DrainStatus(_step(progress), tuple(map(_facts, own)), unreadable, awaiting, late, progress)
    last = view.latest
    names = () if last is None else last.section(DRAIN).answered
    if run_id is None and last is not None and (names or last.ended == "drained"):
        summary = drain_summary(job, last.run_id)
        answered = tuple(_answered(name, last) for name in names)
        return DrainStatus("drained", answered, unreadable, awaiting, late, summary)
    return DrainStatus(unreadable=unreadable, awaiting=awaiting, late=late)


def shown_drain(job: FoundJob, run_id: str) -> DrainProgress | None:
    """The progress that the driver of a run wrote; None if it wrote none, or it cannot be read.

    Args:
        job: the job.
        run_id: the run.
    """
    try:
        return drain_board(job.objects, job.paths).get_of(run_id)
    except (CorruptError, IncompatibleError) as error:
        logger.warning("%s", error)
        return None


def drain_summary(job: FoundJob, run_id: str) -> DrainProgress | None:
    """The work of a run that has drained; None as `shown_drain`."""
    progress = shown_drain(job, run_id)
    return None if progress is None else replace(progress, phase="drained", waits_for="")


def _step(progress: DrainProgress | None) -> DrainStep:
    if progress is None:
        return "asked"
    return "draining" if progress.phase == "draining" else "last commit"


def _facts(request: DrainNotification) -> DrainRequestFacts:
    run_id = None if request.run_id == NEXT_RUN else request.run_id
    return DrainRequestFacts(
        str(request.uuid), asked_ms(request.uuid), request.drain_mode.value, run_id, request.operators
    )


def _answered(name: str, record: CheckpointRecord) -> DrainRequestFacts:
    operators = tuple(sorted(record.drained_operators))
    mode = DrainMode.OPERATORS if operators else DrainMode.DEFAULT
    return DrainRequestFacts(name, asked_ms(UUID(name)), mode.value, operators=operators)
