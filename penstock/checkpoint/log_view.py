"""The checkpoint log as it was read at one moment, and the choice of checkpoints to keep
(`task.checkpoint.retained`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from penstock.checkpoint import decide
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim, Record
from penstock.config.values.kinds import RetentionPolicy
from penstock.errors import NotFoundError

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

    `abandoned` has the checkpoints that the new one does not descend from, as `decide.abandoned` returns them. They
    stay only in the places that the live lineage leaves free, and no longer than the checkpoint that tells that they
    were abandoned, so that no later decision takes them for the lineage (`decide.traceable` drops more of them).

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
    `void` are claims that never held (`decide.void_claims`). `faults` are the slots at which the log
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
        void = decide.void_claims(found)
        held = {slot: record for slot, record in sorted(found.items()) if slot not in void}
        misplaced = decide.not_linear(held, damaged)
        records = {slot: record for slot, record in held.items() if slot not in misplaced}
        damaged = dict(sorted({**damaged, **misplaced}.items()))
        faults = {**decide.faults(records, damaged, void, end), **misplaced}
        return cls(
            MappingProxyType(records),
            MappingProxyType(damaged),
            MappingProxyType(void),
            MappingProxyType(dict(sorted(faults.items()))),
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
        return decide.retained(self.records)

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

    def find(self, checkpoint_id: CheckpointId | str) -> CheckpointRecord:
        """The retained checkpoint of that id.

        Raises:
            NotFoundError: there is none, or it is there and not retained any more, so that it may be incomplete.
        """
        text = str(checkpoint_id)
        for record in self.restorable:
            if str(record.id) == text:
                return record
        if any(str(record.id) == text for record in self.left.values()):
            raise NotFoundError(
                f"checkpoint `{text}` is no longer retained (task.checkpoint.retained), so parts of its state may be "
                "deleted; `penstock checkpoint list` shows the retained ones"
            )
        raise NotFoundError(
            f"there is no checkpoint `{text}` in the log; `penstock checkpoint list` lists its checkpoints"
        )

    def slot_of(self, record: Record) -> int:
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
        kept = decide.retained_list(self.records).older.values()
        return CheckpointId.next_after(max((*(r.id for r in self.checkpoints), *kept), default=None), now_ms, nanos)

    def retained_beside(self, new: CheckpointRecord, policy: RetentionPolicy) -> dict[int, CheckpointId]:
        """The checkpoints that stay beside a new one (slot -> id): `retention.keep` along its lineage. A start that
        repeats the checkpoint before it takes no other one's place and goes with the next one; a stop takes its
        place."""
        checkpoints, retained = self._checkpoints(), self.retained
        repeated = decide.repetitions({**checkpoints, self.end: new}, {*retained, self.end})
        counting = {slot: each for slot, each in retained.items() if slot not in repeated}
        records = {slot: checkpoints[slot] for slot in retained}
        abandoned = decide.abandoned(records, new.parent)
        kept = keep(counting, new.id, policy, abandoned, new_counts=self.end not in repeated)
        return decide.traceable(kept, records, abandoned)

    def next_epoch(self) -> int:
        """The epoch of the next claim."""
        return decide.next_epoch({**self.records, **self.void}, self.end)

    def _checkpoints(self) -> dict[int, CheckpointRecord]:
        return {slot: record for slot, record in self.records.items() if isinstance(record, CheckpointRecord)}
