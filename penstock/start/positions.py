"""The positions that a run begins at: startpoint, then checkpoint, then `samza.offset.default` (SEP-18). Pure."""

from __future__ import annotations

from collections.abc import Collection

from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.batch.positions import Positions, TaskSsp, first_positions, resumed_positions, to_positions
from penstock.checkpoint.origin import Origin
from penstock.config.model import JobConfig
from penstock.start.startpoints.decide import JobInputs, StartDecision


def start_positions(decision: StartDecision, inputs: JobInputs, config: JobConfig) -> dict[TaskSsp, int]:
    """The checkpoint's positions but for streams that are reset, and those of the startpoints over them. A checkpoint
    that a startpoint chose counts for every stream: only then state and input agree.

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
