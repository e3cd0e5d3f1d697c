"""The checkpoint that a job continues from with another number of tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from penstock.api.ssp import SystemStreamPartition
from penstock.base.wording import counted, listed
from penstock.batch.batch import QUERY, Ends
from penstock.batch.watermarks import TIME
from penstock.checkpoint.edit import CheckpointContent
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.streams import STREAMS
from penstock.checkpoint.task_values import Markers
from penstock.errors import ConfigError, IncompatibleError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import StoreLayout
from penstock.repartition.placement import (
    ByKey,
    CopiedPlacement,
    EmptyPlacement,
    Placement,
    Rule,
    StayingPlacement,
    TaskCountChange,
    placements,
    unplaced,
)
from penstock.start.inputs import Grouping

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class RepartitionPlan:
    """The stores that move, and the content of the new checkpoint."""

    record: CheckpointRecord
    """The checkpoint that is moved."""
    tasks: int
    """The number of tasks of the new one."""
    placements: Mapping[str, Placement]
    """By store of the checkpoint."""
    next_offsets: Mapping[int, Mapping[SystemStreamPartition, int]]
    event_times: Mapping[int, Mapping[SystemStreamPartition, int]]
    quiet_until: Mapping[int, Mapping[SystemStreamPartition, int]]
    expires_ms: Mapping[str, int]
    """By store whose entries have a time to live: when those expire that have no time yet."""
    notes: tuple[str, ...]
    """Sentences for people."""
    refused: tuple[str, ...] = ()
    """Reasons why it would be refused later, as sentences, found by a look at the state and the backends."""

    @property
    def problems(self) -> list[str]:
        """The obstacles, as sentences: first those that a word of the user removes, then the others."""
        return [*unplaced(self.placements), *self.refused]

    @property
    def base(self) -> CheckpointRecord:
        """The checkpoint that is moved, with the fields of the new one that depend on tasks."""
        time = replace(self.record.section(TIME), event_times=self.event_times)
        return replace(self.record, task_count=self.tasks).having(TIME, time)

    def content(self, markers: Mapping[int, Markers]) -> CheckpointContent:
        return CheckpointContent(self.next_offsets, markers, self.record.identities, frozenset(self.record.moved))


def plan_move(
    graph: ApplicationGraph,
    record: CheckpointRecord,
    grouping: Grouping,
    ends: Ends,
    change: TaskCountChange,
    rules: Mapping[str, Rule],
    now_ms: int,
) -> RepartitionPlan:
    """Plan to move a checkpoint.

    Args:
        graph: the application, which fits the checkpoint.
        record: the checkpoint.
        grouping: the inputs' partitions by task, with the new number of tasks.
        ends: of every partition of every input, now.
        change: the numbers.
        rules: what the user says, by store.
        now_ms: the time. Entries that are to get a time to live get it from here on.

    Raises:
        ConfigError: a rule does not fit.
        IncompatibleError: something of the checkpoint cannot be moved: what to do first.
    """
    if record.section(QUERY).offered is not None:
        raise IncompatibleError(
            "the job runs inside a streaming query of PySpark, whose checkpoint has the number of its partitions as "
            "well: its state cannot be moved"
        )
    _refuse_unread(record)
    found = placements(graph, change, rules)
    own = {store: found.get(store, EmptyPlacement()) for store in record.stores}
    offsets = {task: _positions(record, task, ssps, ends) for task, ssps in grouping.tasks.items()}
    times, quiet = (
        {task: kept for task, ssps in grouping.tasks.items() if (kept := _of_task(before, ssps))}
        for before in (record.section(TIME).event_times, record.quiet_until)
    )
    ttl = {spec.name: spec.ttl.ms for spec in graph.written_stores if spec.ttl is not None}
    expiring = [store for store, text in record.stores.items() if StoreLayout.parse(text).expires]
    return RepartitionPlan(
        record,
        grouping.count,
        own,
        offsets,
        times,
        quiet,
        {store: max(now_ms, record.batch_time_ms) + ttl[store] for store in expiring},
        tuple(_notes(graph, record, grouping.count, offsets)),
    )


def check_count(tasks: int, before: int, grouping: Grouping, largest: str) -> None:
    """Raise ConfigError if a job cannot have this number of tasks, or has it. `largest` names its largest inputs."""
    if grouping.count != tasks:
        raise ConfigError(
            f"a job of these inputs has at least {counted(grouping.count, 'task')}, one for each partition of {largest}"
        )
    if tasks == before:
        raise ConfigError(f"the job has {counted(tasks, 'task')} already")


def placement_text(place: Placement) -> str:
    """Where the entries of a store go, for people."""
    match place:
        case ByKey(by_value=None):
            return "to the tasks that own their keys"
        case ByKey():
            return "to the tasks that own their keys, by the function"
        case StayingPlacement():
            return "stay with their tasks"
        case CopiedPlacement():
            return "those of task 0 to every task"
        case EmptyPlacement():
            return "dropped: the store begins empty"
        case _:
            return f"not known: {place.why}"


def _refuse_unread(record: CheckpointRecord) -> None:
    if unread := [f"`{stream}`" for stream, own in record.section(STREAMS).streams.items() if own.left()]:
        raise IncompatibleError(
            f"the durable stream {listed(unread)} has messages that the job has not read. Let it read them: start it "
            'once with `until="latest"` (`penstock run ... --until latest`)'
        )


def _positions(
    record: CheckpointRecord, task: int, ssps: tuple[SystemStreamPartition, ...], ends: Ends
) -> dict[SystemStreamPartition, int]:
    found, streams = {}, record.streams
    for ssp in ssps:
        if ssp.system_stream not in streams:
            continue  # an input that was added since: the next start decides where it begins
        known = {own[ssp] for own in record.next_offsets.values() if ssp in own}
        if len(known) > 1:
            raise IncompatibleError(
                f"tasks have read the broadcast partition `{ssp}` up to different offsets: {listed(_texts(known))}. "
                'Start the job once with `until="latest"` (`penstock run ... --until latest`)'
            )
        found[ssp] = known.pop() if known else ends[ssp].oldest
    return found


def _texts(numbers: set[int]) -> list[str]:
    return [str(each) for each in sorted(numbers)]


def _of_task(
    before: Mapping[int, Mapping[SystemStreamPartition, V]], ssps: tuple[SystemStreamPartition, ...]
) -> dict[SystemStreamPartition, V]:
    known = {ssp: value for own in before.values() for ssp, value in own.items()}
    return {ssp: known[ssp] for ssp in ssps if ssp in known}


def _notes(
    graph: ApplicationGraph,
    record: CheckpointRecord,
    tasks: int,
    offsets: Mapping[int, Mapping[SystemStreamPartition, int]],
) -> Iterator[str]:
    known = {ssp for own in record.next_offsets.values() for ssp in own}
    if new := sorted({ssp for own in offsets.values() for ssp in own} - known):
        yield f"new partitions are read from their oldest messages: {listed([f'`{ssp}`' for ssp in new])}"
    for reader in graph.intermediates:
        yield (
            f"the durable stream `{reader.stream}` has a partition for each task. Name another one in `through`, or "
            f"delete this one before the next start (`penstock stream delete {reader.stream}`): nothing in it is unread"
        )
    if sides := [f"`{spec.name}`" for spec in graph.side_stores]:
        yield f"the next start fills {listed(sides)} again"
    yield (
        f"the job continues with {counted(tasks, 'task')} only if its configuration says so: "
        f"`job.intermediate.stream.partitions: {tasks}`"
    )
