"""The records of the checkpoint log, and their written form.

A record is one JSON object: `format`, `kind`, `body`, and `checksum`, the SHA-256 of the object's canonical form
(keys sorted, no white space, UTF-8) without the `checksum` itself. Every later format keeps these four.

A record is written in the oldest format that can say it: claims in 1; checkpoints in 2, which adds `retained`, or in 1
if they say nothing about it; and in 3 if the application uses event time, with `event-times`, `watermarks` and
`ended-inputs`. Format 4 adds `reset-operators`, for a start that cleared operators; format 5 `drains`, for the end of a
run that drained, and format 6 `intermediate`, if the application has durable intermediate streams. Format 7 adds
`outbox`, `unpublished`, `keepers` and `publisher` for output that is published exactly once, and `lost` for
inputs and `identities` for inputs and such outputs. Format 8 adds `offered`, for a job inside a streaming query.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import orjson
from msgspec import Struct

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.checkpoint.id import CheckpointId
from penstock.checkpoint.intermediate import Intermediate, Written
from penstock.documents import Count, Positive, convert, decoding, number
from penstock.errors import CorruptError, IncompatibleError
from penstock.outbox.document import ObjectDocument, UnpublishedDocument, objects_body, unpublished_body
from penstock.outbox.unpublished import OutboxObject, Unpublished

_FORMATS = {"claim": 1, "checkpoint": 8}
"""The newest format of each kind."""

Detail: TypeAlias = Literal["start", "commit"]
Closing: TypeAlias = Literal["end-of-stream", "drained"]
Ended: TypeAlias = Literal["stopped"] | Closing


@dataclass(frozen=True, slots=True)
class Claim:
    """From here on the log belongs to `epoch`. `writer` is a random token by which a lost reply is recognised."""

    epoch: int
    run_id: str
    writer: str


@dataclass(frozen=True, slots=True)
class Offered:
    """The last batch that a streaming query has handed over to the job inside it."""

    plan: str = ""
    """What tells it from other batches of its number: a query whose checkpoint location was set back plans them again.
    Empty: that is not known."""
    has_output: bool = True
    """Whether the objects that the record names are the output of it."""
    schema: str = ""
    """What tells the columns of its outputs from others; empty: that is not known."""


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One checkpoint of the whole job: all tasks, all versions, visible together.

    `kind_detail` is `start` for the checkpoint a run writes before its first batch (SEP-18), else `commit`.
    `batch` is the last batch that had ended, `batch_time_ms` the largest batch time so far. `next_offsets` has every
    (task, SSP), also where nothing was read. `tasks` maps a task to its serialized values by version, `"2"` and
    where asked for `"1"`. `stores` are the stores covered, each with a text that tells whether an application fits it
    (`StoreLayout`); each needs a usable marker in every task's V2 value.
    `ended` says that the run ended with this checkpoint, and how.
    `retained` maps slots to the ids of the older checkpoints that are kept and can be restored as of this record; it
    never has one that the checkpoint before did not keep. None, as in format 1: everything that one kept, and itself.
    `event_times` has the highest event time that each task has read of each partition, in epoch milliseconds, and
    `watermarks` the firing watermark of each operator in the last batch. Both are empty if the application does not use
    event time, before the first message, and after a batch that ended the job's stream or drained it.
    `ended_inputs` are the partitions that have ended: nothing waits for them.
    `reset_operators` are the operators that the start cleared: their own stores and watermarks are not those of the
    checkpoint before.
    `drains` are the uuids of the requests to drain that the end of the run has answered.
    `intermediate` has what the job knows of each durable intermediate stream, and `intermediate_layout` a text that
    tells whether an application reads what is in it: the serdes of its keys and values.
    `outbox` are the objects with the exactly-once output up to this checkpoint that no record before it names. They are
    published under the number of this record in the log. `unpublished` are those of earlier records that its writer
    had not seen published, ascending by slot. `keepers` are the systems that anything was ever to be published to:
    they keep how far that is, under the name `publisher`.
    `lost` counts, by input partition, the offsets that were gone before the job had read them. `identities` tells each
    input and each exactly-once output from another stream of its name (`SystemAdmin.stream_identity`).
    `offered` is the last batch of the query that the job runs inside.
    """

    id: CheckpointId
    parent: CheckpointId | None
    epoch: int
    run_id: str
    writer: str
    task_count: int
    batch: int
    batch_time_ms: int
    stores: Mapping[str, str]
    next_offsets: Mapping[int, Mapping[SystemStreamPartition, int]]
    tasks: Mapping[int, Mapping[str, str]]
    kind_detail: Detail = "commit"
    partitioner: str = "murmur2"
    ended: Ended | None = None
    consumed_startpoints: tuple[str, ...] = ()
    retained: Mapping[int, CheckpointId] | None = None
    event_times: Mapping[int, Mapping[SystemStreamPartition, int]] = field(default_factory=dict)
    watermarks: Mapping[str, int] = field(default_factory=dict)
    ended_inputs: tuple[SystemStreamPartition, ...] = ()
    reset_operators: tuple[str, ...] = ()
    drains: tuple[str, ...] = ()
    intermediate: Mapping[SystemStream, Intermediate] = field(default_factory=dict)
    intermediate_layout: Mapping[SystemStream, str] = field(default_factory=dict)
    outbox: tuple[OutboxObject, ...] = ()
    unpublished: tuple[Unpublished, ...] = ()
    keepers: tuple[str, ...] = ()
    publisher: str = ""
    lost: Mapping[SystemStreamPartition, int] = field(default_factory=dict)
    identities: Mapping[SystemStream, str] = field(default_factory=dict)
    offered: Offered | None = None

    @property
    def closing(self) -> Closing | None:
        """How everything that waited for time came to fire; None if it did not."""
        return self.ended if self.ended == "end-of-stream" or self.ended == "drained" else None

    @property
    def is_closed(self) -> bool:
        """Whether everything that waited for event time has fired: no event time counts after it."""
        return self.closing is not None


Record: TypeAlias = Claim | CheckpointRecord


def encode_record(record: Record) -> bytes:
    """The written form: the same bytes for equal records."""
    kind = "claim" if isinstance(record, Claim) else "checkpoint"
    document: dict[str, object] = {"format": _format(record), "kind": kind, "body": _body(record)}
    return _canonical(document | {"checksum": _checksum(document)})


def decode_record(data: bytes, key: str) -> Record:
    """Read a record; `key` names it in errors.

    Raises:
        CorruptError: the bytes are damaged; a record is never skipped, so go back with `--from` or repair the object.
        IncompatibleError: a newer Penstock wrote it.
    """
    document = _parse(data, key)
    if not 1 <= document["format"] <= _FORMATS.get(document["kind"], 0):
        known = ", ".join(f"{kind} up to format {newest}" for kind, newest in _FORMATS.items())
        raise IncompatibleError(
            f"record `{key}` is a `{document['kind']}` of format {document['format']}; this Penstock reads {known}. "
            "Run the version that wrote it, or a newer one"
        )
    with decoding(f"record `{key}` has a checksum that fits but a body that does not"):
        return convert(_BODIES[document["kind"], document["format"]], document["body"]).record()


def _format(record: Record) -> int:
    """The oldest format that can say it."""
    if isinstance(record, Claim):
        return 1
    if record.offered is not None:
        return 8
    if record.outbox or record.unpublished or record.keepers or record.lost or record.identities:
        return 7
    if record.intermediate:
        return 6
    if record.drains:
        return 5
    if record.reset_operators:
        return 4
    if record.event_times or record.watermarks or record.ended_inputs:
        return 3
    return 1 if record.retained is None else 2


def _body(record: Record) -> dict[str, object]:
    owner: dict[str, object] = {"epoch": record.epoch, "run-id": record.run_id, "writer": record.writer}
    if isinstance(record, Claim):
        return owner
    retained = record.retained
    body = owner | {
        "id": str(record.id),
        "parent": None if record.parent is None else str(record.parent),
        "detail": record.kind_detail,
        "ended": record.ended,
        "task-count": record.task_count,
        "partitioner": record.partitioner,
        "batch": record.batch,
        "batch-time-ms": record.batch_time_ms,
        "stores": dict(record.stores),
        "next-offsets": _by_task(record.next_offsets),
        "tasks": {str(task): dict(values) for task, values in record.tasks.items()},
        "consumed-startpoints": list(record.consumed_startpoints),
    }
    if retained is not None:
        body["retained"] = {str(slot): str(checkpoint_id) for slot, checkpoint_id in retained.items()}
    if _format(record) >= 3:
        body |= {
            "retained": body.get("retained"),
            "event-times": _by_task(record.event_times),
            "watermarks": dict(record.watermarks),
            "ended-inputs": [str(ssp) for ssp in record.ended_inputs],
        }
    if _format(record) >= 4:
        body["reset-operators"] = list(record.reset_operators)
    if _format(record) >= 5:
        body["drains"] = list(record.drains)
    if _format(record) >= 6:
        body["intermediate"] = {
            str(stream): {"layout": record.intermediate_layout[stream], **_intermediate_body(own)}
            for stream, own in record.intermediate.items()
        }
    if _format(record) >= 7:
        body |= {
            "outbox": objects_body(record.outbox),
            "unpublished": unpublished_body(record.unpublished),
            "keepers": list(record.keepers),
            "publisher": record.publisher,
            "lost": {str(ssp): count for ssp, count in record.lost.items()},
            "identities": {str(stream): identity for stream, identity in record.identities.items()},
        }
    if record.offered is not None:
        offered = {"plan": record.offered.plan, "has-output": record.offered.has_output}
        schema = {"schema": record.offered.schema} if record.offered.schema else {}
        body["offered"] = offered | schema
    return body


def _intermediate_body(own: Intermediate) -> dict[str, object]:
    return {
        "generation": own.generation,
        "watermark": own.watermark,
        "positions": {str(partition): offset for partition, offset in own.positions.items()},
        "unread": [
            {
                "batch": written.batch,
                "watermark": written.watermark,
                "ranges": {str(partition): ranges for partition, ranges in written.ranges.items()},
            }
            for written in own.unread
        ],
    }


def _by_task(values: Mapping[int, Mapping[SystemStreamPartition, int]]) -> dict[str, dict[str, int]]:
    return {str(task): {str(ssp): value for ssp, value in own.items()} for task, own in values.items()}


def _of_tasks(values: Mapping[str, Mapping[str, int]]) -> dict[int, dict[SystemStreamPartition, int]]:
    return {
        number(task): {SystemStreamPartition.parse(ssp): value for ssp, value in own.items()}
        for task, own in values.items()
    }


_Time: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""Epoch milliseconds, also before 1970."""


class _Claim(Struct, rename="kebab"):
    """The body of a claim."""

    epoch: Count
    run_id: str
    writer: str

    def record(self) -> Record:
        return Claim(self.epoch, self.run_id, self.writer)


class _Checkpoint(Struct, rename="kebab"):
    """The body of a checkpoint in format 1."""

    id: str
    parent: str | None
    epoch: Count
    run_id: str
    writer: str
    task_count: Count
    batch: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
    batch_time_ms: Count
    stores: dict[str, str]
    next_offsets: dict[str, dict[str, Count]]
    tasks: dict[str, dict[str, str]]
    detail: Detail
    partitioner: str
    ended: Ended | None
    consumed_startpoints: tuple[str, ...]

    def record(self) -> CheckpointRecord:
        return CheckpointRecord(
            id=CheckpointId.parse(self.id),
            parent=None if self.parent is None else CheckpointId.parse(self.parent),
            epoch=self.epoch,
            run_id=self.run_id,
            writer=self.writer,
            task_count=self.task_count,
            batch=self.batch,
            batch_time_ms=self.batch_time_ms,
            stores=self.stores,
            next_offsets=_of_tasks(self.next_offsets),
            tasks={number(task): values for task, values in self.tasks.items()},
            kind_detail=self.detail,
            partitioner=self.partitioner,
            ended=self.ended,
            consumed_startpoints=self.consumed_startpoints,
        )


class _CheckpointWithRetained(_Checkpoint, rename="kebab"):
    """The body of a checkpoint in format 2."""

    retained: dict[str, str] | None

    def record(self) -> CheckpointRecord:
        made = _Checkpoint.record(self)
        if self.retained is None:
            return made
        return replace(made, retained={number(slot): CheckpointId.parse(each) for slot, each in self.retained.items()})


class _CheckpointWithTimes(_CheckpointWithRetained, rename="kebab"):
    """The body of a checkpoint in format 3."""

    event_times: dict[str, dict[str, _Time]]
    watermarks: dict[str, _Time]
    ended_inputs: tuple[str, ...]

    def record(self) -> CheckpointRecord:
        return replace(
            _CheckpointWithRetained.record(self),
            event_times=_of_tasks(self.event_times),
            watermarks=self.watermarks,
            ended_inputs=tuple(SystemStreamPartition.parse(ssp) for ssp in self.ended_inputs),
        )


class _CheckpointWithReset(_CheckpointWithTimes, rename="kebab"):
    """The body of a checkpoint in format 4."""

    reset_operators: tuple[str, ...]

    def record(self) -> CheckpointRecord:
        return replace(_CheckpointWithTimes.record(self), reset_operators=self.reset_operators)


class _CheckpointOfDrain(_CheckpointWithReset, rename="kebab"):
    """The body of a checkpoint in format 5."""

    drains: tuple[str, ...]

    def record(self) -> CheckpointRecord:
        return replace(_CheckpointWithReset.record(self), drains=self.drains)


class _Written(Struct, rename="kebab"):
    """What a batch wrote to a durable intermediate stream."""

    batch: Count
    watermark: _Time
    ranges: dict[str, tuple[tuple[Count, Count], ...]]

    def written(self) -> Written:
        return Written(self.batch, self.watermark, {number(at): ranges for at, ranges in self.ranges.items()})


class _Intermediate(Struct, rename="kebab"):
    """A durable intermediate stream."""

    layout: str
    generation: Positive
    watermark: _Time
    positions: dict[str, Count]
    unread: tuple[_Written, ...]

    def intermediate(self) -> Intermediate:
        positions = {number(partition): offset for partition, offset in self.positions.items()}
        return Intermediate(self.generation, self.watermark, positions, tuple(each.written() for each in self.unread))


class _CheckpointBetweenStreams(_CheckpointOfDrain, rename="kebab"):
    """The body of a checkpoint in format 6."""

    intermediate: dict[str, _Intermediate]

    def record(self) -> CheckpointRecord:
        by_stream = {SystemStream.parse(stream): own for stream, own in self.intermediate.items()}
        return replace(
            _CheckpointOfDrain.record(self),
            intermediate={stream: own.intermediate() for stream, own in by_stream.items()},
            intermediate_layout={stream: own.layout for stream, own in by_stream.items()},
        )


class _CheckpointWithOutbox(_CheckpointBetweenStreams, rename="kebab"):
    """The body of a checkpoint in format 7."""

    outbox: tuple[ObjectDocument, ...]
    unpublished: tuple[UnpublishedDocument, ...]
    keepers: tuple[str, ...]
    publisher: str
    lost: dict[str, Count]
    identities: dict[str, str]

    def record(self) -> CheckpointRecord:
        return replace(
            _CheckpointBetweenStreams.record(self),
            outbox=tuple(each.object() for each in self.outbox),
            unpublished=tuple(each.unpublished() for each in self.unpublished),
            keepers=self.keepers,
            publisher=self.publisher,
            lost={SystemStreamPartition.parse(ssp): count for ssp, count in self.lost.items()},
            identities={SystemStream.parse(stream): identity for stream, identity in self.identities.items()},
        )


class _Offered(Struct, rename="kebab"):
    """The last batch of a query."""

    plan: str
    has_output: bool
    schema: str = ""
    """Records had none when queries could not be drained."""


class _CheckpointInQuery(_CheckpointWithOutbox, rename="kebab"):
    """The body of a checkpoint in format 8."""

    offered: _Offered

    def record(self) -> CheckpointRecord:
        last = Offered(self.offered.plan, self.offered.has_output, self.offered.schema)
        return replace(_CheckpointWithOutbox.record(self), offered=last)


_BODIES: Mapping[tuple[str, int], type[_Claim | _Checkpoint]] = {
    ("claim", 1): _Claim,
    ("checkpoint", 1): _Checkpoint,
    ("checkpoint", 2): _CheckpointWithRetained,
    ("checkpoint", 3): _CheckpointWithTimes,
    ("checkpoint", 4): _CheckpointWithReset,
    ("checkpoint", 5): _CheckpointOfDrain,
    ("checkpoint", 6): _CheckpointBetweenStreams,
    ("checkpoint", 7): _CheckpointWithOutbox,
    ("checkpoint", 8): _CheckpointInQuery,
}


def _parse(data: bytes, key: str) -> dict[str, Any]:
    """The document with its checksum verified and its `format` and `kind` of the right types."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CorruptError(f"record `{key}` is damaged: {len(data)} bytes that are not JSON ({error})") from error
    if not isinstance(document, dict):
        raise CorruptError(f"record `{key}` is damaged: it is not a JSON object")
    found = document.pop("checksum", None)
    with decoding(f"record `{key}` is damaged"):
        expected = _checksum(document)
    if found != expected:
        raise CorruptError(f"record `{key}` is damaged: its checksum is `{found}`, its content has `{expected}`")
    if type(document.get("format")) is not int or not isinstance(document.get("kind"), str):
        raise CorruptError(f"record `{key}` names no format and kind")
    return document


def _canonical(document: Mapping[str, object]) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def _checksum(document: Mapping[str, object]) -> str:
    return "sha256:" + hashlib.sha256(_canonical(document)).hexdigest()
