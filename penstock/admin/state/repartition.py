"""Gives a job another number of tasks, and moves its state."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from penstock.admin.checkpoint.change import next_checkpoint
from penstock.admin.job.logs import audited
from penstock.admin.job.running import refuse_running
from penstock.admin.jobs import FoundJob, opened
from penstock.admin.state.held import state_versions
from penstock.admin.state.store_uploads import StoreUploads
from penstock.application.application import Application
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.wording import listed, size_text
from penstock.batch.batch import Ends
from penstock.checkpoint.edit import choose_origin, content_of
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.task_versions import refuse_unknown
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.errors import REFUSALS, IncompatibleError, NotFoundError
from penstock.facts import Column, Facts, FactTable, Shown
from penstock.graph.keys import check_copartitioning
from penstock.graph.specs import ApplicationGraph
from penstock.host.process import process_folder
from penstock.job.identity import known_uid
from penstock.repartition.move import MadePart, Move, StorePart, move_here, moved_entries
from penstock.repartition.placement import RULES as RULES
from penstock.repartition.placement import ByKey, TaskCountChange
from penstock.repartition.placement import Rule as Rule
from penstock.repartition.plan import RepartitionPlan, check_count, placement_text, plan_move
from penstock.start.check import check_config
from penstock.start.inputs import group_inputs, with_matches
from penstock.start.job_streams import JobStreams
from penstock.start.layout import check_layout, store_layout
from penstock.start.part import complete, connect, start_parts
from penstock.start.plan import continue_stores
from penstock.state.backends.registry import BackendAdmins
from penstock.state.reading.reader import StateReader
from penstock.system.base import System
from penstock.system.registry import open_systems
from penstock.wing import known_sections

Mover = Callable[[Move], Iterable[MadePart]]
"""Makes every part of the new checkpoint, wherever it likes to."""


@dataclass(frozen=True, slots=True)
class MovedStore:
    """A store that is moved, or was. `how` says where its entries go. `size_bytes` is the size of its objects under the
    job root, of all retained checkpoints. `entries` counts the entries of each task that was filled."""

    store: Annotated[str, Column("store")]
    how: Annotated[str, Column("size", size_text, of=lambda each: each.size_bytes, right=True), Column("entries")]
    size_bytes: int
    entries: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RepartitionFacts(Shown):
    """A repartition, planned or done. `checkpoint` is the one that is moved, `written` the new one; None: not yet.
    `problems` are what the user has to say first, `notes` what else there is to do, in sentences."""

    job: str
    checkpoint: str
    before: int
    after: int
    stores: tuple[MovedStore, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    written: str | None = None
    seconds: float = 0.0

    def as_facts(self) -> Facts:
        lines = {"job": self.job, "checkpoint": self.checkpoint, "tasks": f"{self.before} -> {self.after}"}
        notes = (*(f"needed: {each}" for each in self.problems), *(f"note: {each}" for each in self.notes))
        return Facts(lines, (FactTable("", self.stores),), notes)


@dataclass(frozen=True, slots=True)
class Repartition:
    """A planned repartition, from `plan_repartition`. `repartition` carries it out."""

    found: FoundJob = field(repr=False)
    view: LogView = field(repr=False)
    streams: JobStreams = field(repr=False)
    plan: RepartitionPlan = field(repr=False)

    def facts(self) -> RepartitionFacts:
        """The plan for people."""
        plan, sizes = self.plan, _sizes(self.found)
        stores = [MovedStore(store, placement_text(how), sizes[store]) for store, how in plan.placements.items()]
        return RepartitionFacts(
            self.found.paths.root,
            str(plan.record.id),
            plan.record.task_count,
            plan.tasks,
            tuple(stores),
            tuple(plan.problems),
            plan.notes,
        )


@contextmanager
def plan_repartition(
    app: Application,
    tasks: int,
    file: str | Path | None = None,
    assignments: Sequence[str] | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
    rules: Mapping[str, Rule] | None = None,
) -> Iterator[Repartition]:
    """Plan to give a job another number of tasks. Writes nothing.

    Args:
        app: the application of the job.
        tasks: the new number of tasks, at least that of the partitions of the largest input.
        file, assignments, overrides: as in `open_job`.
        rules: by store, how it is known which task owns an entry, if it does not follow from the application: `key`,
            `first`, `stay`, `copy`, `empty`, or a function of an entry's key and value that returns the key of its
            messages.

    Raises:
        ConfigError: the job cannot have this number of tasks, or a rule does not fit.
        NotFoundError: the job has no checkpoint yet, or an input does not exist.
        IncompatibleError: the application does not fit the checkpoint, or something has to be done first.
        CorruptError: the job's log is damaged where it is needed.
    """
    config = load_config(file, overrides, assignments or (), default_job_name=app.name)
    with plan_with(config, app, tasks, rules) as planned:
        yield planned


@contextmanager
def plan_with(
    config: JobConfig, app: Application, tasks: int, rules: Mapping[str, Rule] | None = None
) -> Iterator[Repartition]:
    """As `plan_repartition`, with a configuration that is loaded."""
    with opened(config, app) as found:
        graph = with_matches(complete(app.graph(), config), config)
        config = config.with_columns(spec.name for spec in graph.stores if spec.by_column)
        graph = connect(graph, config)
        check_config(graph, config, start_parts())
        with closing(JobStreams.open(graph, config)) as streams:
            yield planned_for(replace(found, config=config), graph, streams, tasks, rules or {})


def planned_for(
    found: FoundJob, graph: ApplicationGraph, streams: JobStreams, tasks: int, rules: Mapping[str, Rule]
) -> Repartition:
    """As `plan_repartition`, for a job that is open, whose graph has its inputs and serdes as a start has them."""
    view = found.log.read()
    record = choose_origin(view, None, found.config.task)
    if record is None:
        raise NotFoundError(
            f"job `{found.paths.root}` has no checkpoint yet, so there is nothing to move: start it with "
            f"`job.intermediate.stream.partitions: {tasks}`"
        )
    refuse_unknown(record, known_sections())
    plan = _plan(graph, record, streams, tasks, rules, found.paths.root)
    large = large_stores(found, plan)
    refused = (*refused_backends(found, plan, streams.systems, view), *refused_entries(found, plan, large))
    notes = (*plan.notes, *notes_of_large(large))
    return Repartition(found, view, streams, replace(plan, refused=refused, notes=notes))


def _plan(
    graph: ApplicationGraph,
    record: CheckpointRecord,
    streams: JobStreams,
    tasks: int,
    rules: Mapping[str, Rule],
    job: str,
) -> RepartitionPlan:
    filled = {spec.name for spec in graph.side_stores}
    check_layout(record, store_layout(continue_stores(graph, record)), record.task_count, filled, job=job)
    ends = streams.ends()
    grouping = group_inputs(ends, streams.broadcast, tasks)
    counts = Counter(str(ssp.system_stream) for ssp in ends)
    largest = listed([f"`{stream}`" for stream, count in sorted(counts.items()) if count == max(counts.values())])
    check_count(tasks, record.task_count, grouping, largest)
    check_copartitioning(graph, ends, tasks, streams.broadcast)
    change = TaskCountChange(record.task_count, tasks, _partitions(record, ends), streams.broadcast)
    return plan_move(continue_stores(graph, record), record, grouping, ends, change, rules, SYSTEM_CLOCK.now_ms())


def _partitions(record: CheckpointRecord, ends: Ends) -> dict[str, tuple[int, int]]:
    """By input, the number of its partitions at the checkpoint and now. One that the checkpoint does not know has not
    changed."""
    now = Counter(str(ssp.system_stream) for ssp in ends)
    read = {ssp for own in record.next_offsets.values() for ssp in own}
    before = Counter(str(ssp.system_stream) for ssp in read)
    return {stream: (before.get(stream, count), count) for stream, count in now.items()}


def repartition(
    planned: Repartition, mover: Mover | None = None, *, confirm: Callable[[], None] = lambda: None
) -> RepartitionFacts:
    """Move the state of a stopped job, and write one checkpoint with it.

    Until the checkpoint is written, the job has not changed: a process that dies before leaves nothing but objects that
    no checkpoint names. The former checkpoint remains restorable, with the former number of tasks, as long as the job
    retains it.

    Args:
        planned: the plan, from `plan_repartition`.
        mover: carries the move out; by default this process, in memory. `penstock state repartition` has Spark do it.
        confirm: called after all checks, before anything is read or written. It raises to give up.

    Raises:
        IncompatibleError: it is not known where the entries of a store belong, or an entry is not where it should be.
        LeaseHeldError: the job runs.
        CorruptError: the state cannot be read.
    """
    plan, facts = planned.plan, planned.facts()
    if plan.problems:
        raise IncompatibleError(". ".join(plan.problems) + ". Nothing was changed")
    refuse_running(planned.found)
    confirm()
    changes = {"tasks": f"{facts.before} -> {facts.after}"}
    began = time.monotonic()
    with audited(planned.found, "state repartition", changes) as change:
        record, made = _carry_out(planned, mover or _in_this_process)
        change.changes |= {"checkpoint": f"{plan.record.id} -> {record.id}"}
    stores = tuple(replace(each, entries=_entries(each.store, made)) for each in facts.stores)
    return replace(facts, stores=stores, written=str(record.id), seconds=time.monotonic() - began)


def _in_this_process(move: Move) -> list[MadePart]:
    with process_folder("penstock-repartition-") as scratch:
        return move_here(move, scratch)


def _entries(store: str, made: Iterable[MadePart]) -> tuple[int, ...]:
    own = {each.part.task: each.entries for each in made if each.part.store == store}
    return tuple(own[task] for task in sorted(own))


def _carry_out(planned: Repartition, mover: Mover) -> tuple[CheckpointRecord, list[MadePart]]:
    found, plan = planned.found, planned.plan
    late = f"nothing was changed: another process wrote a checkpoint of job `{found.paths.root}` meanwhile"
    with next_checkpoint(found, "repartition", planned.view, late) as following:
        kept = content_of(plan.record, lambda task: found.config.changelog_partitions(plan.record.stores, task)).markers
        uploads = StoreUploads(following, plan.tasks, planned.streams.systems)
        backup = uploads.outside(plan.record.id, list(plan.placements))
        move = Move(backup, plan.record, plan.tasks, plan.placements, plan.expires_ms)
        made = list(mover(move))
        record = following.record(plan.base, plan.content(move.markers(made, kept)))
        record = replace(record, parent=plan.record.id, quiet_until=plan.quiet_until)
        retained = following.view.retained_beside(record, found.config.task.checkpoint_retained)
        record = replace(record, retained=retained)
        following.append(record)
    return record, made


LOOKED_THROUGH_BYTES = 256 << 20
"""The largest store of an operator that is looked through for a plan: a larger one takes as long as the move."""


def refused_backends(
    found: FoundJob, plan: RepartitionPlan, systems: Mapping[str, System], view: LogView
) -> Iterator[str]:
    """Reasons why the backends of the stores do not fit the new number of tasks, as sentences."""
    uid = known_uid(found.objects, found.paths)
    stores = list(plan.placements)
    with closing(
        BackendAdmins(found.config, found.paths, found.objects, plan.tasks, stores, systems, uid, view.restorable)
    ) as admins:
        try:
            admins.check()
        except REFUSALS as error:
            yield from map(str, error.refusals or (error,))


def _sizes(found: FoundJob) -> Counter[str]:
    sizes = Counter[str]()
    for each in state_versions(found).objects:
        sizes[each.store] += each.size_bytes
    return sizes


def large_stores(found: FoundJob, plan: RepartitionPlan) -> Mapping[str, int]:
    """The operators' own stores that are not looked through for a plan, with the bytes that they take."""
    own = _of_operators(plan)
    sizes = _sizes(found) if own else {}
    return {store: sizes[store] for store in own if sizes[store] > LOOKED_THROUGH_BYTES}


def notes_of_large(large: Mapping[str, int]) -> tuple[str, ...]:
    """The sentences of a plan about such stores."""
    return tuple(
        f"store `{store}` takes {size_text(size)}, so its entries are looked through in the move alone: if one of them "
        "cannot be placed, the move is refused then. It changes nothing in that case, and the job starts as it was"
        for store, size in large.items()
    )


def refused_entries(found: FoundJob, plan: RepartitionPlan, large: Mapping[str, int]) -> Iterator[str]:
    """Reasons why entries of operators' own stores cannot be placed, as sentences. Looks through the stores in which
    keys may be others than those of the messages, but for the large ones: what waits there is small, as a rule."""
    own = {store: place for store, place in _of_operators(plan).items() if store not in large}
    if not own:
        return
    with StateReader(found.config, found.paths, found.objects, open_systems(found.config)) as reader:
        for store, place in own.items():
            try:
                for task in range(plan.record.task_count):
                    with reader.open(plan.record, store, task) as engine:
                        part = StorePart(store, task, plan.expires_ms.get(store))
                        for _ in moved_entries(part, engine, place, plan.tasks):
                            pass
            except IncompatibleError as error:
                yield str(error).removesuffix(". Nothing was changed")


def _of_operators(plan: RepartitionPlan) -> dict[str, ByKey]:
    return {store: place for store, place in plan.placements.items() if isinstance(place, ByKey) and place.of_operator}
