"""The drain of a job's present run, and what cannot be read of requests, for its status."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias
from uuid import UUID

from penstock.admin.jobs import FoundJob
from penstock.api.requests import NEXT_RUN, DrainMode, DrainNotification
from penstock.base.wording import utc_text
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.drain.requests import DRAIN, asked_ms, present_run
from penstock.drain.wing import DrainProgress as DrainProgress
from penstock.drain.wing import StageDrain as StageDrain
from penstock.drain.wing import drain_board
from penstock.errors import CorruptError, IncompatibleError
from penstock.facts import Facts

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
