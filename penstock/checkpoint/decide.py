"""The decisions of the checkpoint log, as pure functions over its records.

Slots number the log's records. Records of claims stay for ever; those of checkpoints that are no longer retained are
deleted, so a log has holes. The last list of retained checkpoints says which holes are allowed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim, Record
from penstock.checkpoint.streams import STREAMS

TAIL = 16
"""Slots before the newest checkpoint that are never freed. So the end of the log has no holes, and is found by probing
even from a listing that misses the last few records."""


def fenced_by(found: Record) -> str:
    """The owner of the log, in words for a message."""
    what = "claimed by" if isinstance(found, Claim) else f"checkpoint {found.id} of"
    return f"{what} epoch {found.epoch} of run `{found.run_id}`"


def next_epoch(records: Mapping[int, Record], end: int) -> int:
    """An epoch larger than any in the log, whose next free slot is `end`; 1 in an empty log.

    Each slot behind the last readable record may hold a claim that took one more.
    """
    return 1 + max((record.epoch for record in records.values()), default=0) + end - 1 - max(records, default=-1)


@dataclass(frozen=True, slots=True)
class RetainedList:
    """The checkpoints that the last list keeps: `older` by slot. Checkpoints from slot `since` on are kept too.

    Without any list `since` is -1: nothing was ever dropped.
    """

    since: int
    older: Mapping[int, CheckpointId]


def retained_list(records: Mapping[int, Record]) -> RetainedList:
    """The last list. Later checkpoints without a list keep what it keeps."""
    for slot in sorted(records, reverse=True):
        record = records[slot]
        if isinstance(record, CheckpointRecord) and record.retained is not None:
            return RetainedList(slot, record.retained)
    return RetainedList(-1, {})


def retained(records: Mapping[int, Record]) -> dict[int, CheckpointId]:
    """The checkpoints that are kept and readable, by slot, including the newest."""
    kept = retained_list(records)
    return {
        slot: record.id
        for slot, record in records.items()
        if isinstance(record, CheckpointRecord) and (slot >= kept.since or kept.older.get(slot) == record.id)
    }


def abandoned(retained: Mapping[int, CheckpointRecord], parent: CheckpointId | None) -> dict[int, int | None]:
    """The retained checkpoints (by slot) that a new one with this parent does not descend from, because a start or an
    edit went back behind them, each with the slot of the checkpoint that tells so; None for the new one itself.

    Ids grow with the slots. Where a parent is not retained any more, the newest checkpoint below it is the next
    ancestor, because `keep` and `traceable` drop what would be mistaken for it.
    """
    found: dict[int, int | None] = {}
    teller: int | None = None
    for slot in sorted(retained, reverse=True):
        if parent is not None and retained[slot].id > parent:
            found[slot] = teller
        else:
            teller, parent = slot, retained[slot].parent
    return found


def traceable(
    kept: Mapping[int, CheckpointId], retained: Mapping[int, CheckpointRecord], abandoned: Collection[int]
) -> dict[int, CheckpointId]:
    """The part of `kept` that stays. An abandoned checkpoint is dropped if the newest one up to its parent would be one
    that it does not descend from: a start that goes back to it would take that one for its lineage."""

    def ancestor(slot: int, among: list[int]) -> int | None:
        """The newest of the ascending slots that is not above the parent."""
        parent = retained[slot].parent
        count = len(among) if parent is None else bisect_right(among, parent, key=lambda other: retained[other].id)
        return among[count - 1] if count else None

    before: list[int] = []
    staying: list[int] = []
    behind_dropped: dict[int | None, int | None] = {}  # a dropped checkpoint and its next ancestor that stays
    for slot in sorted(retained):
        known = ancestor(slot, before)
        known = behind_dropped.get(known, known)
        before.append(slot)
        if slot in kept and (slot not in abandoned or ancestor(slot, staying) == known):
            staying.append(slot)
        else:
            behind_dropped[slot] = known
    return {slot: kept[slot] for slot in staying}


def repetitions(checkpoints: Mapping[int, CheckpointRecord], retained: Collection[int]) -> frozenset[int]:
    """The slots of `retained` that are one too many, where a start or a stop says the same as the one before: no
    message was processed between the two, and nothing else moved a position or changed a store."""
    writers = {record.id: record.writer for record in checkpoints.values()}
    found: set[int] = set()
    origin: CheckpointRecord | None = None
    first = -1
    for slot in sorted(retained):
        record = checkpoints[slot]
        if origin is None or not _repeats(record, origin, writers):
            origin, first = record, slot
        elif record.ended is not None and origin.kind_detail == "commit":
            found.add(first)  # a run names its last checkpoint when it ends, so that is the one to go back to
            origin, first = record, slot
        else:
            found.add(slot)
    return frozenset(found)


def _repeats(record: CheckpointRecord, origin: CheckpointRecord, writers: Mapping[CheckpointId, str]) -> bool:
    parent = record.parent
    if parent is None or parent < origin.id:  # it went back behind it
        return False
    start = record.kind_detail == "start" and not record.consumed_startpoints and not record.reset_operators
    # A checkpoint made by hand ends a run too, under a separate claim, and may have other state.
    stop = record.ended is not None and writers.get(parent) == record.writer
    return (
        (start or stop)
        and record.batch == origin.batch
        and record.next_offsets == origin.next_offsets
        and record.stores == origin.stores
        and record.section(STREAMS).streams == origin.section(STREAMS).streams
    )


def prunable(records: Mapping[int, Record]) -> dict[int, CheckpointRecord]:
    """The checkpoints whose records may be deleted: before the tail of the one that dropped them."""
    kept = retained_list(records)
    return {
        slot: record
        for slot, record in records.items()
        if isinstance(record, CheckpointRecord) and slot < kept.since - TAIL and slot not in kept.older
    }


def void_claims(records: Mapping[int, Record]) -> dict[int, Claim]:
    """Claims that were made in a freed slot, and so never held.

    A driver that looked for the end of the log, stopped, and put its claim there a long time later may find the slot
    free again. Its epoch was larger than any before the slot, so what was behind that already contradicts it: epochs
    never fall, and none is claimed twice. (If all that contradict it were pruned, it is one more old claim that
    nothing depends on.) Its writer finds that out before it does anything else, so it has no checkpoints.
    """
    active = {(record.epoch, record.writer) for record in records.values() if isinstance(record, CheckpointRecord)}
    void: dict[int, Claim] = {}
    lowest: int | None = None
    writers: set[str] = set()
    for slot in sorted(records, reverse=True):
        record = records[slot]
        contradicted = lowest is not None and (
            record.epoch > lowest or (record.epoch == lowest and writers != {record.writer})
        )
        if isinstance(record, Claim) and contradicted and (record.epoch, record.writer) not in active:
            void[slot] = record
        elif lowest is None or record.epoch < lowest:
            lowest, writers = record.epoch, {record.writer}
        elif record.epoch == lowest:
            writers.add(record.writer)
    return void


def not_linear(records: Mapping[int, Record], damaged: Mapping[int, str]) -> dict[int, str]:
    """Slot -> what is wrong: every claim opens a larger epoch; every checkpoint belongs to the last claim before it.

    A damaged slot may have held the claim that the checkpoints behind it belong to; an empty one never did.
    """
    wrong: dict[int, str] = {}
    epoch, writer, held, unknown = 0, "", "nobody", False
    for slot in sorted({*records, *damaged}):
        if slot in damaged:
            unknown = True
            continue
        record = records[slot]
        if isinstance(record, Claim):
            fits, what = record.epoch > epoch, f"it claims epoch {record.epoch}"
        else:
            fits = (record.epoch, record.writer) == (epoch, writer) or (unknown and record.epoch > epoch)
            what = f"it is checkpoint {record.id} of epoch {record.epoch}, run `{record.run_id}`"
        if not fits:
            wrong[slot] = f"{what}, where the log belonged to {held}"
            continue
        epoch, writer, unknown = record.epoch, record.writer, False
        held = f"epoch {record.epoch} of run `{record.run_id}`"
    return wrong


def faults(
    records: Mapping[int, Record], damaged: Mapping[int, str], void: Collection[int], end: int
) -> dict[int, str]:
    """Slot -> why the log cannot be continued: what is damaged or missing and is needed.

    Needed are the checkpoints that the last list keeps, and every slot behind that list, except what never held.
    """
    kept = retained_list(records)
    found: dict[int, str] = {}
    for slot in sorted({*kept.older, *range(kept.since + 1, end)}):
        record = records.get(slot)
        if slot in kept.older and record is not None:
            if not (isinstance(record, CheckpointRecord) and record.id == kept.older[slot]):
                found[slot] = f"it is not checkpoint {kept.older[slot]}, which a later one keeps there"
        elif record is None and (slot in kept.older or slot not in void):
            found[slot] = damaged.get(slot, "it is missing")
    return found
