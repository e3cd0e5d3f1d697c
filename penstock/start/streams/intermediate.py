"""Where a start continues in the durable intermediate streams. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeAlias

from penstock.api.ssp import SystemStream
from penstock.base.wording import argument, counted
from penstock.checkpoint.intermediate import STREAMS, IntermediateStream
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import IncompatibleError
from penstock.graph.specs import ApplicationGraph
from penstock.system.base import PartitionOffsets

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
