"""The changes that a page can make: each says what it will do, and does that once it is confirmed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.admin.job.drain import cancel_drain, drain
from penstock.admin.job.look import status
from penstock.admin.job.running import stop
from penstock.admin.job.status import JobStatus
from penstock.admin.jobs import FoundJob
from penstock.admin.startpoint.facts import RequestFacts
from penstock.admin.startpoint.set import AskedFacts, set_startpoint
from penstock.admin.startpoint.waiting import delete_startpoints
from penstock.api.requests import (
    Startpoint,
    StartpointOldest,
    StartpointSpecific,
    StartpointTimestamp,
    StartpointUpcoming,
)
from penstock.errors import ConfigError, NotFoundError, PenstockError

Given = Mapping[str, Any]
"""The fields that a page sends with an action."""
_CANCEL_S = 60.0


@dataclass(frozen=True, slots=True)
class Action:
    """A change. `plan` writes nothing, and says what `do` would do; `do` says what it has done."""

    plan: Callable[[FoundJob, Given], list[str]]
    do: Callable[[FoundJob, Given], list[str]]

    def answer(self, job: FoundJob, given: Given) -> dict[str, Any]:
        """Say what it would do. If the page confirms what it was told, and that still holds, do it."""
        plan = self.plan(job, given)
        if given.get("confirmed") is not True:
            return {"lines": plan, "done": False}
        if given.get("plan") != plan:
            raise PenstockError("the job has changed meanwhile, and nothing was done: look at what would happen now")
        return {"lines": self.do(job, given), "done": True}


def _plan_stop(job: FoundJob, given: Given) -> list[str]:
    return [
        f"Run {_running(job).run_id} stops after its current batch, with a last commit. Nothing is lost.",
        "The next start continues from that commit.",
    ]


def _running(job: FoundJob) -> JobStatus:
    found = status(job, wait=False)
    if found.has_ended:
        raise NotFoundError(f"job {found.job} is not running: {found.reason}")
    return found


def _stop(job: FoundJob, given: Given) -> list[str]:
    found = stop(job, wait=False, run_id=_running(job).run_id)
    return [f"Run {found.run_id} was asked to stop."]


def _plan_drain(job: FoundJob, given: Given) -> list[str]:
    found = status(job, wait=False)
    who = "The next run, as it starts," if found.has_ended else f"Run {found.run_id}"
    return [
        f"{who} reads no more input, processes everything in flight and everything that waits for a time, and ends.",
        "Windows and joins emit what they hold. The drain can be cancelled until its last commit begins.",
    ]


def _drain(job: FoundJob, given: Given) -> list[str]:
    found = status(job, wait=False)
    drain(job, run_id=None if found.has_ended else found.run_id)
    return ["The job was asked to drain. The page shows how far it is."]


def _plan_cancel(job: FoundJob, given: Given) -> list[str]:
    asked = status(job, wait=False).drain
    if not asked.requests and not asked.awaiting:
        raise NotFoundError(f"nobody has asked job {job.paths.root} to drain, or it has drained already")
    return ["The requests to drain are withdrawn. A run that drains goes back to its last checkpoint and continues."]


def _cancel(job: FoundJob, given: Given) -> list[str]:
    cancel_drain(job, timeout_s=_CANCEL_S)
    return ["The drain was cancelled."]


def _startpoint(job: FoundJob, given: Given, *, dry_run: bool) -> AskedFacts:
    state = given.get("state") or None
    if state not in (None, "keep", "nearest", "clear"):
        raise ConfigError(f"the state is one of keep, nearest and clear, not {state!r}")
    partitions = given.get("partitions")
    return set_startpoint(
        job,
        str(given.get("stream", "")),
        _place(given),
        partitions=_numbers(partitions) if partitions else None,
        with_state=state,
        dry_run=dry_run,
    )


def _place(given: Given) -> Startpoint:
    kind, value = given.get("kind"), given.get("value")
    match kind:
        case "oldest":
            return StartpointOldest()
        case "upcoming":
            return StartpointUpcoming()
        case "offset":
            return StartpointSpecific(str(_number(value)))
        case "timestamp":
            return StartpointTimestamp(_number(value))
    raise ConfigError(f"a startpoint is one of oldest, upcoming, offset and timestamp, not {kind!r}")


def _number(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ConfigError(f"{value!r} is not a whole number") from None


def _numbers(text: object) -> list[int]:
    return [_number(part.strip()) for part in str(text).split(",")]


def _plan_startpoint(job: FoundJob, given: Given) -> list[str]:
    asked = _startpoint(job, given, dry_run=True)
    if not asked.changes and asked.with_state is None:
        return ["The next start begins where it would anyway.", *asked.notes]
    moves = [
        f"{each.stream} partition {each.partition}: from {each.old_next} to {each.new_next}" for each in asked.changes
    ]
    state = [] if asked.with_state is None else [f"State: {asked.with_state}."]
    begins = [] if asked.checkpoint is None else [f"The start begins with checkpoint {asked.checkpoint}."]
    return ["The next start begins to read elsewhere:", *moves, *state, *begins, *asked.notes]


def _set_startpoint(job: FoundJob, given: Given) -> list[str]:
    asked = _startpoint(job, given, dry_run=False)
    return [f"{len(asked.requests)} written. The next start applies them, and deletes them."]


def _readable(job: FoundJob) -> list[RequestFacts]:
    """The startpoints that a page can delete: `penstock startpoint delete` has the others, too."""
    return [each for each in status(job, wait=False).startpoints if each.status != "unreadable"]


def _plan_delete(job: FoundJob, given: Given) -> list[str]:
    waiting = _readable(job)
    if not waiting:
        raise NotFoundError(f"no startpoint of job {job.paths.root} waits that can be read")
    return ["These startpoints are deleted:", *(f"{each.place}: {each.text} (`{each.uuid}`)" for each in waiting)]


def _delete(job: FoundJob, given: Given) -> list[str]:
    places = dict.fromkeys((each.stream, each.partition, each.task) for each in _readable(job))
    deleted = [
        delete_startpoints(job, stream, partitions=None if partition is None else [partition], task=task).deleted
        for stream, partition, task in places
    ]
    return [f"{sum(map(len, deleted))} deleted."]


ACTIONS: Mapping[str, Action] = {
    "stop": Action(_plan_stop, _stop),
    "drain": Action(_plan_drain, _drain),
    "cancel drain": Action(_plan_cancel, _cancel),
    "startpoint": Action(_plan_startpoint, _set_startpoint),
    "delete startpoints": Action(_plan_delete, _delete),
}
