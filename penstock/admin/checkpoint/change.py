"""A checkpoint that is planned, reviewed, and then written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.admin.checkpoint.append import append_successor
from penstock.admin.job.audit import audited
from penstock.admin.jobs import FoundJob
from penstock.checkpoint.edit import Content, OffsetChange
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord


@dataclass(frozen=True, slots=True)
class PositionFacts:
    """A changed position: the next offset of a task in a partition, before and after."""

    task: int
    stream: str
    partition: int
    old_next: int | None
    new_next: int

    @classmethod
    def of(cls, change: OffsetChange) -> PositionFacts:
        """The facts of a change."""
        return cls(change.task, str(change.ssp.system_stream), change.ssp.partition, change.old, change.new)

    def __str__(self) -> str:
        return f"{self.old_next if self.old_next is not None else 'none'} -> {self.new_next}"


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """The result of `write_checkpoint`. `checkpoint` is None if nothing had to change. `origin` is the checkpoint from
    which it was made. `markers` counts the tasks with a marker, by backend and store."""

    job: str
    origin: str | None
    checkpoint: str | None
    changes: tuple[PositionFacts, ...]
    markers: Mapping[str, Mapping[str, int]]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckpointChange:
    """A planned checkpoint, from `plan_offsets` or `plan_import`. `write_checkpoint` writes it.

    It has the positions and markers of `content`, and the other fields of `base`. `before` is the present content.
    `changes` are the positions that move. `notes` and `warnings` are sentences for people.
    """

    job: FoundJob = field(repr=False)
    command: str
    base: CheckpointRecord = field(repr=False)
    before: Content | None = field(repr=False)
    content: Content = field(repr=False)
    seen: LogView = field(repr=False)
    """The log that the change was planned on."""
    log: CheckpointLog = field(repr=False)
    changes: tuple[OffsetChange, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Whether anything would change."""
        return self.content != self.before

    @property
    def moves_markers(self) -> bool:
        """Whether the change replaces state: markers differ."""
        return self.before is None or self.before.markers != self.content.markers

    @property
    def markers(self) -> dict[str, dict[str, int]]:
        """How many tasks have a marker after the change, by backend and store."""
        return _marker_counts(self.content)


def write_checkpoint(change: CheckpointChange) -> WrittenCheckpoint:
    """Write a planned checkpoint, under a claim of the job. Writes nothing if nothing would change.

    The checkpoint is in the log as a whole or not at all.

    Args:
        change: the plan, from `plan_offsets` or `plan_import`.

    Raises:
        LeaseHeldError: the job runs.
        IncompatibleError: another process has written a checkpoint since, or no start would begin with this one.
        FencedError: another driver took the job over meanwhile.
        PenstockError: the store failed, and it is not known whether the checkpoint is in the log.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     change = admin.plan_offsets(job, {ps.SystemStreamPartition("local", "trips", 0): 2})
        ...     written = admin.write_checkpoint(change)
        ...     admin.read_checkpoint(job).id == written.checkpoint, admin.status(job).inputs[0].lag
        (True, 1)
    """
    record = None
    origin = None if change.before is None else str(change.base.id)
    positions = tuple(PositionFacts.of(each) for each in change.changes)
    if change.is_needed:
        changes = {f"{each.stream} {each.partition} of task {each.task}": str(each) for each in positions}
        if change.moves_markers:
            changes = {"state": "replaced", **changes}
        with audited(change.job, f"checkpoint {change.command}", changes) as noted:
            record = append_successor(change.job, change.log, change.seen, change.base, change.content, change.command)
            noted.changes = {"checkpoint": f"{origin or 'none'} -> {record.id}", **changes}
    return WrittenCheckpoint(
        job=change.job.paths.root,
        origin=origin,
        checkpoint=None if record is None else str(record.id),
        changes=positions,
        markers=change.markers,
        notes=change.notes,
        warnings=change.warnings,
    )


def _marker_counts(content: Content) -> dict[str, dict[str, int]]:
    counts = Counter((name, store) for task in content.markers.values() for name, own in task.items() for store in own)
    found: dict[str, dict[str, int]] = {}
    for (name, store), count in sorted(counts.items()):
        found.setdefault(name, {})[store] = count
    return found
