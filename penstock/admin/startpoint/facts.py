"""Startpoints: the requests that wait, and what the last start made of those it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from penstock.base.wording import utc_text
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.facts import Column, Facts, FactTable
from penstock.start.startpoints.decide import TaskInputs, WaitingStartpoints, counting_requests, newest_of_keys
from penstock.start.startpoints.request import (
    StartpointRequest,
    UnreadableRequest,
    WithOutput,
    WithState,
    kind_and_value,
)

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
