"""The checkpoint log: who owns a job, and what it had done."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Collection
from itertools import count
from typing import Literal, TypeAlias

from penstock.checkpoint.log_reader import LogReader
from penstock.checkpoint.log_view import LogView, prunable
from penstock.checkpoint.record import (
    CheckpointId,
    CheckpointRecord,
    Claim,
    Label,
    Labelled,
    Record,
    encode_record,
    taking_over,
)
from penstock.errors import CorruptError, FencedError, IncompatibleError, NotFoundError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore

OnDamage: TypeAlias = Literal["raise", "report"]
"""A log that cannot be continued raises an error, or is reported in the view's `faults`."""

logger = logging.getLogger(__name__)

_READS = 4
_LABEL_TRIES = 100


class CheckpointLog:
    """Reads the log and, after a `claim`, appends to it and prunes it. Thread-safe; one per run.

    Record n is made only by put-if-absent in slot n, so that the log is linear and of two writers only one goes on.
    Records never change, so each is read once.

    Anybody may append a label, without a claim. The owner finds it in the slot of its next record, which then takes the
    label over and goes into the slot behind it. So no checkpoint leaves the log that was given a label before.

    Why pruning, which makes slots free again, lets no stopped driver go on:

    * An owner writes only into the slot after the last one it knows, and the labels behind that. The first other
      record there that is not its own is the claim that fenced it, because the driver that takes the job over claims
      first; and claims and labels are never deleted.
    * If that slot held a record of its own whose reply was lost, and which was pruned meanwhile, it can only make the
      very same record once more: after an append of unknown outcome no other record is taken. It is then one that is
      not retained, and the owner finds the claim behind it with the next one.
    * A driver that stopped after it had looked for the end of the log, and before its claim was put there, may find
      that slot free. So a claim counts only once the log was read again after it: the checkpoint that dropped the slot
      lies behind it and cannot be missed, and the claim is made again at the real end. The one that was left in the
      middle never held: `void_claims` says how every reader tells. A deletion that arrives late may take it, or
      a record that was made once more, and nothing else: what is in a freed slot is never needed.
    """

    def __init__(self, store: ObjectStore, paths: JobPaths) -> None:
        self._store = store
        self._paths = paths
        self._reader = LogReader(store, paths)
        self._lock = threading.RLock()
        self._claim: Claim | None = None
        self._writers: set[str] = set()
        """The tokens of this object's claims, including claims whose reply was lost."""
        self._next_slot = 0
        self._unclear: CheckpointRecord | None = None
        """A record, as it was written, that may or may not be in the log."""
        self._given: CheckpointRecord | None = None
        """The last record that was given to `append`, before it took over any labels."""
        self._slot: int | None = None
        """The slot of that record, once it is in the log."""
        self._collected: set[int] = set()
        """Slots that `prune` was called for, and that are not free yet."""
        self._accepted: frozenset[int] = frozenset()
        """Faulty slots that this owner was told to ignore."""
        self._fenced: str | None = None
        self._check_held: Callable[[], None] = lambda: None

    def held_by(self, check: Callable[[], None]) -> None:
        """From now on, call `check` right before each claim is written. It raises an error if this process does not
        hold the job any more: the claim would end the run of the driver that does."""
        self._check_held = check

    def read(self, on_damage: OnDamage = "raise") -> LogView:
        """The whole log up to its end, which is found by listing and then probing slot after slot.

        Raises:
            CorruptError: a record that is needed is damaged, missing, or not by the owner of its time; none is ever
                skipped. With "report" the view's `faults` name them instead.
            IncompatibleError: a newer Penstock wrote a record.
            RetryableError: the store failed.
        """
        with self._lock:
            view = self._reader.read()
            for _ in range(_READS):
                if view.faults.keys() <= self._accepted:
                    return view
                # The log may have been pruned while it was read: what is wrong is wrong the second time too.
                before, view = view, self._reader.read()
                if view.faults == before.faults:
                    break
            new = view.faults.keys() - self._accepted
            if new and on_damage == "raise":
                raise self._corrupt(view, min(new))
            return view

    def known(self) -> LogView:
        """The view of the records that this object has read and written. No I/O."""
        with self._lock:
            return self._reader.view()

    def claim(self, run_id: str, on_damage: OnDamage = "raise") -> Claim:
        """Append a claim with the next epoch; from then on this object may append checkpoints, and no older owner.

        Made at a driver's start, at every rewind and by every command that changes the log, before anything is
        chosen to be restored. A first claim comes after all claims of the same time. A later claim of the same
        object, at a rewind, is made only if the log is still its own: a driver that slept must not take back a job
        that another one holds by now.

        With "report" the log is claimed although it has faults, and this object takes no further notice of them: the
        way to go on from an older checkpoint when the last one is damaged. The first checkpoint then appended, whose
        `retained` has only what `LogView.retained` has, makes the log whole for everybody.

        Raises:
            FencedError: this object was fenced before, or another owner has claimed since its last claim; a fenced
                driver writes nothing more. Or the process does not hold the job any more (`held_by`).
            CorruptError, IncompatibleError: as `read`.
            RetryableError: the store failed; the claim may or may not be there, call again for another one.
        """
        with self._lock:
            self._refuse_if_fenced()
            while True:
                view = self.read(on_damage)
                self._refuse_if_overtaken(run_id, view)
                if on_damage == "report":
                    self._accepted |= view.faults.keys()
                claim = Claim(view.next_epoch(), run_id, secrets.token_hex(16))
                self._check_held()
                self._writers.add(claim.writer)
                if self._create(view.end, claim) is not None:
                    continue
                self._reader.known[view.end] = claim
                if self._counts(claim, view.end):
                    self._claim, self._next_slot, self._unclear = claim, view.end + 1, None
                    self._given, self._slot = None, None
                    return claim

    def begin(self, epoch: int, run_id: str) -> None:
        """Begin a log that is empty with a claim of this epoch, above which all of the job's are. Nothing happens if
        the log has begun."""
        with self._lock:
            if self.read("report").end == 0:
                self._check_held()
                self._create(0, Claim(epoch, run_id, secrets.token_hex(16)))

    def append(self, record: CheckpointRecord) -> int:
        """Append a checkpoint in the slot after the last one this owner knows; durable when it returns. The slot.

        The record in the log has the labels that hold, and retains their checkpoints. Repeating the call with the same
        record after a RetryableError is safe and gives one record.

        Raises:
            FencedError: another owner's record is there, and from then on every `append` and `claim` of this object
                raises it without touching the store. Or the record is not of the epoch this object claimed, or the
                outcome of another one is not known yet.
            IncompatibleError: it retains a checkpoint that is not retained by the log.
            RetryableError: the store failed; the record may or may not be there.
        """
        with self._lock:
            self._refuse_if_fenced()
            self._refuse_if_not_mine(record)
            if record == self._given and self._slot is not None:
                return self._slot
            self._refuse_if_unclear(record)
            view = self._reader.view()
            self._refuse_revival(record, view)
            _tell_lost_labels(record, view)
            self._given, self._slot = record, None
            while True:
                written = self._unclear or taking_over(record, view.labels, view.retained)
                self._unclear = written
                found = self._create(self._next_slot, written)
                self._unclear = None
                if not isinstance(found, Label):
                    break
                self._pass(found)
                view = self._reader.view()
            if found is not None:
                self._fenced = (
                    f"checkpoint {record.id} of epoch {record.epoch}, run `{record.run_id}`, was not written: slot "
                    f"`{self._paths.checkpoint(self._next_slot)}` is {fenced_by(found)}, which owns the job now. This "
                    f"run must stop; nothing it does after its last checkpoint counts"
                )
                self._refuse_if_fenced()
            slot = self._slot = self._next_slot
            self._reader.known[slot] = written
            self._next_slot = slot + 1
            return slot

    def label(
        self, name: str, checkpoint: CheckpointId | None, now_ms: int, instead_of: Labelled | None = None
    ) -> None:
        """Give a retained checkpoint a name, or take a name off (None). Needs no claim, and disturbs no driver: its
        next checkpoint takes the label over. Repeating the call is safe.

        Args:
            name: the label.
            checkpoint: the checkpoint, or None.
            now_ms: the wall clock in epoch milliseconds.
            instead_of: the label of that name as it was seen. Nothing happens if it is another one by now.

        Raises:
            NotFoundError: the checkpoint is not retained.
            IncompatibleError: another checkpoint has the label.
            CorruptError: as `read`.
            RetryableError: the store failed, or the log grew each time that the label was put at its end. The label may
                or may not be there.
        """
        writer = secrets.token_hex(16)
        with self._lock:
            for _ in range(_LABEL_TRIES):
                view = self.read()
                slot = 0 if checkpoint is None else view.slot_of(view.find(checkpoint))
                held = view.labels.get(name)
                if instead_of is not None and held != instead_of:
                    return
                if held is not None and checkpoint is not None and held.checkpoint != checkpoint:
                    raise IncompatibleError(f"`{name}` is a label of checkpoint {held.checkpoint} already")
                if (None if held is None else held.checkpoint) == checkpoint:
                    return
                label = Label(name, writer, now_ms, checkpoint, slot)
                if self._create(view.end, label) is None:
                    self._reader.known[view.end] = label
            raise RetryableError(
                f"the log of `{self._paths.root}` grew {_LABEL_TRIES} times while the label `{name}` was put at its end"
            )

    def uncollected(self, view: LogView) -> dict[int, CheckpointRecord]:
        """Slot -> checkpoint that is not retained any more as of a view, and that `prune` was not yet called for: its
        objects may still have to be collected.

        What this view retains says which of them are needed. Those that left the log later are not in it: checkpoints
        that the view does not have may need their objects.
        """
        with self._lock:
            return {slot: record for slot, record in view.left.items() if slot not in self._collected}

    def prune(self, slots: Collection[int] | None = None) -> tuple[int, ...]:
        """Delete the records of checkpoints whose objects are collected: of these slots, or of all checkpoints that are
        not retained any more. Records that must wait are deleted by a later call.

        Deletes only what the last checkpoint of this object's own epoch does not retain, oldest first; never a claim,
        never what is damaged, nothing within `TAIL` slots before that checkpoint. Idempotent; may be
        interrupted anywhere. Appends need not wait for it.

        Returns:
            The slots that were freed.

        Raises:
            FencedError: another driver has claimed the log; nothing was deleted.
            RetryableError: the store failed; some may be deleted.
        """
        with self._lock:
            self._refuse_if_fenced()
            left = self.known().left.keys()
            self._collected |= left if slots is None else left & set(slots)
            may_go = sorted(self._prunable() & self._collected)
            if may_go:
                self.check_owner()
        for slot in may_go:
            # A driver that takes over at this moment reads that these are not retained, and wants none of them.
            self._store.delete(self._paths.checkpoint(slot))
            with self._lock:
                self._reader.known.pop(slot, None)
                self._collected.discard(slot)
        return tuple(may_go)

    def check_owner(self) -> None:
        """Check in the store that this object still owns the job: the slot after its last record is free.

        Raises:
            FencedError: another driver has claimed the log.
            RetryableError: the store failed.
        """
        with self._lock:
            self._refuse_if_fenced()
            try:
                while isinstance(found := self._reader.get(self._next_slot), Label):
                    self._pass(found)
            except NotFoundError:
                return
            if found != self._unclear:
                self._fenced = (
                    f"the log is {fenced_by(found)}, which owns the job now. This run must stop; it deletes "
                    "nothing more"
                )
                self._refuse_if_fenced()

    def latest_before(self, claim: Claim) -> CheckpointRecord | None:
        """The last checkpoint before the claim, read now. Raises as `read`, and NotFoundError for an unknown claim."""
        return self.read().latest_before(claim)

    def _counts(self, claim: Claim, slot: int) -> bool:
        """True if the claim is at the end of the log, and not in a slot that was freed.

        Behind the end there is nothing yet, or the next claim, in a slot that is never freed: there this object
        finds that it is fenced. There may be labels between, which are never freed either.
        """
        view = self.read()
        behind = next(each for each in count(slot + 1) if not isinstance(view.records.get(each), Label))
        return slot in view.records and (view.end == behind or isinstance(view.records.get(behind), Claim))

    def _pass(self, label: Label) -> None:
        """Go on behind a label that is in the next slot. A record of unknown outcome is not there then, and never will
        be."""
        self._unclear = None
        self._reader.known[self._next_slot] = label
        self._next_slot += 1

    def _prunable(self) -> set[int]:
        """Slots dropped by the last checkpoint of the claim that is held. Empty before that checkpoint is written: this
        owner has not yet repeated an older owner's decisions."""
        claim, view = self._claim, self._reader.view()
        if claim is None or not view.checkpoints or view.checkpoints[-1].writer != claim.writer:
            return set()
        return set(prunable(view.records))

    def _create(self, slot: int, record: Record) -> Record | None:
        """Put the record into the slot: None if it is there, else the record that is there instead.

        After a failed put the slot is read, because the put may have happened all the same. Only the very same record
        is a lost reply: a writer's token is random, and an owner that finds a different record of its own has lost
        track of what it wrote, which is the end of its epoch too.
        """
        key = self._paths.checkpoint(slot)
        failure: RetryableError | None = None
        try:
            if self._store.put_if_absent(key, encode_record(record)):
                return None
        except RetryableError as error:
            failure = error
        try:
            found = self._reader.get(slot)
        except (NotFoundError, RetryableError) as error:
            if failure is not None:
                raise failure from error
            raise RetryableError(f"`{key}` was reported as taken but cannot be read: {error}") from error
        return None if found == record else found

    def _corrupt(self, view: LogView, slot: int) -> CorruptError:
        key, job = self._paths.checkpoint(slot), self._paths.root
        found = f"record `{key}` of the checkpoint log is needed, but {view.faults[slot]}. "
        intact = view.restorable
        if not intact:
            return CorruptError(
                f"{found}No other checkpoint is intact: bring the record back from a backup of the store, or set a new "
                "`job.id` to begin without state"
            )
        return CorruptError(
            f"{found}Bring it back from a backup of the store, or continue without it from an intact checkpoint, the "
            f"last of which is {intact[-1].id}: `penstock checkpoint list {job}` shows them all, `penstock "
            f"checkpoint show {job} ID` one of them, and `penstock run ... --from ID` begins with it"
        )

    def _refuse_if_fenced(self) -> None:
        if self._fenced is not None:
            raise FencedError(self._fenced)

    def _refuse_if_overtaken(self, run_id: str, view: LogView) -> None:
        if self._claim is not None and view.owner is not None and view.owner.writer not in self._writers:
            self._fenced = (
                f"run `{run_id}` cannot claim the job again: {fenced_by(view.owner)} came after its "
                "last claim. This run must stop; nothing it does after its last checkpoint counts"
            )
            self._refuse_if_fenced()

    def _refuse_if_not_mine(self, record: CheckpointRecord) -> None:
        claim = self._claim
        if claim is None or (record.epoch, record.run_id, record.writer) != (claim.epoch, claim.run_id, claim.writer):
            held = "nothing" if claim is None else f"epoch {claim.epoch} as run `{claim.run_id}`"
            raise FencedError(
                f"checkpoint {record.id} is of epoch {record.epoch}, run `{record.run_id}`, but this driver has "
                f"claimed {held}; a commit never outlives the epoch it began in"
            )

    def _refuse_if_unclear(self, record: CheckpointRecord) -> None:
        if self._unclear is not None and record != self._given:
            raise FencedError(
                f"checkpoint {record.id} cannot be appended: whether {self._unclear.id} is in the log is not known, so "
                "that one is to be appended again, or the log claimed again"
            )

    def _refuse_revival(self, record: CheckpointRecord, view: LogView) -> None:
        """A dropped checkpoint may be deleted already, and an empty slot in the list makes a damaged log."""
        wrong = dict(record.retained or {}).items() - view.retained.items()
        if wrong:
            slot, checkpoint_id = min(wrong)
            raise IncompatibleError(
                f"checkpoint {record.id} cannot retain {checkpoint_id} in slot {slot}, which the log does not retain"
            )


def _tell_lost_labels(record: CheckpointRecord, view: LogView) -> None:
    for name, each in view.labels.items():
        if view.retained.get(each.slot) != each.checkpoint:
            logger.warning(
                "the label `%s` is gone as of checkpoint %s: checkpoint %s, which had it, is damaged or missing",
                *(name, record.id, each.checkpoint),
            )


__all__ = ["CheckpointLog", "LogView", "OnDamage"]


def fenced_by(found: Claim | CheckpointRecord) -> str:
    """The owner of the log, in words for a message."""
    what = "claimed by" if isinstance(found, Claim) else f"checkpoint {found.id} of"
    return f"{what} epoch {found.epoch} of run `{found.run_id}`"
