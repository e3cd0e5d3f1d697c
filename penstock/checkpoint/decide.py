"""What the checkpoint log decides, as pure functions over what was read (DESIGN section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from penstock.checkpoint.record import CheckpointRecord, Claim, Record
from penstock.errors import CorruptError


class Occupied(Enum):
    """What it means that the slot a writer wanted holds a record."""

    LOST_REPLY = "the record is the writer's own: its write had succeeded"
    TRY_NEXT = "somebody else's; a claim goes to the next slot"
    FENCED = "somebody else's; a checkpoint's writer no longer owns the log"


def occupied(wanted: Record, found: Record) -> Occupied:
    """What to do about `found` in the slot `wanted` was to go to.

    Only the very same record is a lost reply: a writer's token is random, and an owner that finds a different record
    of its own has lost track of what it wrote, which is the end of its epoch too.
    """
    if wanted == found:
        return Occupied.LOST_REPLY
    return Occupied.TRY_NEXT if isinstance(wanted, Claim) else Occupied.FENCED


def fenced_by(found: Record) -> str:
    """Who owns the log now, for a message."""
    what = "claimed by" if isinstance(found, Claim) else f"checkpoint {found.id} of"
    return f"{what} epoch {found.epoch} of run `{found.run_id}`"


def next_epoch(records: Sequence[Record]) -> int:
    """One more than the largest epoch; 1 in an empty log."""
    return 1 + max((record.epoch for record in records), default=0)


def check_linear(records: Mapping[int, Record], key_of: Mapping[int, str]) -> None:
    """Every claim opens a larger epoch; every checkpoint belongs to the last claim before it.

    Raises:
        CorruptError: naming the first record for which that is not so.
    """
    owner: Claim | None = None
    for slot, record in sorted(records.items()):
        if isinstance(record, Claim):
            if owner is not None and record.epoch <= owner.epoch:
                raise CorruptError(f"record `{key_of[slot]}` claims epoch {record.epoch} after epoch {owner.epoch}")
            owner = record
        elif owner is None or (record.epoch, record.writer) != (owner.epoch, owner.writer):
            held = "nobody" if owner is None else f"epoch {owner.epoch} of run `{owner.run_id}`"
            raise CorruptError(
                f"record `{key_of[slot]}` is checkpoint {record.id} of epoch {record.epoch}, run `{record.run_id}`, "
                f"where the log belonged to {held}"
            )


def latest_before(records: Mapping[int, Record], claim: Claim) -> CheckpointRecord | None:
    """The last checkpoint in a slot before the claim's; None if there is none or the claim is not in the log."""
    at = next((slot for slot, record in records.items() if record == claim), -1)
    before = (slot for slot, record in records.items() if slot < at and isinstance(record, CheckpointRecord))
    last = records.get(max(before, default=-1))
    return last if isinstance(last, CheckpointRecord) else None
