"""Where a run begins in its streams. Pure.

The position in an input is that of the startpoint, then that of the checkpoint, then `samza.offset.default` (SEP-18).
An input has to be the same stream that the job has read. Durable intermediate streams are continued where the
checkpoint left them. The event times that a run begins with belong to the state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.time.firing import END_OF_TIME
from penstock.base.wording import argument, counted
from penstock.batch.batch import Ends, Positions, TaskSsp, first_positions, resumed_positions, to_positions
from penstock.batch.watermarks import TIME
from penstock.checkpoint.record import CheckpointRecord, Origin
from penstock.checkpoint.streams import STREAMS, IntermediateStream
from penstock.config.model import JobConfig
from penstock.config.settings import StreamSettings
from penstock.errors import IncompatibleError, Refusals
from penstock.graph.specs import ApplicationGraph
from penstock.start.startpoints import JobInputs, StartDecision
from penstock.system.base import PartitionOffsets


def start_positions(decision: StartDecision, inputs: JobInputs, config: JobConfig) -> dict[TaskSsp, int]:
    """The positions of the startpoints, and for all other partitions those of the checkpoint, except for streams that
    are reset. A checkpoint that a startpoint chose counts for every stream: only then state and input agree.

    Raises:
        IncompatibleError: an input has another number of partitions than at the checkpoint.
    """
    record = decision.restore_from
    saved = {} if record is None else to_positions(record.next_offsets)
    first = _first(inputs, config) | _first_of_new(inputs, {at.ssp.system_stream for at in saved})
    return resumed_positions(saved, inputs.readers, first) | chosen_positions(decision, inputs, config)


def chosen_positions(decision: StartDecision, inputs: JobInputs, config: JobConfig) -> dict[TaskSsp, int]:
    """The positions of streams that are reset and of startpoints. They hold whatever the checkpoint says."""
    chosen: dict[TaskSsp, int] = {}
    if decision.with_state != "nearest" or decision.restore_from is None:
        first = _first(inputs, config)
        chosen = {at: first[at.ssp] for at in inputs.readers if config.stream(at.ssp.system_stream).reset_offset}
    return chosen | dict(decision.offsets)


def moved_inputs(origin: Origin, positions: Positions) -> frozenset[SystemStreamPartition]:
    """The partitions whose positions were moved while the state stayed, by this start or before: they do not agree with
    the restored state."""
    if origin.record is None or not origin.restored:
        return frozenset()
    saved = to_positions(origin.record.next_offsets)
    return frozenset(origin.record.moved).union(
        at.ssp for at, offset in positions.items() if saved.get(at, offset) != offset
    )


def _first(inputs: JobInputs, config: JobConfig) -> dict[SystemStreamPartition, int]:
    streams = {ssp.system_stream for ssp in inputs.ends}
    return first_positions(inputs.ends, {stream: config.stream(stream).offset_default for stream in streams})


def _first_of_new(inputs: JobInputs, known: Collection[SystemStream]) -> dict[SystemStreamPartition, int]:
    """The first positions in streams that a pattern has found since the checkpoint, which has others of that pattern.
    They were created meanwhile, so all that they hold is to be read."""
    met = [pattern for pattern in inputs.patterns if any(map(pattern.matches, known))]
    return {
        ssp: ends.oldest
        for ssp, ends in inputs.ends.items()
        if ssp.system_stream not in known and any(pattern.matches(ssp.system_stream) for pattern in met)
    }


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Event times and watermarks at a start, and what the start has to say about them."""

    event_times: Mapping[TaskSsp, int] = field(default_factory=dict)
    watermarks: Mapping[str, int] = field(default_factory=dict)
    ended_inputs: frozenset[SystemStreamPartition] = frozenset()
    late: tuple[TaskSsp, ...] = ()
    """Partitions that were moved back and keep their event time: messages that they read again are late."""
    grown: tuple[SystemStreamPartition, ...] = ()
    """They had ended, and have new messages, which are read."""


def start_times(
    record: CheckpointRecord | None,
    *,
    clears_state: bool,
    positions: Positions,
    ends: Ends,
    parent: CheckpointRecord | None = None,
    graph: ApplicationGraph | None = None,
) -> StartTimes:
    """The times of the checkpoint, if its state is kept; none after a batch that closed the stream.

    If an input that had ended has grown, its event times are dropped, and so are the watermarks of operators whose
    inputs had all ended: they begin again.

    Args:
        record: the checkpoint that the start chose; None: there is none.
        positions: where the run begins to read.
        parent: the checkpoint before that one. If both are of one batch, the positions were changed in between by hand.
        graph: the application's, by whose operators the watermarks are; None: it is that of the checkpoint.
    """
    if record is None:
        return StartTimes()
    unread = {at.ssp for at, position in positions.items() if position < ends[at.ssp].upcoming}
    grown = tuple(ssp for ssp in record.ended_inputs if ssp in unread)
    if clears_state or record.is_closed:
        return StartTimes(grown=grown)
    recorded = record.section(TIME)
    known = to_positions(recorded.event_times)
    event_times = {at: known[at] for at in positions if at in known and at.ssp not in grown}
    before = to_positions(record.next_offsets)
    if parent is not None and parent.batch == record.batch:
        before |= {at: max(before.get(at, 0), offset) for at, offset in to_positions(parent.next_offsets).items()}
    marks = recorded.watermarks if graph is None else recorded.watermarks_in(graph, record.stores)
    return StartTimes(
        event_times,
        {op: each for op, each in marks.items() if not (grown and each == END_OF_TIME)},
        frozenset(record.ended_inputs) - unread,
        tuple(at for at in sorted(event_times) if positions[at] < before.get(at, 0)),
        grown,
    )


Identities: TypeAlias = Mapping[SystemStream, str]
"""Stream -> the text that tells it from others of its name. Systems without such a text leave it out."""


def recreated(before: Identities, now: Identities) -> tuple[SystemStream, ...]:
    """The streams that were deleted and created again. One without an identity, before or now, is not judged."""
    return tuple(sorted(stream for stream, identity in before.items() if now.get(stream, identity) != identity))


def refuse_recreated(inputs: JobInputs, config: JobConfig, decision: StartDecision) -> None:
    """Raise IncompatibleError if a run would continue in an input at a position in another stream of its name, because
    it was deleted and created again since the checkpoint."""
    record = decision.restore_from
    if record is None:
        return
    changed = recreated(record.identities, inputs.identities)
    chosen = chosen_positions(decision, inputs, config)
    known = {ssp for own in record.next_offsets.values() for ssp in own}
    refusals = Refusals("inputs were deleted and created again")
    for at in sorted(inputs.readers):
        stream = at.ssp.system_stream
        if stream in changed and at.ssp in known and at not in chosen:
            error = IncompatibleError(
                f"the input `{stream}` was deleted and created again after checkpoint {record.id}, whose position in "
                f"`{at.ssp}` belongs to the earlier stream. Nothing was read. {continue_in(stream)}"
            )
            changed = tuple(other for other in changed if other != stream)  # once for all of its partitions
            refusals.note(error)
    refusals.check()


def continue_in(stream: SystemStream) -> str:
    """The ways to read a stream that was deleted and created again."""
    return (
        "Choose where to begin in the new stream, in all of its partitions: `penstock startpoint set JOB --oldest "
        f"--all-partitions --stream {stream}` ({argument('with_state', 'clear')} empties all stores), or for one "
        f"start `{StreamSettings.reset_offset.full(str(stream))}=true`"
    )


READER = ".through"
"""Appended to the id of the writing operator: the id of the reading one."""


Layouts: TypeAlias = Mapping[SystemStream, str]
"""Durable intermediate stream -> the text that a checkpoint records of it: the id of the operator that writes it, and
the names of the serdes of its keys and values."""


def declared_streams(graph: ApplicationGraph) -> dict[SystemStream, str]:
    """The layouts of the durable intermediate streams of an application."""
    return {each.stream: f"{each.writer} {each.key_serde.name} {each.value_serde.name}" for each in graph.intermediates}


def operators_of(layout: str) -> tuple[str, str]:
    """The operator that writes a stream, and the one that reads it."""
    writer = layout.partition(" ")[0]
    return writer, f"{writer}{READER}"


def recorded_operators(record: CheckpointRecord | None) -> dict[str, SystemStream]:
    """The operators of the streams of a checkpoint."""
    layouts = {} if record is None else record.section(STREAMS).layouts
    return {each: stream for stream, layout in layouts.items() for each in operators_of(layout)}


def kept_streams(
    record: CheckpointRecord | None,
    declared: Layouts,
    *,
    clears_state: bool,
    reset: Collection[str] = (),
    job: str = "JOB",
    has_grown: bool = False,
) -> dict[SystemStream, IntermediateStream]:
    """The unread part of the checkpoint's streams that a start keeps: none if it clears the state or resets the
    operator. Streams that the application no longer has, and new ones, are left out.

    Args:
        record: the checkpoint that the start chose; None: there is none.
        declared: the application's streams.
        reset: the ids of the operators that begin again.
        job: the job's name in commands.
        has_grown: whether an input that had ended at the checkpoint has new messages.

    Raises:
        IncompatibleError: messages that were not read would be lost, or read with other serdes; says which, and the
            ways to continue.
    """
    if record is None:
        return {}
    kept: dict[SystemStream, IntermediateStream] = {}
    recorded = record.section(STREAMS)
    for stream, before in recorded.streams.items():
        layout, now = recorded.layouts[stream], declared.get(stream)
        ids = {*operators_of(layout), *(operators_of(now) if now is not None else ())}
        drops = clears_state or not ids.isdisjoint(reset)
        if before.unread and not drops:
            _refuse_changed(record, stream, before, layout, now, job)
        if now is not None:
            kept[stream] = before.next_generation() if drops else before.without_end() if has_grown else before
    return kept


def begin_streams(
    declared: Layouts,
    kept: Mapping[SystemStream, IntermediateStream],
    ends: Mapping[SystemStream, Mapping[int, PartitionOffsets]],
    new: Collection[SystemStream],
) -> dict[SystemStream, IntermediateStream]:
    """Where the run begins in each stream, as the streams are now. What is in a stream that no checkpoint knows
    belongs to nobody, and is not read.

    Args:
        declared: the application's streams.
        kept: what the start keeps, from `kept_streams`.
        ends: the ends of every partition of these streams.
        new: the streams that the job did not own before this start.

    Raises:
        IncompatibleError: a stream no longer has what is to be read of it.
    """
    begun: dict[SystemStream, IntermediateStream] = {}
    for stream, layout in declared.items():
        partitions = ends[stream]
        upcoming = {partition: end.upcoming for partition, end in partitions.items()}
        before = kept.get(stream)
        if before is None:
            begun[stream] = IntermediateStream(positions=upcoming)
            continue
        if before.unread:
            _refuse_missing(stream, layout, before, partitions, recreated=stream in new)
        positions = {partition: min(before.positions.get(partition, end), end) for partition, end in upcoming.items()}
        begun[stream] = replace(before, positions=positions)
    return begun


def _refuse_changed(
    record: CheckpointRecord,
    stream: SystemStream,
    before: IntermediateStream,
    layout: str,
    now: str | None,
    job: str,
) -> None:
    """Raise IncompatibleError unless the application reads what is unread."""
    writer, _, serdes = layout.partition(" ")
    if now is None:
        problem = "is no longer in the application: these messages would be lost"
        back = f"Put it back, as .partition_by(..., through={str(stream)!r})"
    elif (serdes_now := now.partition(" ")[2]) != serdes:
        problem = f"was written as `{serdes}` (key serde, value serde) and is declared as `{serdes_now}` now"
        back = "Set the serdes back"
    else:
        return
    raise IncompatibleError(
        f"the intermediate stream `{stream}` has {counted(before.left(), 'message')} that were not read yet at "
        f"checkpoint {record.id}. It {problem}. {back}. To change it, start the application as it was, and drain "
        f"it with `penstock drain {job} --wait`: everything is read, and the next start may be of the changed one. "
        f"Or drop what is unread, and keep all state: {argument('reset_operators', [writer])}"
    )


def _refuse_missing(
    stream: SystemStream,
    layout: str,
    before: IntermediateStream,
    ends: Mapping[int, PartitionOffsets],
    *,
    recreated: bool,
) -> None:
    """Raise IncompatibleError unless the stream has all that is unread."""
    lost = [
        f"partition {partition} should be read from {start} to {end - 1}, and {_holds(ends.get(partition))}"
        for written in before.unread
        for partition, ranges in sorted(written.ranges.items())
        for start, end in ranges
        if partition not in ends or start < ends[partition].oldest or end > ends[partition].upcoming
    ]
    if not lost and not recreated:
        return
    what = "; ".join(lost[:3]) if lost else "the job is no longer recorded as its owner"
    raise IncompatibleError(
        f"the intermediate stream `{stream}` does not have all of the {counted(before.left(), 'message')} "
        f"that are still to be read: somebody deleted messages, or the whole stream ({what}). Restore the stream, "
        f"start from a checkpoint that needs none of them ({argument('from_checkpoint')}), or drop them, and "
        f"keep all state: {argument('reset_operators', [operators_of(layout)[0]])}"
    )


def _holds(end: PartitionOffsets | None) -> str:
    return "it does not exist" if end is None else f"has {end}"
