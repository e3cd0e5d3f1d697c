"""Where a start begins, given the requests there are. Pure, but for `resolve`, which asks the systems for offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from penstock.api.ssp import StreamPattern, SystemStream, SystemStreamPartition
from penstock.base.wording import argument, counted, flag, listed
from penstock.batch.batch import Positions, TaskSsp, to_positions
from penstock.checkpoint.edit import choose_origin
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.streams import STREAMS
from penstock.checkpoint.task_versions import versions_of
from penstock.config.settings import TaskSettings
from penstock.errors import IncompatibleError, NotFoundError, PenstockError, Refusals
from penstock.start.startpoint_request import (
    RequestKey,
    StartpointRequest,
    UnreadableRequest,
    WithState,
    how_to_delete,
    task_name,
)
from penstock.system.base import PartitionOffsets

Choice = TypeVar("Choice", bound=str)
Resolve: TypeAlias = Callable[[StartpointRequest], int]
"""The offset a request means now. Raises what `SystemAdmin.resolve_startpoint_to_offset` raises."""
TaskInputs: TypeAlias = Mapping[int, Collection[SystemStreamPartition]]
"""Task -> the partitions it reads. A broadcast partition is in every task that reads it."""


@dataclass(frozen=True, slots=True)
class WaitingStartpoints:
    """The requests for startpoints of a job. Each is in one of the four."""

    live: tuple[StartpointRequest, ...] = ()
    expired: tuple[StartpointRequest, ...] = ()
    taken: tuple[StartpointRequest, ...] = ()
    """An earlier start has taken it, and did not come to delete it."""
    unreadable: tuple[UnreadableRequest, ...] = ()
    """Every start leaves them out."""

    @property
    def readable(self) -> tuple[StartpointRequest, ...]:
        return (*self.live, *self.expired, *self.taken)

    @property
    def uuids(self) -> tuple[str, ...]:
        """The start checkpoint must name all of them, so that none is applied later."""
        return tuple(sorted({each.uuid for each in self.readable}))


@dataclass(frozen=True, slots=True)
class JobInputs:
    """The inputs of a job. `others` are further streams that it uses, with their use: they take no startpoint.
    `identities` distinguish the inputs from others of their names, `patterns` have found some of them."""

    tasks: TaskInputs
    ends: Mapping[SystemStreamPartition, PartitionOffsets]
    others: Mapping[SystemStream, str] = field(default_factory=dict)
    identities: Mapping[SystemStream, str] = field(default_factory=dict)
    patterns: tuple[StreamPattern, ...] = ()

    @property
    def readers(self) -> list[TaskSsp]:
        return [TaskSsp(task, ssp) for task, ssps in self.tasks.items() for ssp in ssps]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The checkpoints a start may begin with: `origin`, which it would begin with anyhow, and all that are retained,
    oldest first. `named`: somebody chose the origin (`from_checkpoint`)."""

    origin: CheckpointRecord | None
    retained: Sequence[CheckpointRecord]
    read_versions: Sequence[int]
    named: bool = False
    latest: CheckpointRecord | None = None
    """The last one that was written; None: it is the origin."""

    @classmethod
    def of(cls, view: LogView, settings: TaskSettings, wanted: str | None = None) -> Candidates:
        """The candidates in a log. `wanted` is the id that somebody chose. Raises as `choose_origin`."""
        origin = choose_origin(view, wanted, settings)
        versions = settings.checkpoint_read_versions
        return cls(origin, view.restorable, versions, named=wanted is not None, latest=view.latest)


@dataclass(frozen=True, slots=True)
class StartDecision:
    """Where the start begins: with the checkpoint `restore_from`, its positions moved to `offsets` where there are
    any, its state restored or, with `clear`, left behind. `requests` are those that count."""

    restore_from: CheckpointRecord | None
    offsets: Positions
    requests: Mapping[TaskSsp, StartpointRequest]
    with_state: WithState
    quiet_until: Positions = field(default_factory=dict)
    """The positions before which the run sends no output; empty: it sends all of it."""
    passed_over: tuple[CheckpointRecord, ...] = ()
    """The checkpoints that are nearer to the startpoints than `restore_from`, but whose state does not agree with their
    positions, oldest first."""

    @property
    def accepts_state(self) -> bool:
        """True if a request declares that the state agrees with positions that were moved while it stayed."""
        return any(request.accept_state for request in self.requests.values())

    @property
    def clears_state(self) -> bool:
        """True if every store begins empty although there is a checkpoint."""
        return self.with_state == "clear" and self.restore_from is not None


def sort_out(
    requests: Iterable[StartpointRequest],
    taken: Collection[str],
    now_ms: int,
    ttl_ms: int,
    unreadable: tuple[UnreadableRequest, ...] = (),
) -> WaitingStartpoints:
    """Sort requests; `taken` are the uuids in the checkpoint log."""
    live, expired, done = [], [], []
    for request in requests:
        if request.uuid in taken:
            done.append(request)
        elif request.is_expired(now_ms, ttl_ms):
            expired.append(request)
        else:
            live.append(request)
    return WaitingStartpoints(tuple(live), tuple(expired), tuple(done), unreadable)


def newest_of_keys(requests: Iterable[StartpointRequest]) -> dict[RequestKey, StartpointRequest]:
    """The request of each key that counts, if no request for another key does."""
    return {each.key: each for each in sorted(requests, key=lambda each: each.rank)}


def counting_requests(requests: Iterable[StartpointRequest], tasks: TaskInputs) -> dict[TaskSsp, StartpointRequest]:
    """The request that counts for every partition of every task that one applies to, by `StartpointRequest.rank`.

    One for a partition applies to every task that reads it; one for a partition and a task to that task.
    """
    by_ssp: dict[SystemStreamPartition, list[StartpointRequest]] = {}
    for request in sorted(requests, key=lambda each: each.rank):
        by_ssp.setdefault(request.key.ssp, []).append(request)
    return {
        TaskSsp(task, ssp): applying[-1]
        for task, ssps in tasks.items()
        for ssp in sorted(set(ssps) & by_ssp.keys())
        if (applying := [each for each in by_ssp[ssp] if each.key.task in {None, task_name(task)}])
    }


def decide_start(
    live: Sequence[StartpointRequest],
    inputs: JobInputs,
    checkpoints: Candidates,
    resolve: Resolve,
    new: Collection[StartpointRequest] = (),
) -> StartDecision:
    """Where the job begins. `new` are those of `live` that nobody has written yet.

    Raises:
        IncompatibleError: a request is for what the job does not read, cannot be resolved, or contradicts another
            one; or no retained checkpoint is near enough. Says which, and what to do.
    """
    refusals = Refusals("startpoints are refused")
    for request in live:
        if reason := _misplaced(request, inputs):
            refusals.note(_refused(request, reason, request not in new))
    found = counting_requests(live, inputs.tasks)
    offsets: dict[TaskSsp, int] = {}
    with refusals.noted():
        with_state = choose_state(found.values())
    for at, request in found.items():
        with refusals.noted():
            offsets[at] = _resolved(request, resolve, request not in new)
    refusals.check()
    quiet_until = choose_quiet(found.values(), checkpoints.latest or checkpoints.origin, inputs)
    if with_state != "nearest" or checkpoints.origin is None:
        return StartDecision(checkpoints.origin, offsets, found, with_state, quiet_until)
    if checkpoints.named:
        raise IncompatibleError(
            f"a startpoint was set with {argument('with_state', 'nearest')}, which chooses the checkpoint to begin "
            f"with, and {argument('from_checkpoint', str(checkpoints.origin.id))} names one. Leave that out, or delete "
            "the startpoint (`penstock startpoint list`)"
        )
    accepts = any(request.accept_state for request in found.values())
    try:
        near = nearest_checkpoint(offsets, checkpoints, inputs.ends, accepts_state=accepts)
    except IncompatibleError as error:
        asked = max((each for each in found.values() if each.with_state), key=lambda each: each.rank)
        raise _refused(asked, str(error), asked not in new) from error
    return StartDecision(near.record, {}, found, with_state, quiet_until, near.passed_over)


def choose_state(requests: Iterable[StartpointRequest]) -> WithState:
    """The choice that the requests make for the state; `keep` if none makes one.

    Raises:
        IncompatibleError: they do; names them.
    """
    return _one_choice(((each.with_state, each) for each in requests), "with_state", "one state") or "keep"


def _one_choice(said: Iterable[tuple[Choice | None, StartpointRequest]], name: str, has: str) -> Choice | None:
    """The only choice that was made, if there is one. Raises IncompatibleError if there are several. `has`: a job has
    that once."""
    made = {choice: request for choice, request in said if choice is not None}
    if len(made) > 1:
        which = " and ".join(
            f"{argument(name, choice)} ({request})" for choice, request in sorted(made.items(), key=str)
        )
        raise IncompatibleError(
            f"the startpoints contradict each other: {which}. A job has {has}: delete some of them (`penstock "
            "startpoint delete`), or set them again with the same choice"
        )
    return next(iter(made), None)


def choose_quiet(
    requests: Iterable[StartpointRequest], latest: CheckpointRecord | None, inputs: JobInputs
) -> dict[TaskSsp, int]:
    """The positions before which the run sends no output.

    Args:
        requests: those that count.
        latest: the last checkpoint.

    Raises:
        IncompatibleError: the requests contradict each other; an old position belongs to a stream that is gone; or
            messages that were read before wait in a durable intermediate stream, and their results were not sent.
    """
    choice = _one_choice(((each.with_output, each) for each in requests), "with_output", "one output")
    if latest is None or choice == "again":
        return {}
    gone = {stream for stream, own in latest.identities.items() if inputs.identities.get(stream, own) != own}
    known = {at for at in inputs.readers if at.ssp.system_stream not in gone}
    until = dict(to_positions(latest.quiet_until))
    if choice == "after":
        _refuse_after(latest, inputs, gone)
        for at, offset in to_positions(latest.next_offsets).items():
            until[at] = max(offset, until.get(at, offset))
    return {at: min(offset, inputs.ends[at.ssp].upcoming) for at, offset in until.items() if at in known}


def _refuse_after(latest: CheckpointRecord, inputs: JobInputs, gone: Collection[SystemStream]) -> None:
    after, again = argument("with_output", "after"), argument("with_output", "again")
    if lost := sorted({ssp.system_stream for ssp in inputs.ends}.intersection(gone)):
        raise IncompatibleError(
            f"{after} sends nothing before the old positions, and `{lost[0]}` was deleted and created again since: its "
            f"old position is in no stream any more. Delete the startpoint, or set it again with {again}"
        )
    waiting = sorted(stream for stream, each in latest.section(STREAMS).streams.items() if each.left())
    if waiting and not latest.quiet_until:
        raise IncompatibleError(
            f"{after} sends nothing before the old positions, and messages wait in `{waiting[0]}` whose results were "
            "not sent yet. Delete the startpoint, start the job and stop it when it has nothing left to read (or drain "
            f"it), and set the startpoint again; or set it with {again}"
        )


@dataclass(frozen=True, slots=True)
class NearestCheckpoint:
    """The checkpoint that a start goes back to, and the newer ones that are near enough and whose state does not agree
    with their positions."""

    record: CheckpointRecord
    passed_over: tuple[CheckpointRecord, ...] = ()


def nearest_checkpoint(
    wanted: Positions,
    checkpoints: Candidates,
    ends: Mapping[SystemStreamPartition, PartitionOffsets],
    *,
    accepts_state: bool = False,
) -> NearestCheckpoint:
    """The newest retained checkpoint whose offsets are all at or before the wanted ones, and can still be read, and
    whose state agrees with them: none of them was moved while the state stayed. With `accepts_state`, somebody declares
    that it agrees nevertheless.

    Raises:
        IncompatibleError: there is none; says what the oldest one has, and what can be done instead. Or the newest one
            has no version that may be read: an older one would have more processed and sent again.
    """
    before = [record for record in checkpoints.retained if _is_before(record, wanted)]
    if not before:
        raise IncompatibleError(_none_near(checkpoints.retained, wanted))
    fitting = [record for record in before if accepts_state or not record.moved]
    if not fitting:
        raise IncompatibleError(_none_agrees(before[-1]))
    record = fitting[-1]
    passed_over = tuple(each for each in before if each.id > record.id)
    there = versions_of(record)
    if there.isdisjoint(checkpoints.read_versions):
        raise IncompatibleError(
            f"checkpoint {record.id} is the newest one at or before the startpoints, and has no version that "
            f"task.checkpoint.read.versions allows ({','.join(map(str, checkpoints.read_versions))}). It has: "
            f"{', '.join(map(str, sorted(there))) or 'none'}. Add one of these to the key. {_ALTERNATIVES}"
        )
    for at, offset in to_positions(record.next_offsets).items():
        if at.ssp in ends and not ends[at.ssp].oldest <= offset <= ends[at.ssp].upcoming:
            raise IncompatibleError(
                f"checkpoint {record.id}, the newest one at or before the startpoints, would read `{at.ssp}` from "
                f"offset {offset}, but it holds {ends[at.ssp]}: the messages to read again were "
                f"deleted.{_although(passed_over)} {_ALTERNATIVES}"
            )
    return NearestCheckpoint(record, passed_over)


_ALTERNATIVES = (
    f"Choose a later position, or {argument('with_state', 'clear')}, which empties the stores, or "
    f"{argument('with_state', 'keep')}, which leaves them as they are"
)


def _misplaced(request: StartpointRequest, inputs: JobInputs) -> str | None:
    """Why the request is for nothing that the job reads; None if it is for something."""
    ssp, task = request.key.ssp, request.key.task
    readers = [task_name(number) for number, ssps in inputs.tasks.items() if ssp in ssps]
    if task is not None and readers and task not in readers:
        return f"`{task}` does not read `{ssp}`, which {', '.join(f'`{name}`' for name in readers)} do"
    if readers:
        return None
    stream = ssp.system_stream
    if stream in inputs.others:
        return f"`{stream}` is {inputs.others[stream]}"
    partitions = {each.partition for ssps in inputs.tasks.values() for each in ssps if each.system_stream == stream}
    if partitions:
        return f"input `{stream}` has {counted(len(partitions), 'partition')}, there is no {ssp.partition}"
    known = sorted({str(each.system_stream) for ssps in inputs.tasks.values() for each in ssps})
    return f"`{stream}` is not an input of the job, which reads {', '.join(f'`{k}`' for k in known)}"


def _refused(request: StartpointRequest, reason: str, waits: bool) -> IncompatibleError:
    delete = f". To delete this request, which waits for a start: `{how_to_delete(request.key)}`" if waits else ""
    return IncompatibleError(f"the startpoint for {request} cannot be applied: {reason}{delete}")


def _resolved(request: StartpointRequest, resolve: Resolve, waits: bool) -> int:
    try:
        return resolve(request)
    except (IncompatibleError, NotFoundError) as error:
        raise _refused(request, str(error), waits) from error
    except PenstockError as error:
        error.add_note(f"while the startpoint for {request} was resolved")
        raise


def _is_before(record: CheckpointRecord, wanted: Positions) -> bool:
    """A checkpoint from before an input was added does not say where that stood."""
    has = to_positions(record.next_offsets)
    return all(at in has and has[at] <= offset for at, offset in wanted.items())


def _none_agrees(record: CheckpointRecord) -> str:
    moved = listed([f"`{ssp}`" for ssp in record.moved])
    return (
        f"checkpoint {record.id} is at or before the startpoints, but its state does not agree with its offsets: the "
        f"position in {moved} was moved while the state stayed, and no retained checkpoint from before that is near "
        f"enough (task.checkpoint.retained). {_ALTERNATIVES}. If the state is right nevertheless, set the startpoint "
        f"with {flag('accept_state')}, which takes that checkpoint"
    )


def passing_over(passed_over: Sequence[CheckpointRecord]) -> str:
    """The checkpoints that a start passes over, and why, in a sentence; empty if there are none."""
    if not passed_over:
        return ""
    moved = listed([f"`{ssp}`" for ssp in sorted({ssp for record in passed_over for ssp in record.moved})])
    first, last = passed_over[0].id, passed_over[-1].id
    which = (
        f"checkpoint {first} is" if len(passed_over) == 1 else f"{len(passed_over)} checkpoints, {first} to {last}, are"
    )
    return (
        f"{which} nearer and passed over, because the position in {moved} was moved while the state stayed "
        f"({argument('with_state', 'keep')}): the state there has some messages twice or not at all. If it is right "
        f"nevertheless, set the startpoint with {flag('accept_state')}"
    )


def _although(passed_over: Sequence[CheckpointRecord]) -> str:
    text = passing_over(passed_over)
    return f" {text[0].upper()}{text[1:]}." if text else ""


def _none_near(retained: Sequence[CheckpointRecord], wanted: Positions) -> str:
    asked = {at.ssp: offset for at, offset in wanted.items()}
    oldest = retained[0]
    stands: dict[SystemStreamPartition, int] = {}
    for at, offset in to_positions(oldest.next_offsets).items():  # of a broadcast partition the task that is furthest
        stands[at.ssp] = max(offset, stands.get(at.ssp, offset))
    later = [
        f"`{ssp}` at {stands.get(ssp, 'no position at all')} (wanted {offset})"
        for ssp, offset in sorted(asked.items())
        if stands.get(ssp, offset + 1) > offset
    ]
    where = "; ".join(later) or ", ".join(f"`{ssp}` at {offset}" for ssp, offset in sorted(stands.items()))
    return (
        "no retained checkpoint has all its offsets at or before the wanted ones, so the state cannot go there with "
        f"the input; the oldest one, {oldest.id}, has {where} (task.checkpoint.retained). {_ALTERNATIVES}"
    )
