"""Writing startpoints, and what the next start would do with them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.admin.checkpoint.change import PositionFacts
from penstock.admin.job.audit import audited
from penstock.admin.startpoint.facts import RequestFacts, request_facts
from penstock.admin.startpoint.inputs import StartpointJob
from penstock.checkpoint.edit import OffsetChange
from penstock.errors import IncompatibleError
from penstock.start.startpoints.decide import StartDecision, nearest_checkpoint, sort_out, taken_uuids
from penstock.start.startpoints.request import StartpointRequest, WithState
from penstock.wording import argument


@dataclass(frozen=True, slots=True)
class AskedFacts:
    """The requests, and what a start would do now: `changes` are the positions that it would move, `with_state` is what
    it would do with the state (None: the job has none), `checkpoint` is the one it would begin with. `nearest` is the
    checkpoint for `with_state="nearest"`, if there is one. With `dry_run` nothing was written."""

    job: str
    dry_run: bool
    requests: tuple[RequestFacts, ...]
    with_state: WithState | None
    checkpoint: str | None
    nearest: str | None
    changes: tuple[PositionFacts, ...]
    notes: tuple[str, ...]


def ask_for(
    job: StartpointJob,
    requests: Sequence[StartpointRequest],
    action: str,
    *,
    dry_run: bool,
    notes: Sequence[str] = (),
) -> AskedFacts:
    """Check the requests together with those that wait already, and write them. `action` is for the audit log.

    They are written one by one. If a call breaks off, those already written count, and calling again completes it.

    Raises:
        ConfigError: a request is from the future; nothing was written.
        IncompatibleError: a start would refuse them; nothing was written.
    """
    now_ms, ttl_ms = time.time_ns() // 1_000_000, job.found.config.job.startpoint_ttl_ms
    for request in requests:
        job.manager.check_time(request)
    found, unreadable = job.manager.read()
    there = sort_out(found, taken_uuids(job.view.checkpoints), now_ms, ttl_ms)
    new = sort_out(requests, (), now_ms, ttl_ms)
    decision = job.decide((*there.live, *new.live), new.live)
    changes = job.changes(decision)
    nearest, why_not = _nearest(job, decision)
    positions = tuple(PositionFacts.of(change) for change in changes)
    asked = request_facts(new, job.inputs.tasks, ttl_ms, {r: job.resolve(r) for r in new.live})
    if not dry_run:
        with audited(job.found, action, _audited_changes(asked, positions)):
            for request in requests:
                job.manager.write(request)
    return AskedFacts(
        job=job.found.paths.root,
        dry_run=dry_run,
        requests=asked,
        with_state=decision.with_state if job.stores else None,
        checkpoint=None if decision.restore_from is None else str(decision.restore_from.id),
        nearest=nearest,
        changes=positions,
        notes=(*notes, *map(str, unreadable), *_notes(job, decision, changes, nearest, why_not)),
    )


def _audited_changes(asked: Sequence[RequestFacts], positions: Sequence[PositionFacts]) -> dict[str, str]:
    """Each request, and the position that a start would move by it now."""
    moves = {(each.stream, each.partition): f": {each}" for each in positions}
    return {each.place: each.text + moves.get((each.stream, each.partition or 0), "") for each in asked}


def _nearest(job: StartpointJob, decision: StartDecision) -> tuple[str | None, str]:
    """The checkpoint that `with_state="nearest"` takes, or why there is none."""
    if decision.with_state == "nearest" or job.origin is None:
        return (None if decision.restore_from is None else str(decision.restore_from.id)), ""
    try:
        return str(nearest_checkpoint(decision.offsets, job.candidates(), job.inputs.ends).id), ""
    except IncompatibleError as error:
        return None, str(error)


def _notes(
    job: StartpointJob, decision: StartDecision, changes: Sequence[OffsetChange], nearest: str | None, why_not: str
) -> Iterator[str]:
    if not job.found.config.job.startpoint_enabled:
        yield "job.startpoint.enabled is false in this configuration: a start with it ignores startpoints"
    if job.origin is None or not job.stores:
        return
    stores = ", ".join(f"`{store}`" for store in job.stores)
    match decision.with_state:
        case "nearest":
            yield (
                f"every input and all stores ({stores}) begin at checkpoint {nearest}, the newest retained one at or "
                "before the wanted positions: state and input agree"
            )
        case "clear":
            yield f"the stores ({stores}) begin empty and will hold only what the job reads from there"
        case "keep":
            yield from _keeping(stores, changes, nearest, why_not)


def _keeping(stores: str, changes: Sequence[OffsetChange], nearest: str | None, why_not: str) -> Iterator[str]:
    moves = [change.new - change.old for change in changes if change.old is not None]
    twice = "messages that are read again count twice in it" if min(moves, default=0) < 0 else ""
    never = "messages that are skipped are missing from it" if max(moves, default=0) > 0 else ""
    if not twice and not never:
        return
    yield f"the state ({stores}) stays as it is ({_with('keep')}): {' and '.join(filter(None, (twice, never)))}"
    other = f"from checkpoint {nearest}" if nearest is not None else f"which is not possible now: {why_not}"
    yield f"{_with('nearest')} would begin every input and all stores at one retained checkpoint, {other}"
    yield f"{_with('clear')} would empty the stores first"


def _with(state: WithState) -> str:
    return argument("with_state", state)
