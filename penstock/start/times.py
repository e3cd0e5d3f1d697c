"""The event times that a run begins with. They belong to the state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.api.ssp import SystemStreamPartition
from penstock.api.time.watermarks import END_OF_TIME
from penstock.batch.positions import Ends, Positions, TaskSsp, to_positions
from penstock.batch.watermarks import TIME
from penstock.checkpoint.record import CheckpointRecord


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
    state_ids: Mapping[str, str] | None = None,
) -> StartTimes:
    """The times of the checkpoint, if its state is kept; none after a batch that closed the stream.

    If an input that had ended has grown, its event times are dropped, and so are the watermarks of operators whose
    inputs had all ended: they begin again.

    Args:
        record: the checkpoint that the start chose; None: there is none.
        positions: where the run begins to read.
        parent: the checkpoint before that one. If both are of one batch, the positions were changed in between by hand.
        state_ids: operator → the id that it had when its state was made, where that was another one.
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
    now = {old: op for op, old in (state_ids or {}).items()}
    return StartTimes(
        event_times,
        {now.get(op, op): each for op, each in recorded.watermarks.items() if not (grown and each == END_OF_TIME)},
        frozenset(record.ended_inputs) - unread,
        tuple(at for at in sorted(event_times) if positions[at] < before.get(at, 0)),
        grown,
    )
