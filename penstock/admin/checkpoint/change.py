"""Changes the checkpoints of a job by hand."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated

from penstock.admin.checkpoint.target import stream_ends
from penstock.admin.job.logs import audited
from penstock.admin.job.ownership import claimed_job
from penstock.admin.jobs import FoundJob
from penstock.admin.table import refuse_side_inputs
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK, Retry, retry
from penstock.base.wording import counted
from penstock.batch.batch import QUERY, QuerySection
from penstock.checkpoint import edit
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim
from penstock.checkpoint.sections import Sections
from penstock.checkpoint.task_versions import refuse_unknown
from penstock.config.model import JobConfig
from penstock.deploy.wing import DEPLOY, DeploySection, refuse_handed
from penstock.errors import IncompatibleError, NotFoundError, PenstockError, RetryableError
from penstock.facts import FOR_PEOPLE, Column, Facts, FactTable, Shown
from penstock.outbox.wing import OUTBOX, outbox_section, owed_of
from penstock.replay.wing import REPLAY, Line, ReplaySection
from penstock.shadow.wing import SHADOW, ShadowSection, refuse_loud
from penstock.system.registry import open_system
from penstock.wing import known_sections

_APPEND = Retry(pause_s=0.2, tries=5)


@dataclass(frozen=True, slots=True)
class PositionFacts:
    """A changed position: the next offset of a task in a partition, before and after."""

    task: Annotated[int, Column("task", right=True)]
    stream: Annotated[str, Column("stream")]
    partition: Annotated[int, Column("partition", right=True)]
    old_next: Annotated[int | None, Column("next", right=True)]
    new_next: Annotated[int, Column("new next"), Column("moves by", of=lambda each: each.effect)]
    unit: str = field(default="message", metadata=FOR_PEOPLE)
    distance: int | None = field(default=None, metadata=FOR_PEOPLE)
    """The distance in the stream's unit; None: the difference of the offsets."""

    @classmethod
    def of(cls, change: edit.OffsetChange, config: JobConfig | None = None) -> PositionFacts:
        """The facts of a change. `config`: to count in the unit of the stream's system."""
        found = cls(change.task, str(change.ssp.system_stream), change.ssp.partition, change.old, change.new)
        if config is None or change.old is None:
            return found
        system = open_system(config.system(change.ssp.system))
        return replace(found, unit=system.lag_unit, distance=system.lag(*sorted((change.old, change.new))))

    @property
    def effect(self) -> str:
        """The number of messages that the position moves by, and the direction."""
        if self.old_next is None:
            return "begins here"
        count = abs(self.new_next - self.old_next) if self.distance is None else self.distance
        by = counted(count, self.unit) if count or self.unit == "message" else f"less than 1 {self.unit}"
        return f"{by} {'back' if self.new_next < self.old_next else 'ahead'}"

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
class CheckpointChange(Shown):
    """A planned checkpoint, from `plan_offsets` or `plan_import`. `write_checkpoint` writes it.

    It has the positions and markers of `content`, and the other fields of `base`. `before` is the present content, and
    `seen` the log that all was decided on.
    `changes` are the positions that move. `notes` and `warnings` are sentences for people.
    """

    job: FoundJob = field(repr=False)
    command: str
    base: CheckpointRecord = field(repr=False)
    before: edit.CheckpointContent | None = field(repr=False)
    content: edit.CheckpointContent = field(repr=False)
    seen: LogView = field(repr=False)
    changes: tuple[edit.OffsetChange, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def as_facts(self) -> Facts:
        job = self.job.paths.root
        markers = [(store, name, count) for name, own in self.markers.items() for store, count in own.items()]
        moves = FactTable(f"Positions of {job} that change", [PositionFacts.of(each) for each in self.changes])
        state = FactTable.of(f"State of {job} from then on", "store, backend, tasks>", markers)
        return Facts.some({}, moves, *([state] if self.moves_markers else []))

    @property
    def is_needed(self) -> bool:
        """True if anything would change."""
        return self.content != self.before

    @property
    def moves_markers(self) -> bool:
        """True if the change replaces state: markers differ."""
        return self.before is None or self.before.markers != self.content.markers

    @property
    def markers(self) -> dict[str, dict[str, int]]:
        """The number of tasks with a marker after the change, by backend and store."""
        counts = Counter(
            (name, store) for own in self.content.markers.values() for name, stores in own.items() for store in stores
        )
        found: dict[str, dict[str, int]] = {}
        for (name, store), count in sorted(counts.items()):
            found.setdefault(name, {})[store] = count
        return found


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
            record = append_successor(change)
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


def append_successor(change: CheckpointChange) -> CheckpointRecord:
    """Claim the job and append the record that `edit.successor` makes. Raises as `write_checkpoint`.

    The record is in the log as a whole or not at all; a process that dies before leaves a claim, which changes nothing.
    """
    late = (
        f"nothing was changed: another process wrote a checkpoint of job `{change.job.paths.root}` after this command "
        "read the log. Run it again and look at the new changes"
    )
    with next_checkpoint(change.job, change.command, change.seen, late) as following:
        record = following.record(change.base, change.content)
        following.append(record)
    return record


@dataclass(frozen=True, slots=True)
class NextCheckpoint:
    """The place of the next checkpoint in the log of a job that is claimed for a command."""

    found: FoundJob
    claim: Claim
    view: LogView
    """The log as of the claim."""
    now_ms: int
    nanos: int

    @property
    def id(self) -> CheckpointId:
        return self.view.next_id(self.now_ms, self.nanos)

    def record(self, base: CheckpointRecord, content: edit.CheckpointContent) -> CheckpointRecord:
        """The successor of a checkpoint (`edit.successor`), which is not in the log yet."""
        view, task = self.view, self.found.config.task
        sections = edited_sections(base, content, view, self.claim)
        return edit.successor(base, content, view, self.claim, task, self.now_ms, self.nanos, sections)

    def append(self, record: CheckpointRecord) -> None:
        """Raises as `append_record`."""
        append_record(self.found.log, record, self.found.paths.root)


@contextmanager
def next_checkpoint(
    found: FoundJob, command: str, seen: LogView, late: str, *, handed: bool = False
) -> Iterator[NextCheckpoint]:
    """Claim a job for the next checkpoint, if its log is as it was when the checkpoint was planned.

    Args:
        found: the job.
        command: the name of its run, unless a run has not ended.
        seen: the log that all was decided on.
        late: the message if another process has written since.
        handed: the job may have handed over: the command is a deployment's.

    Raises:
        IncompatibleError: another process has written a checkpoint since.
        ConfigError: the job is a shadow, and the configuration does not say so.
        IncompatibleError: the job has handed over.
        What `claimed_job` raises.
    """
    refuse_loud(found.config, seen, found.paths.root)
    if not handed:
        refuse_handed(seen, found.paths.root)
    with claimed_job(found, command) as claim:
        view = found.log.known()
        if view.latest != seen.latest or view.retained != seen.retained:
            raise IncompatibleError(late)
        yield NextCheckpoint(found, claim, view, SYSTEM_CLOCK.now_ms(), time.monotonic_ns())


def append_record(log: CheckpointLog, record: CheckpointRecord, job: str) -> None:
    """Append a record for a claim that is held. Retries what may pass; the same record twice is one record.

    Raises:
        FencedError: another driver took the job over meanwhile.
        PenstockError: the store failed, and whether the record is in the log is not known.
    """
    try:
        retry(lambda: log.append(record), _APPEND)
    except RetryableError as error:
        raise PenstockError(
            f"checkpoint {record.id} could not be written in {_APPEND.tries} tries: {error}. `penstock checkpoint "
            f"list {job}` shows whether the log has it nevertheless"
        ) from error


def plan_offsets(
    job: FoundJob,
    offsets: Mapping[edit.OffsetKey, int] | Mapping[SystemStreamPartition, int],
    from_checkpoint: str | None = None,
) -> CheckpointChange:
    """Plan a checkpoint like the last one with other positions. Writes nothing.

    The state is not moved with the input; the change's `warnings` explain the consequences.

    Args:
        job: the job, which must be stopped when the change is written.
        offsets: the NEXT offset to read, by partition (Samza's checkpoints hold the last offset processed). An
            `OffsetKey` names the position of one task. Other partitions keep their positions.
        from_checkpoint: the id or label of the checkpoint to begin with; the last one, if None.

    Raises:
        NotFoundError: the job has no checkpoint, none with this id, or does not read a partition.
        IncompatibleError: an offset is outside its partition, or an input was deleted and created again and not all of
            its positions are given; or the checkpoint has a section that is needed and not known here.
        CorruptError: the log is damaged where it is needed.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     change = admin.plan_offsets(job, {ps.SystemStreamPartition("local", "trips", 0): 0})
        ...     [(each.old, each.new) for each in change.changes], len(change.warnings)
        ([(3, 0)], 1)
    """
    view = job.log.read()
    base = edit.choose_origin(view, from_checkpoint, job.config.task)
    if base is None:
        raise NotFoundError(
            f"job `{job.paths.root}` has no checkpoint yet, so it has no positions to change. Start it once first"
        )
    refuse_unknown(base, known_sections())
    wanted = {
        key if isinstance(key, edit.OffsetKey) else edit.OffsetKey(key): offset for key, offset in offsets.items()
    }
    refuse_side_inputs(job, base, [key.ssp.system_stream for key in wanted])
    before = edit.content_of(base, lambda task: job.config.changelog_partitions(base.stores, task))
    next_offsets = edit.with_offsets(base, wanted)
    asked = stream_ends(job.config, {key.ssp.system_stream for key in wanted})
    changes = edit.offset_changes(before.next_offsets, next_offsets)
    moved = before.moved.union(change.ssp for change in changes) if base.stores else frozenset[SystemStreamPartition]()
    content = edit.CheckpointContent(
        next_offsets, before.markers, edit.with_identities(base, wanted.keys(), asked.identities), moved
    )
    edit.refuse_outside(changes, asked.ends, asked.unknown)
    warnings = (*asked.warnings(), *_older(base, view.latest), *_state(base, changes))
    return CheckpointChange(job, "set", base, before, content, view, changes, warnings=warnings)


def _older(base: CheckpointRecord, latest: CheckpointRecord | None) -> Iterator[str]:
    if latest is not None and latest.id != base.id:
        yield (
            f"checkpoint {base.id} is not the last one ({latest.id}): the state, and the positions that the file "
            "does not name, go back to it too"
        )


def _state(base: CheckpointRecord, changes: Sequence[edit.OffsetChange]) -> Iterator[str]:
    if base.stores and changes:
        stores = ", ".join(f"`{store}`" for store in sorted(base.stores))
        yield f"the state ({stores}) stays as it is: {effect_on_state(changes)}"


def effect_on_state(changes: Sequence[edit.OffsetChange]) -> str:
    """The effect on state that stays while positions move; empty if there is none."""
    moves = [change.new - change.old for change in changes if change.old is not None]
    twice = "messages that are read again count twice in it" if min(moves, default=0) < 0 else ""
    never = "messages that are skipped are missing from it" if max(moves, default=0) > 0 else ""
    return " and ".join(filter(None, (twice, never)))


def edited_sections(base: CheckpointRecord, content: edit.CheckpointContent, view: LogView, claim: Claim) -> Sections:
    """The sections of the successor of `base` with this content: those of `base`, with some exceptions. What the last
    checkpoint leaves to be published remains to be published, whatever `base` is, a shadow remains one, and who has
    handed over is not in charge. The query's last batch is not known if offsets were set by hand.

    Args:
        view: the log after the claim.
        claim: the claim.
    """
    owed, latest = owed_of(view), view.latest
    return base.sections.only(known_sections()).having(
        {
            OUTBOX: outbox_section(owed, (), owed.publisher),
            QUERY: _query(base, content, view),
            SHADOW: ShadowSection() if latest is None else latest.section(SHADOW),
            DEPLOY: DeploySection() if latest is None else latest.section(DEPLOY),
            REPLAY: ReplaySection(line=Line(claim.epoch)),
        }
    )


def _query(base: CheckpointRecord, content: edit.CheckpointContent, view: LogView) -> QuerySection:
    """Only the last checkpoint has the output of the query's last batch."""
    offered = base.section(QUERY).offered
    if offered is None:
        return QuerySection()
    same = content.next_offsets == base.next_offsets
    has_output = offered.has_output and same and base == view.latest
    return QuerySection(replace(offered, plan=offered.plan if same else "", has_output=has_output))
