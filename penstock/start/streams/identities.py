"""Checks that the inputs of a job are still the streams that it has read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from penstock.api.ssp import SystemStream
from penstock.base.refusals import Refusals
from penstock.base.wording import argument
from penstock.config.model import JobConfig
from penstock.config.settings import StreamSettings
from penstock.errors import IncompatibleError
from penstock.start.positions import chosen_positions
from penstock.start.startpoints.decide import JobInputs, StartDecision

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
