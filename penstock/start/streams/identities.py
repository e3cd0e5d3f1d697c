"""Checks that the inputs of a job are still the streams that it has read. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from penstock.api.ssp import SystemStream
from penstock.batch.positions import TaskSsp
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.settings import StreamSettings
from penstock.errors import IncompatibleError
from penstock.wording import argument

Identities: TypeAlias = Mapping[SystemStream, str]
"""Stream -> the text that tells it from others of its name. Systems without such a text leave it out."""


def recreated(before: Identities, now: Identities) -> tuple[SystemStream, ...]:
    """The streams that were deleted and created again. One without an identity, before or now, is not judged."""
    return tuple(sorted(stream for stream, identity in before.items() if now.get(stream, identity) != identity))


def refuse_recreated(
    record: CheckpointRecord, now: Identities, readers: Iterable[TaskSsp], chosen: Collection[TaskSsp]
) -> None:
    """Raise IncompatibleError if a run would continue in a stream at a position of another one of its name.

    Args:
        record: the checkpoint that the start chose.
        now: the identities of the inputs.
        readers: every reader of every partition of the inputs.
        chosen: the readers whose position does not come from the checkpoint.
    """
    changed = recreated(record.identities, now)
    known = {ssp for own in record.next_offsets.values() for ssp in own}
    for at in sorted(readers):
        stream = at.ssp.system_stream
        if stream in changed and at.ssp in known and at not in chosen:
            raise IncompatibleError(
                f"the input `{stream}` was deleted and created again after checkpoint {record.id}, whose position in "
                f"`{at.ssp}` belongs to the earlier stream. Nothing was read. {continue_in(stream)}"
            )


def continue_in(stream: SystemStream) -> str:
    """The ways to read a stream that was deleted and created again."""
    return (
        "Choose where to begin in the new stream, in all of its partitions: `penstock startpoint set JOB --oldest "
        f"--all-partitions --stream {stream}` ({argument('with_state', 'clear')} empties all stores), or for one "
        f"start `{StreamSettings.reset_offset.full(str(stream))}=true`"
    )
