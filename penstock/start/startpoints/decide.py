"""Where a start begins, given the requests there are. Pure, but for `resolve`, which asks the systems for offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.versions.table import versions_of
from penstock.errors import IncompatibleError, NotFoundError, PenstockError
from penstock.start.startpoints.fan_out import FanOut, TaskInputs, counting, fan_out
from penstock.start.startpoints.request import StartpointRequest, WithState, how_to_delete, task_name
from penstock.system.base import PartitionOffsets
from penstock.wording import argument, counted

Resolve: TypeAlias = Callable[[StartpointRequest], int]
"""The offset a request means now. Raises what `SystemAdmin.resolve_startpoint_to_offset` raises."""
TaskOffsets: TypeAlias = Mapping[str, Mapping[SystemStreamPartition, int]]
"""Task name -> partition -> offset."""


@dataclass(frozen=True, slots=True)
class Sorted:
    """The requests that a start found. Each is in one of the three."""

    live: tuple[StartpointRequest, ...]
    expired: tuple[StartpointRequest, ...]
    taken: tuple[StartpointRequest, ...]
    """An earlier start has taken it, and did not come to delete it."""

    @property
    def uuids(self) -> tuple[str, ...]:
        """The start checkpoint must name all of them, so that none is applied later."""
        return tuple(sorted({each.uuid for each in (*self.live, *self.expired, *self.taken)}))


@dataclass(frozen=True, slots=True)
class JobInputs:
    """The inputs of a job. `others` are further streams that it uses, with their use: they take no startpoint.
    `identities` distinguish the inputs from others of their names."""

    tasks: TaskInputs
    ends: Mapping[SystemStreamPartition, PartitionOffsets]
    others: Mapping[SystemStream, str] = field(default_factory=dict)
    identities: Mapping[SystemStream, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The checkpoints a start may begin with: `origin`, which it would begin with anyhow, and all that are retained,
    oldest first. `named`: somebody chose the origin (`from_checkpoint`)."""

    origin: CheckpointRecord | None
    retained: Sequence[CheckpointRecord]
    read_versions: Sequence[int]
    named: bool = False


@dataclass(frozen=True, slots=True)
class StartDecision:
    """Where the start begins: with the checkpoint `restore_from`, its positions moved to `offsets` where there are
    any, its state restored or, with `clear`, left behind. `requests` are those that count."""

    restore_from: CheckpointRecord | None
    offsets: TaskOffsets
    requests: FanOut
    with_state: WithState

    @property
    def clears_state(self) -> bool:
        """True if every store begins empty although there is a checkpoint."""
        return self.with_state == "clear" and self.restore_from is not None


def sort_out(requests: Iterable[StartpointRequest], taken: Collection[str], now_ms: int, ttl_ms: int) -> Sorted:
    """Sort requests; `taken` are the uuids in the checkpoint log."""
    live, expired, done = [], [], []
    for request in requests:
        if request.uuid in taken:
            done.append(request)
        elif request.is_expired(now_ms, ttl_ms):
            expired.append(request)
        else:
            live.append(request)
    return Sorted(tuple(live), tuple(expired), tuple(done))


def taken_uuids(checkpoints: Iterable[CheckpointRecord]) -> frozenset[str]:
    """The requests that starts of a job have taken, by the checkpoints in its log."""
    return frozenset(uuid for record in checkpoints for uuid in record.consumed_startpoints)


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
    for request in live:
        if reason := _misplaced(request, inputs):
            raise _refused(request, reason, request not in new)
    found = fan_out(live, inputs.tasks)
    with_state = choose_state(counting(found))
    offsets = {
        task: {ssp: _resolved(request, resolve, request not in new) for ssp, request in own.items()}
        for task, own in found.items()
    }
    if with_state != "nearest" or checkpoints.origin is None:
        return StartDecision(checkpoints.origin, offsets, found, with_state)
    if checkpoints.named:
        raise IncompatibleError(
            f"a startpoint was set with {argument('with_state', 'nearest')}, which chooses the checkpoint to begin "
            f"with, and {argument('from_checkpoint', str(checkpoints.origin.id))} names one. Leave that out, or delete "
            "the startpoint (`penstock startpoint list`)"
        )
    return StartDecision(nearest_checkpoint(offsets, checkpoints, inputs.ends), {}, found, with_state)


def choose_state(requests: Iterable[StartpointRequest]) -> WithState:
    """The choice that the requests make for the state; `keep` if none makes one.

    Raises:
        IncompatibleError: they do; names them.
    """
    said = {request.with_state: request for request in requests if request.with_state is not None}
    if len(said) > 1:
        which = " and ".join(
            f"{argument('with_state', choice)} ({request})" for choice, request in sorted(said.items(), key=str)
        )
        raise IncompatibleError(
            f"the startpoints contradict each other: {which}. A job has one state: delete some of them (`penstock "
            "startpoint delete`), or set them again with the same choice"
        )
    return next((choice for choice in said if choice is not None), "keep")


def nearest_checkpoint(
    wanted: TaskOffsets, checkpoints: Candidates, ends: Mapping[SystemStreamPartition, PartitionOffsets]
) -> CheckpointRecord:
    """The newest retained checkpoint whose offsets are all at or before the wanted ones, and can still be read.

    Raises:
        IncompatibleError: there is none; says what the oldest one has, and what can be done instead. Or the newest one
            has no version that may be read: an older one would have more processed and sent again.
    """
    fitting = [record for record in checkpoints.retained if _is_before(record, wanted)]
    if not fitting:
        raise IncompatibleError(_none_near(checkpoints.retained, wanted))
    record = fitting[-1]
    there = versions_of(record)
    if there.isdisjoint(checkpoints.read_versions):
        raise IncompatibleError(
            f"checkpoint {record.id} is the newest one at or before the startpoints, and has no version that "
            f"task.checkpoint.read.versions allows ({','.join(map(str, checkpoints.read_versions))}). It has: "
            f"{', '.join(map(str, sorted(there))) or 'none'}. Add one of these to the key. {_ALTERNATIVES}"
        )
    for own in record.next_offsets.values():
        for ssp, offset in own.items():
            if ssp in ends and not ends[ssp].oldest <= offset <= ends[ssp].upcoming:
                raise IncompatibleError(
                    f"checkpoint {record.id}, the newest one at or before the startpoints, would read `{ssp}` from "
                    f"offset {offset}, but it holds {ends[ssp]}: the messages to read again were "
                    f"deleted. {_ALTERNATIVES}"
                )
    return record


_ALTERNATIVES = (
    f"Choose a later position, or {argument('with_state', 'clear')}, which empties the stores, or "
    f"{argument('with_state', 'keep')}, which leaves them as they are"
)


def _misplaced(request: StartpointRequest, inputs: JobInputs) -> str | None:
    """Why the request is for nothing that the job reads; None if it is for something."""
    ssp, task = request.key.ssp, request.key.task
    readers = [name for name, ssps in inputs.tasks.items() if ssp in ssps]
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
    delete = f". {_how_to_delete(request)}" if waits else ""
    return IncompatibleError(f"the startpoint for {request} cannot be applied: {reason}{delete}")


def _how_to_delete(request: StartpointRequest) -> str:
    return f"To delete this request, which waits for a start: `{how_to_delete(request.key)}`"


def _resolved(request: StartpointRequest, resolve: Resolve, waits: bool) -> int:
    try:
        return resolve(request)
    except (IncompatibleError, NotFoundError) as error:
        raise _refused(request, str(error), waits) from error
    except PenstockError as error:
        error.add_note(f"while the startpoint for {request} was resolved")
        raise


def _is_before(record: CheckpointRecord, wanted: TaskOffsets) -> bool:
    """A checkpoint from before an input was added does not say where that stood."""
    has = {task_name(task): own for task, own in record.next_offsets.items()}
    return all(
        ssp in has.get(task, {}) and has[task][ssp] <= offset
        for task, own in wanted.items()
        for ssp, offset in own.items()
    )


def _none_near(retained: Sequence[CheckpointRecord], wanted: TaskOffsets) -> str:
    asked = {ssp: offset for own in wanted.values() for ssp, offset in own.items()}
    oldest = retained[0]
    stands: dict[SystemStreamPartition, int] = {}
    for own in oldest.next_offsets.values():
        for ssp, offset in own.items():  # of a broadcast partition the task that is furthest
            stands[ssp] = max(offset, stands.get(ssp, offset))
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
