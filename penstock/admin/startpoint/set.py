"""Writes startpoints, and shows what the next start would do with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from penstock.admin.checkpoint.change import PositionFacts, effect_on_state
from penstock.admin.job.logs import audited
from penstock.admin.jobs import FoundJob
from penstock.admin.samza import imported_requests
from penstock.admin.startpoint.inputs import StartpointJob, check_nearest, open_inputs
from penstock.admin.startpoint.waiting import RequestFacts, parse_task, request_facts
from penstock.api.requests import Startpoint, StartpointSpecific
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.wording import argument, counted, flag
from penstock.checkpoint.edit import OffsetChange
from penstock.errors import ConfigError, IncompatibleError
from penstock.facts import Facts, FactTable, Shown
from penstock.job.commands import new_uuid
from penstock.start.startpoint_request import RequestKey, StartpointRequest, WithOutput, WithState
from penstock.start.startpoints import StartDecision, nearest_checkpoint, passing_over, sort_out


@dataclass(frozen=True, slots=True)
class AskedFacts(Shown):
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

    def as_facts(self) -> Facts:
        asked = FactTable(f"Startpoints of {self.job}", self.requests)
        moves = FactTable("The next start would move, as of the last checkpoint", self.changes)
        return Facts({}, (asked, *([moves] if self.changes else [])), tuple(f"note: {note}" for note in self.notes))


def ask_for(
    job: StartpointJob, requests: Sequence[StartpointRequest], action: str, *, dry_run: bool, notes: Sequence[str] = ()
) -> AskedFacts:
    """Check the requests together with those that wait already, and write them. `action` is for the audit log.

    They are written one by one. If a call breaks off, those already written count, and calling again completes it.

    Raises:
        ConfigError: a request is from the future; nothing was written.
        IncompatibleError: a start would refuse them; nothing was written.
    """
    now_ms, ttl_ms = SYSTEM_CLOCK.now_ms(), job.found.config.job.startpoint_ttl_ms
    for request in requests:
        job.found.startpoints.check_time(request)
    there = job.found.startpoints.waiting(job.view)
    new = sort_out(requests, (), now_ms, ttl_ms)
    decision = job.decide((*there.live, *new.live), new.live)
    notes = [*notes, *check_nearest(job, decision, new.live)]
    changes = job.changes(decision)
    nearest, passed_over = _nearest(job, decision)
    positions = tuple(PositionFacts.of(change, job.found.config) for change in changes)
    asked = request_facts(new, job.inputs.tasks, ttl_ms, {r: job.resolve(r) for r in new.live})
    if not dry_run:
        with audited(job.found, action, _audited_changes(asked, positions)):
            for request in requests:
                job.found.startpoints.write(request)
    return AskedFacts(
        job=job.found.paths.root,
        dry_run=dry_run,
        requests=asked,
        with_state=decision.with_state if job.stores else None,
        checkpoint=None if decision.restore_from is None else str(decision.restore_from.id),
        nearest=nearest,
        changes=positions,
        notes=(*notes, *map(str, there.unreadable), *_notes(job, decision, changes, nearest, passed_over)),
    )


def _audited_changes(asked: Sequence[RequestFacts], positions: Sequence[PositionFacts]) -> dict[str, str]:
    """Each request, and the position that a start would move by it now."""
    moves = {(each.stream, each.partition): f": {each}" for each in positions}
    return {
        each.place: each.text
        + (f", state {each.with_state}" if each.with_state else "")
        + moves.get((each.stream, each.partition or 0), "")
        for each in asked
    }


def _nearest(job: StartpointJob, decision: StartDecision) -> tuple[str | None, str]:
    """The checkpoint that `with_state="nearest"` takes, and which ones it passes over; or None, and why there is
    none."""
    if decision.with_state == "nearest" or job.origin is None:
        found = None if decision.restore_from is None else str(decision.restore_from.id)
        return found, passing_over(decision.passed_over)
    try:
        near = nearest_checkpoint(
            decision.offsets, job.candidates, job.inputs.ends, accepts_state=decision.accepts_state
        )
        return str(near.record.id), passing_over(near.passed_over)
    except IncompatibleError as error:
        return None, str(error)


def _notes(
    job: StartpointJob, decision: StartDecision, changes: Sequence[OffsetChange], nearest: str | None, passed_over: str
) -> Iterator[str]:
    if not job.found.config.job.startpoint_enabled:
        yield "job.startpoint.enabled is false in this configuration: a start with it ignores startpoints"
    if decision.quiet_until:
        yield (
            f"nothing is sent to outputs before all inputs have come to their old positions "
            f"({argument('with_output', 'after')}); dead letters are sent again"
        )
    if job.origin is None or not job.stores:
        return
    stores = ", ".join(f"`{store}`" for store in job.stores)
    match decision.with_state:
        case "nearest":
            yield (
                f"every input and all stores ({stores}) begin at checkpoint {nearest}, the newest retained one at or "
                "before the wanted positions"
                + (f" whose state counts. {_sentence(passed_over)}" if passed_over else ": state and input agree")
            )
        case "clear":
            yield f"the stores ({stores}) begin empty and will hold only what the job reads from there"
        case "keep":
            yield from _keeping(stores, changes, nearest, passed_over, accepted=decision.accepts_state)


def _keeping(
    stores: str, changes: Sequence[OffsetChange], nearest: str | None, passed_over: str, *, accepted: bool
) -> Iterator[str]:
    if not (effect := effect_on_state(changes)):
        return
    right = (
        f". {flag('accept_state')} declares that this is right, and later checkpoints count as such" if accepted else ""
    )
    yield f"the state ({stores}) stays as it is ({_with('keep')}): {effect}{right}"
    if not accepted:
        yield (
            f"checkpoints from then on are passed over by {_with('nearest')}, because their state does not agree with "
            f"their positions; {flag('accept_state')} declares that it does"
        )
    other = f"from checkpoint {nearest}" if nearest is not None else f"which is not possible now: {passed_over}"
    if nearest is not None and passed_over:
        other += f". {_sentence(passed_over)}"
    yield f"{_with('nearest')} would begin every input and all stores at one retained checkpoint, {other}"
    yield f"{_with('clear')} would empty the stores first"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _with(state: WithState) -> str:
    return argument("with_state", state)


def set_startpoint(
    job: FoundJob,
    stream: str,
    startpoint: Startpoint,
    *,
    partitions: Sequence[int] | None = None,
    task: str | None = None,
    clamp: bool = False,
    with_state: WithState | None = None,
    with_output: WithOutput | None = None,
    accept_state: bool = False,
    dry_run: bool = False,
) -> AskedFacts:
    """Set the position at which the next start of a job begins to read an input (SEP-18). The job may be running.

    The position is resolved when the job starts, and applies once. The result has the offset that it means now.

    Args:
        job: the job. Open it with its application if it has no checkpoint yet, or the input is new.
        stream: the input, `system.stream`.
        startpoint: the position. Its `creation_timestamp` is replaced by the present time.
        partitions: the numbers of the partitions. None: all, or that of the message that the startpoint names, as a
            file and a row do.
        task: the number or name (`Partition 3`) of one task; every task that reads the partitions, if None.
        clamp: accept the nearest offset if the offset of a StartpointSpecific does not exist at the start.
        with_state: `nearest` begins all inputs and stores at the newest retained checkpoint at or before the position,
            `clear` empties the stores first, `keep` leaves them as they are.
        with_output: `again` (the default) sends the output of messages that are read again, `after` sends nothing
            before all inputs have come to their old positions. A start of an application with windows or timers
            refuses `after`.
        accept_state: declare that the state is right although positions were moved while it stayed. `nearest` then
            passes over no checkpoint for that reason, and `keep` does not mark those that follow.
        dry_run: write nothing; the result is a preview.

    Raises:
        ConfigError: a name or the startpoint is wrong, or the job's inputs are not known.
        IncompatibleError: a start would refuse it. With `nearest` this is also said of the application: the one that
            the job was opened with, or else the one of the last checkpoint. Nothing was written.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     oldest = ps.StartpointOldest()
        ...     asked = admin.set_startpoint(job, "local.trips", oldest, partitions=[0], with_state="clear")
        >>> [(each.partition, each.old_next, each.new_next) for each in asked.changes]
        [(0, 3, 0)]
    """
    with open_inputs(job) as found:
        chosen = _of_message(found, stream, startpoint) if partitions is None else partitions
        keys = list(_request_keys(found, stream, chosen, task))
        requests = [
            StartpointRequest(key, new_uuid().hex, startpoint, with_state, clamp, with_output, accept_state)
            for key in keys
        ]
        made = replace(startpoint, creation_timestamp=_creation(found, {key.ssp for key in keys}))
        made_requests = [replace(each, startpoint=made) for each in requests]
        return ask_for(found, made_requests, "startpoint set", dry_run=dry_run)


def import_startpoints(job: FoundJob, lines: Iterable[str], *, dry_run: bool = False) -> AskedFacts:
    """Set the startpoints that are in messages of Samza's coordinator stream, the inverse of `export_startpoints`.

    Expired startpoints are left out.

    Args:
        job: as in `set_startpoint`.
        lines: JSON texts, `{"key": ..., "value": ...}`.
        dry_run: write nothing; the result is a preview.

    Raises:
        CorruptError: a line cannot be read; the message has its number.
        ConfigError: there is no startpoint to apply.
        IncompatibleError: a start would refuse them. Nothing was written.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     _ = admin.set_startpoint(job, "local.trips", ps.StartpointOldest(), partitions=[0], with_state="keep")
        ...     lines = admin.export_startpoints(job).lines
        ...     _ = admin.delete_startpoints(job, "local.trips")
        ...     [each.kind for each in admin.import_startpoints(job, lines, dry_run=True).requests]
        ['oldest']
    """
    requests, notes = imported_requests(lines)
    with open_inputs(job) as found:
        now_ms, ttl_ms = SYSTEM_CLOCK.now_ms(), job.config.job.startpoint_ttl_ms
        live = [request for request in requests if not request.is_expired(now_ms, ttl_ms)]
        if len(live) < len(requests):
            expired = counted(len(requests) - len(live), "startpoint")
            notes.append(f"skipped: {expired} older than job.startpoint.ttl.ms")
        if not live:
            raise ConfigError("; ".join(["there is no startpoint to apply in the file", *notes]))
        return ask_for(found, live, "startpoint import", dry_run=dry_run, notes=notes)


def _of_message(found: StartpointJob, stream: str, startpoint: Startpoint) -> Sequence[int] | None:
    """The partition of the message that a startpoint names; None if it names none."""
    if not isinstance(startpoint, StartpointSpecific):
        return None
    parsed = SystemStream.parse(stream)
    partition = found.admins[parsed.system].named_partition(parsed.stream, startpoint.specific_offset)
    return None if partition is None else [partition]


def _request_keys(
    found: StartpointJob, stream: str, partitions: Sequence[int] | None, task: str | None
) -> Iterator[RequestKey]:
    name = parse_task(task)
    parsed = SystemStream.parse(stream)
    if partitions is not None:
        numbers = sorted(set(partitions))
    else:
        numbers = sorted({s.partition for own in found.inputs.tasks.values() for s in own if s.system_stream == parsed})
        numbers = numbers or [0]  # that it is no input is found where all requests are checked
    for number in numbers:
        yield RequestKey(SystemStreamPartition(parsed.system, parsed.stream, number), name)


def _creation(found: StartpointJob, ssps: set[SystemStreamPartition]) -> int:
    """Now, but later than all earlier requests for these partitions, whatever the clocks of others say.
    Requests from the future go behind it anyhow."""
    there = [
        request for request in found.found.startpoints.requests() if request.key.ssp in ssps and not request.from_future
    ]
    before = [request.startpoint.creation_timestamp for request in there]
    return max([SYSTEM_CLOCK.now_ms(), *(created + 1 for created in before)])
