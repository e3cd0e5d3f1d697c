"""The checkpoint log as it was read at one moment, and decisions over its records, such as which to keep. Pure.

Slots number the log's records. Records of claims and labels stay for ever; those of checkpoints that are no longer
retained are deleted, so a log has holes. The last list of retained checkpoints says which holes are allowed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from penstock.checkpoint.record import (
    CheckpointId,
    CheckpointRecord,
    Claim,
    Label,
    Labelled,
    Record,
    behind_latest,
    labels,
)
from penstock.checkpoint.streams import STREAMS
from penstock.config.kinds import RetentionPolicy
from penstock.errors import NotFoundError

TAIL = 16
"""Slots before the newest checkpoint that are never freed. So the end of the log has no holes, and is found by probing
even from a listing that misses the last few records."""


def next_epoch(records: Mapping[int, Record], end: int) -> int:
    """An epoch larger than any in the log, whose next free slot is `end`; 1 in an empty log.

    Each slot behind the last readable record may hold a claim that took one more.
    """
    epochs = (record.epoch for record in records.values() if not isinstance(record, Label))
    return 1 + max(epochs, default=0) + end - 1 - max(records, default=-1)


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
        if isinstance(record, Label):
            continue
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
        if isinstance(record, Label):  # of nobody's epoch
            continue
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


_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


def keep(
    retained: Mapping[int, CheckpointId],
    new: CheckpointId,
    policy: RetentionPolicy,
    abandoned: Mapping[int, int | None] | None = None,
    *,
    new_counts: bool = True,
) -> dict[int, CheckpointId]:
    """The retained checkpoints (slot -> id) that stay beside the new one, which always stays.

    The newest `policy.newest`, the new one being the first of them; of those before them the first one of every hour,
    for `policy.hours` hours back from the new one, its own hour included; and the first of every day, likewise. Hours
    and days are UTC's, times are those of the ids, so that every driver decides alike. What is dropped never comes
    back, and a checkpoint that outlived the newest ones by being its hour's first stays so for its whole term.

    `abandoned` has the checkpoints that the new one does not descend from, as the function of that name returns them.
    They stay only in the places that the live lineage leaves free, and no longer than the checkpoint that tells that
    they were abandoned, so that no later decision takes them for the lineage (`traceable` drops more of them).

    Without `new_counts` the new one repeats one that is retained, and is none of the newest `policy.newest`.
    At most `newest - 1 + hours + days` are returned, or one more without `new_counts`.
    """
    off = abandoned or {}
    oldest_first = sorted(retained.items())
    lineage = [item for item in oldest_first if item[0] not in off]
    others = [item for item in oldest_first if item[0] in off]
    ranked = [*others, *lineage]
    split = max(0, len(ranked) - (policy.newest - 1 if new_counts else policy.newest))
    kept = dict(ranked[split:])
    older = [item for item in (*lineage, *others) if item[0] not in kept]
    for length_ms, count in ((_HOUR_MS, policy.hours), (_DAY_MS, policy.days)):
        kept.update(_first_of_each(older, length_ms, new.millis // length_ms - count))
    return {slot: kept[slot] for slot in sorted(kept) if (shown_by := off.get(slot)) is None or shown_by in kept}


def _first_of_each(preferred: list[tuple[int, CheckpointId]], length_ms: int, after: int) -> dict[int, CheckpointId]:
    """The first checkpoint of each period of that length, of the periods numbered higher than `after`."""
    first: dict[int, tuple[int, CheckpointId]] = {}
    for slot, checkpoint_id in preferred:
        period = checkpoint_id.millis // length_ms
        if period > after:
            first.setdefault(period, (slot, checkpoint_id))
    return dict(first.values())


@dataclass(frozen=True, slots=True)
class LogView:
    """The log by slot, ascending.

    `records` can be read and are in their place. `damaged` are the others, with the problem.
    `void` are claims that never held (`void_claims`). `faults` are the slots at which the log
    cannot be continued, with the reason: damage and holes where a record is needed. `end` is the next free slot.
    """

    records: Mapping[int, Record]
    damaged: Mapping[int, str]
    void: Mapping[int, Claim]
    faults: Mapping[int, str]
    end: int

    @classmethod
    def of(cls, found: Mapping[int, Record], damaged: Mapping[int, str], end: int) -> LogView:
        """The view of the slots before `end`. Pure."""
        void = void_claims(found)
        held = {slot: record for slot, record in sorted(found.items()) if slot not in void}
        misplaced = not_linear(held, damaged)
        records = {slot: record for slot, record in held.items() if slot not in misplaced}
        damaged = dict(sorted({**damaged, **misplaced}.items()))
        reasons = {**faults(records, damaged, void, end), **misplaced}
        return cls(
            MappingProxyType(records),
            MappingProxyType(damaged),
            MappingProxyType(void),
            MappingProxyType(dict(sorted(reasons.items()))),
            end,
        )

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims that held, oldest first."""
        return tuple(record for record in self.records.values() if isinstance(record, Claim))

    @property
    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        """All readable checkpoints, oldest first, retained or not."""
        return tuple(record for record in self.records.values() if isinstance(record, CheckpointRecord))

    @property
    def latest(self) -> CheckpointRecord | None:
        """The last checkpoint; None if there is none."""
        return next(reversed(self.checkpoints), None)

    @property
    def owner(self) -> Claim | None:
        """The last claim: its writer owns the job."""
        return next(reversed(self.claims), None)

    @property
    def unfinished_run(self) -> str | None:
        """The id of the run that the next start continues: of the last checkpoint, unless that ended its run or another
        run claimed the log since."""
        latest = self.latest
        if latest is None or latest.ended is not None:
            return None
        owner = self.owner
        return latest.run_id if owner is None or owner.run_id == latest.run_id else None

    @property
    def retained(self) -> dict[int, CheckpointId]:
        """Slot -> id of every checkpoint that is kept, including the newest. Only these may be restored.

        Damaged ones are not among them. So the checkpoint that a run with `--from` begins with leaves them out, and the
        log is whole again.
        """
        return retained(self.records)

    @property
    def labels(self) -> dict[str, Labelled]:
        """The labels that hold, by name, whether their checkpoint is intact or not."""
        return labels(self.records)

    @property
    def restorable(self) -> tuple[CheckpointRecord, ...]:
        """The records of `retained`, oldest first."""
        kept = self.retained
        return tuple(record for slot, record in self._checkpoints().items() if slot in kept)

    @property
    def left(self) -> dict[int, CheckpointRecord]:
        """Slot -> checkpoint that is there but not retained any more: its objects may still have to be collected."""
        kept = self.retained
        return {slot: record for slot, record in self._checkpoints().items() if slot not in kept}

    def find(self, checkpoint: CheckpointId | str) -> CheckpointRecord:
        """The retained checkpoint of that id or label.

        Raises:
            NotFoundError: there is none, or it is there and not retained any more, so that it may be incomplete.
        """
        text = self.id_of(checkpoint)
        for record in self.restorable:
            if str(record.id) == text:
                return record
        if any(str(record.id) == text for record in self.left.values()):
            raise NotFoundError(
                f"checkpoint `{text}` is no longer retained (task.checkpoint.retained), so parts of its state may be "
                "deleted; `penstock checkpoint list` shows the retained ones"
            )
        raise NotFoundError(
            f"there is no checkpoint `{text}` in the log, and no label of that name; `penstock checkpoint list` lists "
            "the checkpoints and their labels"
        )

    def id_of(self, checkpoint: CheckpointId | str) -> str:
        """The id of the checkpoint that has this label, or that `latest` or `latest-N` names; else the text itself."""
        named, behind = self.labels.get(str(checkpoint)), behind_latest(str(checkpoint))
        if behind is not None and not self.faults and behind < len(self.restorable):
            return str(self.restorable[-1 - behind].id)
        return str(checkpoint) if named is None else str(named.checkpoint)

    def labels_of(self, checkpoint: CheckpointId) -> tuple[str, ...]:
        """The labels of a checkpoint, sorted."""
        return tuple(sorted(name for name, each in self.labels.items() if each.checkpoint == checkpoint))

    def slot_of(self, record: Claim | CheckpointRecord) -> int:
        """The slot of a record. Raises NotFoundError if it is not in this view."""
        for slot, found in self.records.items():
            if found == record:
                return slot
        what = f"checkpoint {record.id}" if isinstance(record, CheckpointRecord) else "the claim"
        raise NotFoundError(f"{what} of epoch {record.epoch} by run `{record.run_id}` is not in the log")

    def latest_before(self, claim: Claim) -> CheckpointRecord | None:
        """The last checkpoint before the claim, which is what its run restores; None if there is none.

        Raises:
            NotFoundError: the claim is not in this view.
        """
        at = self.slot_of(claim)
        before = [record for slot, record in self._checkpoints().items() if slot < at]
        return before[-1] if before else None

    def next_id(self, now_ms: int, nanos: int) -> CheckpointId:
        """The id of a new checkpoint: above every id in the log, those of abandoned checkpoints included, however far
        the clock went back.

        Args:
            now_ms: the wall clock in epoch milliseconds.
            nanos: any counter of nanoseconds.
        """
        kept = retained_list(self.records).older.values()
        return CheckpointId.next_after(max((*(r.id for r in self.checkpoints), *kept), default=None), now_ms, nanos)

    def retained_beside(self, new: CheckpointRecord, policy: RetentionPolicy) -> dict[int, CheckpointId]:
        """The checkpoints that stay beside a new one (slot -> id): those with a label, and of the others what `keep`
        leaves along its lineage. A start that repeats the checkpoint before it takes no other one's place and goes with
        the next one; a stop takes its place."""
        checkpoints, named = self._checkpoints(), {each.slot for each in self.labels.values()}
        labelled = {slot: each for slot, each in self.retained.items() if slot in named}
        retained = {slot: each for slot, each in self.retained.items() if slot not in named}
        repeated = repetitions({**checkpoints, self.end: new}, {*retained, self.end})
        counting = {slot: each for slot, each in retained.items() if slot not in repeated}
        records = {slot: checkpoints[slot] for slot in retained}
        behind = abandoned(records, new.parent)
        kept = keep(counting, new.id, policy, behind, new_counts=self.end not in repeated)
        return dict(sorted({**labelled, **traceable(kept, records, behind)}.items()))

    def next_epoch(self) -> int:
        """The epoch of the next claim."""
        return next_epoch({**self.records, **self.void}, self.end)

    def _checkpoints(self) -> dict[int, CheckpointRecord]:
        return {slot: record for slot, record in self.records.items() if isinstance(record, CheckpointRecord)}
