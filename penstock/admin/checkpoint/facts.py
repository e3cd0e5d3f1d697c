"""The checkpoints of a job, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.admin.jobs import FoundJob
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.markers import markers_of
from penstock.checkpoint.record import CheckpointRecord, Detail, Ended
from penstock.checkpoint.versions import versions_of
from penstock.errors import NotFoundError
from penstock.metadata.paths import JobPaths


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
class Problem:
    """A record that cannot be read, is not in its place, or is missing. `needed`: no run starts until it is dealt
    with, by a run that names an intact checkpoint or by bringing the record back."""

    slot: int
    key: str
    what: str
    needed: bool


@dataclass(frozen=True, slots=True)
class ListedCheckpoint:
    """A line of the list: a checkpoint and whether it can be restored, or a damaged record, which has no `checkpoint`.

    `versions` are those in which every task's value was written.
    """

    slot: int
    checkpoint: CheckpointSummary | None
    retained: bool
    versions: tuple[int, ...]
    problem: Problem | None


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One task of a checkpoint: next offsets by SSP, markers by backend and store, values as written, by version."""

    task: int
    next_offsets: Mapping[str, int]
    markers: Mapping[str, Mapping[str, str]]
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """Everything a checkpoint record says, whether it is retained, and what is damaged in the log around it."""

    id: str
    parent: str | None
    slot: int
    retained: bool
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
    versions: tuple[int, ...]
    tasks: tuple[TaskFacts, ...]
    problems: tuple[Problem, ...]


def checkpoints(job: FoundJob) -> tuple[ListedCheckpoint, ...]:
    """Every checkpoint of the job, oldest first, and what is damaged among them."""
    return listed_checkpoints(CheckpointLog(job.objects, job.paths).read("report"), job.paths)


def read_checkpoint(job: FoundJob, checkpoint_id: str | None = None) -> CheckpointFacts:
    """Everything a checkpoint says: next offsets, stores, and the marker each can be restored from.

    Args:
        job: the job.
        checkpoint_id: the checkpoint, retained or not; the last one, if None.

    Raises:
        NotFoundError: there is none, or none with that id.
    """
    return checkpoint_facts(CheckpointLog(job.objects, job.paths).read("report"), checkpoint_id, job.paths)


def problems(view: LogView, paths: JobPaths) -> tuple[Problem, ...]:
    """What is wrong in the log, by slot."""
    return tuple(
        Problem(slot, paths.checkpoint(slot), view.faults.get(slot, view.damaged.get(slot, "")), slot in view.faults)
        for slot in sorted({*view.damaged, *view.faults})
    )


def listed_checkpoints(view: LogView, paths: JobPaths) -> tuple[ListedCheckpoint, ...]:
    """Every checkpoint that is there and every record that is damaged or missing, by slot."""
    kept = view.retained
    lines = {
        slot: ListedCheckpoint(slot, CheckpointSummary.of(record), slot in kept, _versions(record), None)
        for slot, record in view.records.items()
        if isinstance(record, CheckpointRecord)
    }
    wrong = {each.slot: ListedCheckpoint(each.slot, None, False, (), each) for each in problems(view, paths)}
    return tuple(line for _, line in sorted({**lines, **wrong}.items()))


def find_checkpoint(view: LogView, wanted: str | None, job: str) -> CheckpointRecord:
    """The checkpoint of the wanted id, retained or not; the last one without an id.

    Raises:
        NotFoundError: there is none, or none with that id; `job` names the job in the message.
    """
    for record in reversed(view.checkpoints):
        if wanted in {None, str(record.id)}:
            return record
    if not view.checkpoints:
        raise NotFoundError(f"job `{job}` has no checkpoint yet")
    raise NotFoundError(
        f"job `{job}` has no checkpoint `{wanted}`; `penstock checkpoint list {job}` shows those there are"
    )


def checkpoint_facts(view: LogView, wanted: str | None, paths: JobPaths) -> CheckpointFacts:
    """All about the checkpoint of the wanted id, or the last one. Raises as `find_checkpoint`."""
    record = find_checkpoint(view, wanted, paths.root)
    slot = view.slot_of(record)
    tasks = sorted({*record.tasks, *record.next_offsets})
    return CheckpointFacts(
        id=str(record.id),
        parent=None if record.parent is None else str(record.parent),
        slot=slot,
        retained=slot in view.retained,
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
        versions=_versions(record),
        tasks=tuple(
            TaskFacts(
                task,
                {str(ssp): offset for ssp, offset in sorted(record.next_offsets.get(task, {}).items())},
                markers_of(record, task),
                dict(record.tasks.get(task, {})),
            )
            for task in tasks
        ),
        problems=problems(view, paths),
    )


def _versions(record: CheckpointRecord) -> tuple[int, ...]:
    return tuple(sorted(versions_of(record)))
