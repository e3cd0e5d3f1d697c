"""The startpoints that wait for the next start of a job, and what the last start made of those that it took."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from penstock.admin.job.logs import audited
from penstock.admin.jobs import FoundJob
from penstock.admin.samza import exported_lines
from penstock.admin.startpoint.inputs import StartpointJob, open_inputs
from penstock.api.requests import Startpoint
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.base.wording import argument, utc_text
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import NotFoundError, PenstockError
from penstock.facts import Column, Facts, FactTable
from penstock.start.positions import start_positions
from penstock.start.startpoint_request import (
    StartpointRequest,
    UnreadableRequest,
    WithOutput,
    WithState,
    kind_and_value,
    task_name,
    task_number,
)
from penstock.start.startpoints import TaskInputs, WaitingStartpoints, counting_requests, newest_of_keys

RequestStatus: TypeAlias = Literal["pending", "superseded", "expired", "taken", "unreadable"]
"""In this order: the next start applies it; another one takes its place; it is too old; an earlier start took it; it
is damaged. The next start deletes all of them but those that are damaged, which every start leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """A request for a startpoint. `kind` is `specific`, `timestamp`, `oldest` or `upcoming`; `value` is the offset, or
    epoch milliseconds. `resolves_to` is the offset that it means now; if that is not known, `problem` is the reason.
    If it is unreadable, `kind` is `unreadable`, and what is not known of it is None."""

    stream: Annotated[str, Column("stream")]
    partition: Annotated[int | None, Column("partition", right=True)]
    task: Annotated[str | None, Column("task")]
    kind: Annotated[
        str,
        Column("startpoint", of=lambda each: each.text),
        Column("means now", of=lambda each: each.resolves_to, optional=True, first_to_go=3),
        Column("state", of=lambda each: each.state_choice, first_to_go=4),
    ]
    value: str | int | None = None
    created_ms: Annotated[int | None, Column("made", utc_text, first_to_go=1)] = None
    expires_ms: Annotated[int | None, Column("expires", utc_text, first_to_go=2)] = None
    with_state: WithState | None = None
    clamp: bool = False
    uuid: str
    status: Annotated[RequestStatus, Column("status")]
    resolves_to: int | None = None
    problem: str | None = None
    with_output: WithOutput | None = None
    accept_state: bool = False

    @property
    def place(self) -> str:
        """The stream, and the partition and task where they are known."""
        task = None if self.task is None else f"of {self.task}"
        return " ".join(str(each) for each in (self.stream, self.partition, task) if each is not None)

    @property
    def text(self) -> str:
        """The startpoint for people."""
        quiet = ", without output before the old position" if self.with_output == "after" else ""
        if self.kind == "timestamp" and isinstance(self.value, int):
            return f"{utc_text(self.value)}{quiet}"
        clamp = ", or the nearest" if self.clamp else ""
        return f"{self.kind if self.value is None else f'offset {self.value}{clamp}'}{quiet}"

    @property
    def state_choice(self) -> str | None:
        """The fate of the state: `with_state`, or what it means when not given. None if the request is unreadable."""
        if self.status == "unreadable":
            return self.with_state
        return f"{self.with_state or 'keep'}{', accepted' if self.accept_state else ''}"


@dataclass(frozen=True, slots=True)
class MovedFacts:
    """A partition that a start moved from `before`, the next offset of the checkpoint before it, to `began_at`.
    `replayed` of the `to_replay` messages between have been read again; `skipped` will not be read."""

    task: int
    stream: Annotated[str, Column("stream")]
    partition: Annotated[int, Column("partition", right=True)]
    before: Annotated[int, Column("was at")]
    began_at: Annotated[int, Column("began at")]
    to_replay: Annotated[int, Column("read again", of=lambda each: f"{each.replayed} of {each.to_replay}")]
    replayed: int
    skipped: Annotated[int, Column("skipped", right=True)]


@dataclass(frozen=True, slots=True)
class TakenFacts:
    """The startpoints that a start of the last run took. `began_with` is the checkpoint with whose state and positions
    it began; `last` is the newest checkpoint before that start. They differ if the start went back with the state."""

    checkpoint: str
    began_with: str | None
    last: str | None
    requests: tuple[str, ...]
    moved: tuple[MovedFacts, ...]

    def as_facts(self) -> Facts:
        """The positions that the start moved."""
        went_back = self.last is not None and self.began_with != self.last
        note = f"note: the run began with state and positions of checkpoint {self.began_with}, not of {self.last}"
        table = FactTable(f"Moved by startpoints, at checkpoint {self.checkpoint}", self.moved)
        return Facts.some({}, table, notes=[note] if went_back else [])


def waiting_facts(requests: Sequence[RequestFacts], *, starts: bool = False) -> Facts:
    """The requests that wait, for people. `starts`: a start would refuse those with a problem."""
    troubles = [each for each in requests if each.problem is not None and (starts or each.status == "unreadable")]
    refused = {each: "" if each.status == "unreadable" else "the job will not start: " for each in troubles}
    notes = tuple(f"warning: {what}{each.problem}" for each, what in refused.items())
    return Facts({}, (FactTable("Startpoints that wait for the next start", requests),), notes)


def request_facts(
    requests: WaitingStartpoints,
    tasks: TaskInputs | None,
    ttl_ms: int,
    resolved: Mapping[StartpointRequest, int | str] | None = None,
) -> tuple[RequestFacts, ...]:
    """The requests of each kind. Without `tasks`, which of several counts is decided by key. `resolved` has offsets,
    or why there is none."""
    if tasks is None:
        winners = set(newest_of_keys(requests.live).values())
    else:
        known = {ssp for ssps in tasks.values() for ssp in ssps}
        counting = counting_requests(requests.live, tasks).values()
        winners = {*counting, *(r for r in requests.live if r.key.ssp not in known)}
    status: dict[StartpointRequest, RequestStatus] = {
        **{request: "pending" if request in winners else "superseded" for request in requests.live},
        **dict.fromkeys(requests.expired, "expired"),
        **dict.fromkeys(requests.taken, "taken"),
    }
    ordered = sorted(status, key=lambda each: (each.key.ssp, each.key.task or "", each.rank))
    readable = [_facts(request, status[request], ttl_ms, (resolved or {}).get(request)) for request in ordered]
    return (*readable, *map(_unreadable_facts, requests.unreadable))


def _unreadable_facts(request: UnreadableRequest) -> RequestFacts:
    folder, _, uuid = request.path.rpartition("/")
    key = request.key
    return RequestFacts(
        stream=folder if key is None else str(key.ssp.system_stream),
        partition=None if key is None else key.ssp.partition,
        task=None if key is None else key.task,
        kind="unreadable",
        uuid=uuid,
        status="unreadable",
        problem=str(request),
    )


def _facts(request: StartpointRequest, status: RequestStatus, ttl_ms: int, resolved: int | str | None) -> RequestFacts:
    kind, value = kind_and_value(request.startpoint)
    return RequestFacts(
        stream=str(request.key.ssp.system_stream),
        partition=request.key.ssp.partition,
        task=request.key.task,
        kind=kind,
        value=value,
        created_ms=request.startpoint.creation_timestamp,
        expires_ms=request.startpoint.creation_timestamp + ttl_ms,
        with_state=request.with_state,
        clamp=request.clamp,
        uuid=request.uuid,
        status=status,
        resolves_to=resolved if isinstance(resolved, int) else None,
        problem=resolved if isinstance(resolved, str) else None,
        with_output=request.with_output,
        accept_state=request.accept_state,
    )


def taken_facts(view: LogView) -> TakenFacts | None:
    """The effect of startpoints at the last run's last start with any; None if the log has no such start."""
    checkpoints = view.checkpoints
    if not checkpoints:
        return None
    run = checkpoints[-1].run_id
    starts = [r for r in checkpoints if r.run_id == run and r.kind_detail == "start" and r.consumed_startpoints]
    if not starts:
        return None
    # A start that was tried again has several records that say the same; the first one moved the positions.
    start = next(record for record in starts if record.consumed_startpoints == starts[-1].consumed_startpoints)
    earlier = [record for record in checkpoints if record.id < start.id and record.epoch < start.epoch]
    before = earlier[-1] if earlier else None
    return TakenFacts(
        checkpoint=str(start.id),
        began_with=None if start.parent is None else str(start.parent),
        last=None if before is None else str(before.id),
        requests=start.consumed_startpoints,
        moved=() if before is None else _moved(before, start, checkpoints),
    )


def _moved(
    before: CheckpointRecord, start: CheckpointRecord, checkpoints: Sequence[CheckpointRecord]
) -> tuple[MovedFacts, ...]:
    now = checkpoints[-1]
    found = []
    for task, own in sorted(start.next_offsets.items()):
        for ssp, began_at in sorted(own.items()):
            stood = before.next_offsets.get(task, {}).get(ssp)
            if stood is None or stood == began_at:
                continue
            reads_at = now.next_offsets.get(task, {}).get(ssp, began_at)
            found.append(
                MovedFacts(
                    task,
                    str(ssp.system_stream),
                    ssp.partition,
                    stood,
                    began_at,
                    to_replay=max(0, stood - began_at),
                    replayed=max(0, min(reads_at, stood) - began_at),
                    skipped=max(0, began_at - stood),
                )
            )
    return tuple(found)


def parse_task(text: str | None) -> str | None:
    """A task's name, given by its number or as a whole. Raises ConfigError if it is neither."""
    if text is None:
        return None
    return (
        task_name(int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else task_name(task_number(text))
    )


@dataclass(frozen=True, slots=True)
class DeletedFacts:
    """The requests that were deleted, of a job."""

    job: str
    deleted: tuple[RequestFacts, ...]


@dataclass(frozen=True, slots=True)
class ExportedStartpoints:
    """Messages of Samza's coordinator stream as JSON texts, and notes about what these leave out."""

    lines: tuple[str, ...]
    notes: tuple[str, ...]


def startpoints(job: FoundJob, *, resolve: bool = True) -> tuple[RequestFacts, ...]:
    """The startpoints that wait for the job's next start.

    Args:
        job: the job.
        resolve: find the offsets that they mean now, in the inputs.

    Raises:
        NotFoundError, ConfigError: with `resolve`, the job's inputs are not known.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     admin.startpoints(job)
        ()
    """
    requests, ttl_ms = job.startpoints.waiting(), job.config.job.startpoint_ttl_ms
    if not resolve:
        return request_facts(requests, None, ttl_ms)
    with open_inputs(job) as whole:
        resolved = {request: _resolved(whole, request) for request in requests.live}
        return request_facts(requests, whole.inputs.tasks, ttl_ms, resolved)


def delete_startpoints(
    job: FoundJob, stream: str, *, partitions: Collection[int] | None = None, task: str | None = None
) -> DeletedFacts:
    """Delete startpoints that no start has taken yet.

    Args:
        job: the job.
        stream: `system.stream`.
        partitions: the numbers of the partitions; all, if None.
        task: the number or name (`Partition 3`) of the task whose startpoints to delete; those for no particular task,
            if None.

    Raises:
        NotFoundError: there is no such startpoint.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     _ = admin.set_startpoint(job, "local.trips", ps.StartpointOldest(), with_state="keep")
        ...     [each.partition for each in admin.delete_startpoints(job, "local.trips", partitions=[1]).deleted]
        [1]
    """
    wanted, name = SystemStream.parse(stream), parse_task(task)
    requests = job.startpoints.waiting()

    def is_meant(request: StartpointRequest | UnreadableRequest) -> bool:
        key = request.key
        if key is None or key.ssp.system_stream != wanted or key.task != name:
            return False
        return partitions is None or key.ssp.partition in partitions

    meant = WaitingStartpoints(
        tuple(filter(is_meant, requests.live)),
        tuple(filter(is_meant, requests.expired)),
        tuple(filter(is_meant, requests.taken)),
        tuple(filter(is_meant, requests.unreadable)),
    )
    every: tuple[StartpointRequest | UnreadableRequest, ...] = (*meant.readable, *meant.unreadable)
    if not every:
        raise NotFoundError(
            f"there is no such startpoint for `{stream}`: `penstock startpoint list {job.paths.root}` lists those "
            f"that wait. For a startpoint of a single task, give {argument('task')}"
        )
    facts = request_facts(meant, None, job.config.job.startpoint_ttl_ms)
    with audited(job, "startpoint delete", {each.place: f"{each.text} -> none" for each in facts}):
        job.startpoints.delete(every)
    return DeletedFacts(job.paths.root, facts)


def export_startpoints(job: FoundJob) -> ExportedStartpoints:
    """The waiting startpoints in the form of Samza's coordinator stream.

    Samza has none of `with_state`, `with_output`, `clamp` and `accept_state`: they are left out, `notes` names them.

    Args:
        job: the job.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     _ = admin.set_startpoint(job, "local.trips", ps.StartpointOldest(), partitions=[0], with_state="keep")
        ...     print(admin.export_startpoints(job).lines[0])
        {"key":"[1,...local.trips.0...]","value":"{...StartpointOldest...}"}
    """
    requests = job.startpoints.waiting()
    lines, notes = exported_lines(requests.live)
    return ExportedStartpoints(tuple(lines), (*notes, *map(str, requests.unreadable)))


def _resolved(job: StartpointJob, request: StartpointRequest) -> int | str:
    try:
        job.decide([request])
        return job.resolve(request)
    except PenstockError as error:
        return str(error)


@dataclass(frozen=True, slots=True)
class FannedOut:
    """The startpoint that counts for a partition of a task, and the offset of the first message that the task would
    read there. With the state `nearest`, that is the offset of the checkpoint that the start would go back to."""

    startpoint: Startpoint
    offset: int


def fan_out(job: FoundJob) -> Mapping[str, Mapping[SystemStreamPartition, FannedOut]]:
    """The startpoints that the next start would give each task, as SEP-18's `fanOut` makes them. Nothing is written: a
    start fans them out by itself, at once, in its first checkpoint.

    A startpoint for a partition goes to every task that reads it, one for a task to that task alone. Of several, the
    last one counts. Tasks and partitions without a startpoint are left out.

    Args:
        job: the job. Open it with its application if it has no checkpoint yet, or an input is new.

    Returns:
        By the name of the task, as `Partition 3`, and by partition.

    Raises:
        ConfigError, NotFoundError: the job's inputs are not known.
        IncompatibleError: a start would refuse the startpoints.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     _ = admin.set_startpoint(job, "local.trips", ps.StartpointSpecific("1"), partitions=[0])
        ...     found = admin.fan_out(job)
        ...     _ = admin.delete_startpoints(job, "local.trips")
        >>> [(task, str(ssp), each.offset) for task, own in found.items() for ssp, each in own.items()]
        [('Partition 0', 'local.trips.0', 1)]
    """
    with open_inputs(job) as found:
        decision = found.decide(job.startpoints.waiting(found.view).live)
        positions = start_positions(decision, found.inputs, job.config)
        given: dict[str, dict[SystemStreamPartition, FannedOut]] = {}
        for at, request in sorted(decision.requests.items()):
            given.setdefault(task_name(at.task), {})[at.ssp] = FannedOut(request.startpoint, positions[at])
        return given
