"""The checkpoints of a job, as values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from penstock.admin.jobs import FoundJob
from penstock.admin.questions import OutboxOutput, outbox_outputs, read_marks
from penstock.admin.table import side_stores
from penstock.api.time.firing import NO_WATERMARK
from penstock.base.wording import counted, listed, size_text, utc_text
from penstock.batch.watermarks import reached_text
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord, Detail, Ended
from penstock.checkpoint.streams import STREAMS
from penstock.checkpoint.task_versions import markers_of, versions_of
from penstock.errors import NotFoundError
from penstock.facts import Column, Facts, FactTable, Shown
from penstock.job.paths import JobPaths
from penstock.outbox.wing import OUTBOX, UnpublishedObjects
from penstock.side.wing import SideStoreFacts
from penstock.wing import KERNEL_SECTIONS

_RANGES = 5


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def sorted_text(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


@dataclass(frozen=True, slots=True)
class IntermediatePartition:
    """One partition. `position` is the offset behind what was read last; None if nothing is known of it. `ranges` are
    the offsets, from the first one to the one behind the last, that are still to be read."""

    partition: int
    position: int | None
    unread: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class IntermediateFacts:
    """A durable intermediate stream at a checkpoint. `writer` is the operator that writes it. `unread` counts the
    messages that ended batches wrote and that are still to be read. `watermark_ms` is the watermark of the operator
    that reads, in epoch milliseconds: None if it has none yet, 2^63 - 1 once all inputs have ended."""

    stream: Annotated[str, Column("stream")]
    writer: Annotated[str, Column("written by")]
    key_serde: str
    value_serde: str
    generation: Annotated[int, Column("generation", right=True)]
    unread: Annotated[int, Column("unread", right=True, most_first=True)]
    watermark_ms: Annotated[int | None, Column("watermark", reached_text)]
    partitions: tuple[IntermediatePartition, ...]


@dataclass(frozen=True, slots=True)
class SectionFacts:
    """The section of a wing in a checkpoint's record. If it is `needed`, nothing is restored from the checkpoint where
    the wing is not installed. `bytes` is its size as JSON."""

    wing: Annotated[str, Column("wing")]
    needed: Annotated[bool, Column("needed", _yes)]
    bytes: Annotated[int, Column("bytes", right=True)]


def section_facts(record: CheckpointRecord) -> tuple[SectionFacts, ...]:
    """The sections of wings, those that are not installed among them."""
    return tuple(
        SectionFacts(name, each.needed, each.size)
        for name, each in sorted(record.sections.written.items())
        if name not in KERNEL_SECTIONS
    )


def intermediate_facts(record: CheckpointRecord) -> tuple[IntermediateFacts, ...]:
    found = []
    recorded = record.section(STREAMS)
    for stream, own in sorted(recorded.streams.items()):
        writer, key, value = (*recorded.layouts[stream].split(" "), "", "")[:3]
        partitions = tuple(
            IntermediatePartition(
                partition,
                own.positions.get(partition),
                own.left_of(partition),
                tuple(offsets for written in own.unread for offsets in written.ranges.get(partition, ())),
            )
            for partition in sorted(own.ends())
        )
        watermark = None if own.watermark == NO_WATERMARK else own.watermark
        found.append(
            IntermediateFacts(str(stream), writer, key, value, own.generation, own.left(), watermark, partitions)
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """A checkpoint in a list. `batch_time_ms` is in epoch milliseconds."""

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
    def of(cls, record: CheckpointRecord, **more: Any) -> Self:
        """The summary of a record; `more` are the fields that a derived class adds."""
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
            **more,
        )

    def lines(self) -> dict[str, object]:
        """The checkpoint as the last one of a job."""
        time = f", at {utc_text(self.batch_time_ms)}" if self.batch_time_ms else ""
        return {
            "last checkpoint": self.id,
            "  kind": self.kind if self.ended is None else f"{self.kind}, the run's last: {self.ended}",
            "  batch": f"{self.batch}{time}",
            "  tasks": self.task_count,
            "  stores": ", ".join(sorted(self.stores)) or "none",
        }


@dataclass(frozen=True, slots=True)
class Problem:
    """A record of the log that cannot be read, is in the wrong place, or is missing. If it is `needed`, no run starts
    until the record is restored, or a run names an intact checkpoint."""

    slot: Annotated[int, Column("slot", right=True)]
    key: Annotated[str, Column("record")]
    what: Annotated[str, Column("needed", of=lambda each: _yes(each.needed)), Column("what is wrong")]
    needed: bool


@dataclass(frozen=True, slots=True)
class ListedCheckpoint:
    """A slot of the log: a checkpoint, and whether it can be restored; or a damaged record, without a `checkpoint`.

    `versions` are the versions in which the value of every task was written.
    """

    slot: int
    checkpoint: Annotated[
        CheckpointSummary | None,
        Column("id", of=lambda each: each._own("id") or f"slot {each.slot}"),
        Column("kind", of=lambda each: each._own("kind") or "damaged"),
        Column("ended", of=lambda each: each._own("ended"), first_to_go=6),
    ]
    retained: Annotated[
        bool,
        Column("retained", lambda kept: _yes(kept)),
        Column("batch", of=lambda each: each._own("batch"), right=True),
        Column("batch time", utc_text, of=lambda each: each._own("batch_time_ms") or None, first_to_go=5),
        Column("epoch", of=lambda each: each._own("epoch"), right=True, first_to_go=3),
        Column("run", of=lambda each: each._own("run_id"), first_to_go=4),
    ]
    versions: Annotated[
        tuple[int, ...],
        Column("versions", lambda found: ", ".join(map(str, found)) or None, first_to_go=1),
        Column("stores", sorted_text, of=lambda each: each._own("stores"), first_to_go=2),
    ]
    problem: Problem | None
    labels: Annotated[tuple[str, ...], Column("labels", lambda own: ", ".join(own) or None, optional=True)] = ()

    def _own(self, name: str) -> Any:
        """A field of the checkpoint; None without one."""
        return getattr(self.checkpoint, name, None)


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One task of a checkpoint: next offsets by SSP, markers by backend and store, written values by version."""

    task: int
    next_offsets: Mapping[str, int]
    markers: Mapping[str, Mapping[str, str]]
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CheckpointFacts(CheckpointSummary, Shown):
    """All fields of a checkpoint, whether it is retained, and the damaged records of the log."""

    parent: str | None
    slot: int
    retained: bool
    writer: str
    partitioner: str
    consumed_startpoints: tuple[str, ...]
    reset_operators: tuple[str, ...]
    versions: tuple[int, ...]
    tasks: tuple[TaskFacts, ...]
    problems: tuple[Problem, ...]
    intermediate: tuple[IntermediateFacts, ...] = ()
    side_stores: tuple[SideStoreFacts, ...] = ()
    """The stores that no checkpoint has, because the last run only reads them."""
    outbox: tuple[OutboxOutput, ...] = ()
    """The messages for exactly-once outputs, by output, and those that earlier checkpoints had left."""
    outbox_objects: int = 0
    outbox_bytes: int = 0
    keepers: tuple[str, ...] = ()
    """The systems that record the progress of publishing."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """By input partition, the offsets that were gone before the job had read them."""
    moved: tuple[str, ...] = ()
    """The input partitions whose positions were moved while the state stayed, so that the two do not agree."""
    sections: tuple[SectionFacts, ...] = ()
    labels: tuple[str, ...] = ()
    """The labels that keep it, whatever `task.checkpoint.retained` says."""

    def as_facts(self) -> Facts:
        lines: dict[str, object] = {
            "checkpoint": self.id,
            **({"labels": ", ".join(self.labels)} if self.labels else {}),
            "parent": self.parent,
            "kind": self.kind,
            "ended": self.ended,
            "epoch": self.epoch,
            "run id": self.run_id,
            "slot": self.slot,
            "retained": _yes(self.retained),
            "batch": self.batch,
            "batch time": utc_text(self.batch_time_ms) if self.batch_time_ms else None,
            "tasks": self.task_count,
            "partitioner": self.partitioner,
            "versions": ", ".join(map(str, self.versions)) or None,
            "startpoints": ", ".join(self.consumed_startpoints) or None,
            "reset operators": ", ".join(self.reset_operators) or None,
        }
        if self.outbox_objects:
            lines["outbox"] = f"{counted(self.outbox_objects, 'object')}, {size_text(self.outbox_bytes)}"
        if self.keepers:
            lines["progress is kept in"] = ", ".join(self.keepers)
        markers = [
            (each.task, store, backend, marker)
            for each in self.tasks
            for backend, stores in sorted(each.markers.items())
            for store, marker in sorted(stores.items())
        ]
        offsets = [(each.task, ssp, offset) for each in self.tasks for ssp, offset in each.next_offsets.items()]
        positions = Facts(lines, (FactTable.of("Positions", "task>, input, next>", offsets),))
        more = Facts.some(
            {},
            self._intermediate_table(),
            FactTable.of(
                "Stores",
                "store, operators, key serde, value serde",
                [(store, *_layout(layout)) for store, layout in sorted(self.stores.items())],
            ),
            FactTable.of("Markers", "task>, store, backend, marker", markers),
            FactTable("Exactly-once output", self.outbox),
            FactTable("Sections of wings", self.sections),
            FactTable.of("Lost before they were read", "input, messages>", self.lost.items()),
            notes=list(self._notes({store for _, store, _, _ in markers})),
        )
        return positions + more + problem_facts(self.problems)

    def _intermediate_table(self) -> FactTable:
        ranges = [
            (each.stream, each.generation, part.partition, part.position, part.unread, _ranges(part.ranges))
            for each in self.intermediate
            for part in each.partitions
        ]
        return FactTable.of(
            "Intermediate streams", "stream, generation>, partition>, read up to, unread>, ranges", ranges
        )

    def _notes(self, stores_with_markers: set[str]) -> Iterator[str]:
        if self.moved:
            moved = listed([f"`{each}`" for each in self.moved])
            stayed = "were moved while the state stayed: the state does not agree with them"
            yield f"note: positions in {moved} {stayed}"
        for side in self.side_stores:
            yield f"note: {side.note(stores_with_markers)}"


def _layout(text: str) -> tuple[str | None, ...]:
    """The three parts of `operators key-serde value-serde`; a text of another form is in the first column."""
    parts = text.split(" ")
    return tuple(parts) if len(parts) == 3 else (text, None, None)


def _ranges(ranges: Sequence[tuple[int, int]]) -> str | None:
    shown = [f"{start} to {end - 1}" for start, end in ranges[:_RANGES]]
    more = [f"and {len(ranges) - _RANGES} more"] if len(ranges) > _RANGES else []
    return ", ".join(shown + more) or None


def list_facts(listed: Sequence[ListedCheckpoint], job: str) -> Facts:
    """The checkpoints of a job for people, and the damaged records."""
    problems = [line.problem for line in listed if line.problem is not None]
    return Facts({}, (FactTable(f"Checkpoints of {job}", listed),)) + problem_facts(problems)


def problem_facts(found: Sequence[Problem]) -> Facts:
    """The damaged records, and what helps."""
    help_text = (
        "a record that the job needs is damaged or missing. Start the job with `penstock run ... --from ID` and "
        "the id of a retained checkpoint, or restore the record"
    )
    return Facts.some({}, FactTable("Damaged", found), notes=[help_text] if any(each.needed for each in found) else [])


def checkpoints(job: FoundJob) -> tuple[ListedCheckpoint, ...]:
    """All checkpoints of the job, oldest first, and the damaged records among them.

    Args:
        job: the job.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     [(each.checkpoint.kind, each.checkpoint.batch, each.retained) for each in admin.checkpoints(job)]
        [('start', 0, True), ('commit', 1, True), ('start', 1, False), ('commit', 2, True)]
    """
    view = job.log.read("report")
    kept = view.retained
    lines = {
        slot: ListedCheckpoint(
            slot, CheckpointSummary.of(record), slot in kept, _versions(record), None, view.labels_of(record.id)
        )
        for slot, record in view.records.items()
        if isinstance(record, CheckpointRecord)
    }
    wrong = {each.slot: ListedCheckpoint(each.slot, None, False, (), each) for each in _problems(view, job.paths)}
    return tuple(line for _, line in sorted({**lines, **wrong}.items()))


def read_checkpoint(job: FoundJob, checkpoint_id: str | None = None) -> CheckpointFacts:
    """All fields of a checkpoint: next offsets, stores, and the markers from which stores can be restored.

    Args:
        job: the job.
        checkpoint_id: the checkpoint, retained or not, by its id or label; the last one, if None.

    Raises:
        NotFoundError: the job has no checkpoint, or none with this id or label.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     {task.task: task.next_offsets for task in admin.read_checkpoint(job).tasks}
        {0: {'local.trips.0': 3}, 1: {'local.trips.1': 1}}
    """
    view = job.log.read("report")
    record = find_checkpoint(view, checkpoint_id, job.paths.root)
    slot = view.slot_of(record)
    named = record.section(OUTBOX)
    owed = (*named.unpublished, UnpublishedObjects(slot, named.objects))
    objects = [each for own in owed for each in own.objects]
    return CheckpointFacts.of(
        record,
        parent=None if record.parent is None else str(record.parent),
        slot=slot,
        retained=slot in view.retained,
        writer=record.writer,
        partitioner=record.partitioner,
        consumed_startpoints=record.consumed_startpoints,
        reset_operators=record.reset_operators,
        versions=_versions(record),
        tasks=tuple(
            TaskFacts(
                task,
                {str(ssp): offset for ssp, offset in sorted(record.next_offsets.get(task, {}).items())},
                markers_of(record, task),
                dict(record.tasks.get(task, {})),
            )
            for task in sorted({*record.tasks, *record.next_offsets})
        ),
        problems=_problems(view, job.paths),
        intermediate=intermediate_facts(record),
        side_stores=tuple(each for each in side_stores(job) if each.store not in record.stores),
        outbox=outbox_outputs(owed, read_marks(owed, named.publisher, job.config)),
        outbox_objects=len(objects),
        outbox_bytes=sum(each.size_bytes for each in objects),
        keepers=named.keepers,
        lost={str(ssp): count for ssp, count in sorted(record.lost.items())},
        moved=tuple(map(str, record.moved)),
        sections=section_facts(record),
        labels=view.labels_of(record.id),
    )


def _problems(view: LogView, paths: JobPaths) -> tuple[Problem, ...]:
    """The damaged and missing records of the log, by slot."""
    return tuple(
        Problem(slot, paths.checkpoint(slot), view.faults.get(slot, view.damaged.get(slot, "")), slot in view.faults)
        for slot in sorted({*view.damaged, *view.faults})
    )


def find_checkpoint(view: LogView, wanted: str | None, job: str) -> CheckpointRecord:
    """The checkpoint with the wanted id or label, retained or not; the last one without any.

    Raises:
        NotFoundError: there is none, or none of that name; `job` names the job in the message.
    """
    wanted_id = None if wanted is None else view.id_of(wanted)
    for record in reversed(view.checkpoints):
        if wanted_id in {None, str(record.id)}:
            return record
    if not view.checkpoints:
        raise NotFoundError(f"job `{job}` has no checkpoint yet")
    raise NotFoundError(
        f"job `{job}` has no checkpoint and no label `{wanted}`; `penstock checkpoint list {job}` lists its checkpoints"
    )


def _versions(record: CheckpointRecord) -> tuple[int, ...]:
    return tuple(sorted(versions_of(record)))
