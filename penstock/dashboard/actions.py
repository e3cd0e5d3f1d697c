"""The changes that a page can make: each says what it will do, and does it when it is confirmed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.admin.job.drain import cancel_drain, drain
from penstock.admin.job.status import status
from penstock.admin.job.stop import stop
from penstock.admin.jobs import FoundJob
from penstock.admin.startpoint.set import AskedFacts, set_startpoint
from penstock.admin.startpoint.waiting import delete_startpoints
from penstock.api.startpoint import (
    Startpoint,
    StartpointOldest,
    StartpointSpecific,
    StartpointTimestamp,
    StartpointUpcoming,
)
from penstock.errors import ConfigError

Given = Mapping[str, Any]
"""The fields that a page sends with an action."""


@dataclass(frozen=True, slots=True)
class Action:
    """A change. `plan` writes nothing, and says what `do` would do; `do` says what it has done."""

    plan: Callable[[FoundJob, Given], list[str]]
    do: Callable[[FoundJob, Given], list[str]]


def _plan_stop(job: FoundJob, given: Given) -> list[str]:
    found = status(job, wait=False)
    return [
        f"Run {found.run_id} stops after its current batch, with a last commit. Nothing is lost.",
        "The next start continues from that commit.",
    ]


def _stop(job: FoundJob, given: Given) -> list[str]:
    found = stop(job, wait=False)
    return ["The job is not running." if found.status == "not running" else f"Run {found.run_id} was asked to stop."]


def _plan_drain(job: FoundJob, given: Given) -> list[str]:
    found = status(job, wait=False)
    who = "The next run, as it starts," if found.has_ended else f"Run {found.run_id}"
    return [
        f"{who} reads no more input, processes everything in flight and everything that waits for a time, and ends.",
        "Windows and joins emit what they hold. The drain can be cancelled until its last commit begins.",
    ]


def _drain(job: FoundJob, given: Given) -> list[str]:
    found = drain(job)
    before = " before" if found.status == "asked before" else ""
    return [f"The job was asked to drain{before}. The page shows how far it is."]


def _plan_cancel(job: FoundJob, given: Given) -> list[str]:
    return ["The requests to drain are withdrawn. The run goes back to its last checkpoint and continues."]


def _cancel(job: FoundJob, given: Given) -> list[str]:
    cancel_drain(job, timeout_s=60)
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
    moves = [
        f"{each.stream} partition {each.partition}: from {each.old_next} to {each.new_next}" for each in asked.changes
    ]
    state = [] if asked.with_state is None else [f"State: {asked.with_state}."]
    begins = [] if asked.checkpoint is None else [f"The start begins with checkpoint {asked.checkpoint}."]
    return ["The next start begins to read elsewhere:", *moves, *state, *begins, *asked.notes]


def _set_startpoint(job: FoundJob, given: Given) -> list[str]:
    asked = _startpoint(job, given, dry_run=False)
    return [f"{len(asked.requests)} written. The next start applies them, and deletes them."]


def _plan_delete(job: FoundJob, given: Given) -> list[str]:
    waiting = status(job, wait=False).startpoints
    return ["These startpoints are deleted:", *(f"{each.place}: {each.text}" for each in waiting)]


def _delete(job: FoundJob, given: Given) -> list[str]:
    waiting = status(job, wait=False).startpoints
    places = dict.fromkeys((each.stream, each.task) for each in waiting)
    deleted = [delete_startpoints(job, stream, task=task).deleted for stream, task in places]
    return [f"{sum(map(len, deleted))} deleted."]


ACTIONS: Mapping[str, Action] = {
    "stop": Action(_plan_stop, _stop),
    "drain": Action(_plan_drain, _drain),
    "cancel drain": Action(_plan_cancel, _cancel),
    "startpoint": Action(_plan_startpoint, _set_startpoint),
    "delete startpoints": Action(_plan_delete, _delete),
}
