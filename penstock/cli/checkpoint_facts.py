"""What a checkpoint record says, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.checkpoint.log import LogView
from penstock.checkpoint.record import CheckpointRecord, Detail, Ended, markers
from penstock.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """A checkpoint, as a list shows it. Times are epoch milliseconds."""

    id: str
    kind: Detail
    ended: Ended | None
    batch: int
    batch_time_ms: int
    epoch: int
    run_id: str
    task_count: int
    stores: Mapping[str, str]

    @classmethod
    def of(cls, record: CheckpointRecord) -> CheckpointSummary:
        """The summary of a record."""
        return cls(
            id=str(record.id),
            kind=record.kind_detail,
            ended=record.ended,
            batch=record.batch,
            batch_time_ms=record.batch_time_ms,
            epoch=record.epoch,
            run_id=record.run_id,
            task_count=record.task_count,
            stores=dict(record.stores),
        )


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One task of a checkpoint: next offsets by SSP, markers by backend and store, values as written, by version."""

    task: int
    next_offsets: Mapping[str, int]
    markers: Mapping[str, Mapping[str, str]]
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """Everything a checkpoint record says."""

    id: str
    parent: str | None
    slot: int
    kind: Detail
    ended: Ended | None
    epoch: int
    run_id: str
    writer: str
    batch: int
    batch_time_ms: int
    task_count: int
    partitioner: str
    stores: Mapping[str, str]
    consumed_startpoints: tuple[str, ...]
    tasks: tuple[TaskFacts, ...]


def checkpoint_facts(view: LogView, wanted: str | None, job: str) -> CheckpointFacts:
    """A checkpoint of the log: the wanted id, or the last one.

    Raises:
        NotFoundError: there is none, or none with that id; `job` names the job in the message.
    """
    for slot, record in reversed(list(view.records.items())):
        if isinstance(record, CheckpointRecord) and wanted in {None, str(record.id)}:
            return _facts(slot, record)
    if not view.checkpoints:
        raise NotFoundError(f"job `{job}` has no checkpoint yet")
    raise NotFoundError(
        f"job `{job}` has no checkpoint `{wanted}`; `penstock checkpoint list {job}` shows those there are"
    )


def _facts(slot: int, record: CheckpointRecord) -> CheckpointFacts:
    tasks = sorted({*record.tasks, *record.next_offsets})
    return CheckpointFacts(
        id=str(record.id),
        parent=None if record.parent is None else str(record.parent),
        slot=slot,
        kind=record.kind_detail,
        ended=record.ended,
        epoch=record.epoch,
        run_id=record.run_id,
        writer=record.writer,
        batch=record.batch,
        batch_time_ms=record.batch_time_ms,
        task_count=record.task_count,
        partitioner=record.partitioner,
        stores=dict(record.stores),
        consumed_startpoints=record.consumed_startpoints,
        tasks=tuple(
            TaskFacts(
                task,
                {str(ssp): offset for ssp, offset in sorted(record.next_offsets.get(task, {}).items())},
                markers(record, task),
                dict(record.tasks.get(task, {})),
            )
            for task in tasks
        ),
    )
