"""Plans other positions of a stopped job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.admin.checkpoint.change import CheckpointChange
from penstock.admin.checkpoint.ends import changelogs, stream_ends
from penstock.admin.jobs import FoundJob
from penstock.admin.side_stores import refuse_side_inputs
from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.edit import (
    Content,
    OffsetChange,
    OffsetKey,
    choose_origin,
    content_of,
    offset_changes,
    refuse_outside,
    with_identities,
    with_offsets,
)
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import NotFoundError


def plan_offsets(
    job: FoundJob,
    offsets: Mapping[OffsetKey, int] | Mapping[SystemStreamPartition, int],
    from_checkpoint: str | None = None,
) -> CheckpointChange:
    """Plan a checkpoint like the last one with other positions. Writes nothing.

    The state is not moved with the input; the change's `warnings` explain the consequences.

    Args:
        job: the job, which must be stopped when the change is written.
        offsets: the NEXT offset to read, by partition (Samza's checkpoints hold the last offset processed). An
            `OffsetKey` names the position of one task. Other partitions keep their positions.
        from_checkpoint: the id of the checkpoint to begin with; the last one, if None.

    Raises:
        NotFoundError: the job has no checkpoint, none with this id, or does not read a partition.
        IncompatibleError: an offset is outside its partition, or an input was deleted and created again and not all of
            its positions are given.
        CorruptError: the log is damaged where it is needed.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     change = admin.plan_offsets(job, {ps.SystemStreamPartition("local", "trips", 0): 0})
        ...     [(each.old, each.new) for each in change.changes], len(change.warnings)
        ([(3, 0)], 1)
    """
    log = CheckpointLog(job.objects, job.paths)
    view = log.read()
    base = choose_origin(view, from_checkpoint, job.config.task)
    if base is None:
        raise NotFoundError(
            f"job `{job.paths.root}` has no checkpoint yet, so it has no positions to change. Start it once first"
        )
    wanted = {key if isinstance(key, OffsetKey) else OffsetKey(key): offset for key, offset in offsets.items()}
    refuse_side_inputs(job, base, [key.ssp.system_stream for key in wanted])
    before = content_of(base, lambda task: changelogs(job.config, base, task))
    next_offsets = with_offsets(base, wanted)
    asked = stream_ends(job.config, {key.ssp.system_stream for key in wanted})
    content = Content(next_offsets, before.markers, with_identities(base, wanted.keys(), asked.identities))
    changes = offset_changes(before.next_offsets, content.next_offsets)
    refuse_outside(changes, asked.ends, asked.unknown)
    warnings = (*asked.warnings(), *_older(base, view.latest), *_state(base, changes))
    return CheckpointChange(job, "set", base, before, content, view, log, changes, warnings=warnings)


def _older(base: CheckpointRecord, latest: CheckpointRecord | None) -> Iterator[str]:
    if latest is not None and latest.id != base.id:
        yield (
            f"checkpoint {base.id} is not the last one ({latest.id}): the state, and the positions that the file "
            "does not name, go back to it too"
        )


def _state(base: CheckpointRecord, changes: Sequence[OffsetChange]) -> Iterator[str]:
    """The state was built from the old positions."""
    if not base.stores or not changes:
        return
    stores = ", ".join(f"`{store}`" for store in sorted(base.stores))
    moves = [change.new - change.old for change in changes if change.old is not None]
    twice = "messages that are read again count twice in it" if min(moves) < 0 else ""
    never = "messages that are skipped are missing from it" if max(moves) > 0 else ""
    yield f"the state ({stores}) stays as it is: {' and '.join(filter(None, (twice, never)))}"
