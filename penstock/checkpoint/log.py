"""The checkpoint log: who owns a job, and what it had done (DESIGN section 4)."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType

from penstock.checkpoint import decide
from penstock.checkpoint.decide import Occupied
from penstock.checkpoint.record import CheckpointRecord, Claim, Record, decode_record, encode_record
from penstock.errors import CorruptError, FencedError, NotFoundError, RetryableError
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.paths import JobPaths


@dataclass(frozen=True, slots=True)
class LogView:
    """The log as it was read at one moment: whole, linear, verified. `records` maps slot to record, ascending."""

    records: Mapping[int, Record]

    @property
    def last_slot(self) -> int | None:
        """The slot of the last record; None in an empty log."""
        return max(self.records, default=None)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """All claims, oldest first."""
        return tuple(record for record in self.records.values() if isinstance(record, Claim))

    @property
    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        """All checkpoints, oldest first."""
        return tuple(record for record in self.records.values() if isinstance(record, CheckpointRecord))

    @property
    def owner(self) -> Claim | None:
        """The last claim: whoever made it owns the job."""
        return next(reversed(self.claims), None)

    def latest_before(self, claim: Claim) -> CheckpointRecord | None:
        """The last checkpoint before the claim, which is what its run restores; None if there is none.

        Raises:
            NotFoundError: the claim is not in this view.
        """
        if claim not in self.records.values():
            raise NotFoundError(f"the claim of epoch {claim.epoch} by run `{claim.run_id}` is not in the log")
        return decide.latest_before(self.records, claim)


class CheckpointLog:
    """Reads the log and, after a `claim`, appends to it. Thread-safe; one per run.

    Record n is made only by put-if-absent in slot n, so that the log is linear and of two writers only one goes on.
    Records never change, so each is read once.

    Retention that takes records out of the log one day says so in a record of its own, so that `read` knows those
    slots, and never takes a claim: the slot after the last one a stopped writer knows holds the claim that fences it,
    and were it free, that writer's next record would be made.
    """

    def __init__(self, store: ObjectStore, paths: JobPaths) -> None:
        self._store = store
        self._paths = paths
        self._lock = threading.RLock()
        self._known: dict[int, Record] = {}
        self._claim: Claim | None = None
        self._writers: set[str] = set()
        """The tokens of this object's claims, those whose reply was lost included."""
        self._next_slot = 0
        self._fenced: str | None = None

    def read(self) -> LogView:
        """The whole log up to its end, which is found by listing and then probing slot after slot.

        Raises:
            CorruptError: a record is damaged, missing, or not by the owner of its time; none is ever skipped.
            IncompatibleError: a newer Penstock wrote a record.
            RetryableError: the store failed.
        """
        with self._lock:
            listed_end = self._listed_end()
            for slot in count(max(self._known, default=-1) + 1):
                try:
                    self._known[slot] = self._get(slot)
                except NotFoundError as error:
                    if slot < listed_end:
                        raise self._hole(slot, listed_end) from error
                    break
            records = dict(sorted(self._known.items()))
            decide.check_linear(records, {slot: self._paths.checkpoint(slot) for slot in records})
            return LogView(MappingProxyType(records))

    def claim(self, run_id: str) -> Claim:
        """Append a claim with the next epoch; from then on this object may append checkpoints, and no older owner.

        Made at a driver's start, at every rewind and by every command that changes the log, before anything is
        chosen to be restored. A first claim comes after whoever claims at the same time. A later claim of the same
        object, at a rewind, is made only if the log is still its own: a driver that slept must not take back a job
        that another one holds by now.

        Raises:
            FencedError: this object was fenced before, or another owner has claimed since its last claim; a fenced
                driver writes nothing more.
            CorruptError, IncompatibleError: as `read`.
            RetryableError: the store failed; the claim may or may not be there, call again for another one.
        """
        with self._lock:
            self._refuse_if_fenced()
            writer = secrets.token_hex(16)
            self._writers.add(writer)
            while True:
                view = self.read()
                if self._claim is not None and view.owner is not None and view.owner.writer not in self._writers:
                    self._fenced = (
                        f"run `{run_id}` cannot claim the job again: {decide.fenced_by(view.owner)} came after its "
                        "last claim. This run must stop; nothing it does after its last checkpoint counts"
                    )
                    self._refuse_if_fenced()
                slot = 0 if view.last_slot is None else view.last_slot + 1
                claim = Claim(decide.next_epoch(tuple(view.records.values())), run_id, writer)
                found = self._create(slot, claim)
                if found is None or decide.occupied(claim, found) is Occupied.LOST_REPLY:
                    self._claim, self._next_slot = claim, slot + 1
                    self._known[slot] = claim
                    return claim

    def append(self, record: CheckpointRecord) -> None:
        """Append a checkpoint in the slot after the last one this owner knows; durable when it returns.

        Repeating the call with the same record after a RetryableError is safe and gives one record.

        Raises:
            FencedError: another owner's record is there, or the record is not of the epoch this object claimed.
                From then on every `append` and `claim` of this object raises it without touching the store.
            RetryableError: the store failed; the record may or may not be there.
        """
        with self._lock:
            self._refuse_if_fenced()
            self._refuse_if_not_mine(record)
            if record == self._known.get(self._next_slot - 1):
                return
            slot = self._next_slot
            found = self._create(slot, record)
            if found is not None and decide.occupied(record, found) is not Occupied.LOST_REPLY:
                self._fenced = (
                    f"checkpoint {record.id} of epoch {record.epoch}, run `{record.run_id}`, was not written: slot "
                    f"`{self._paths.checkpoint(slot)}` is {decide.fenced_by(found)}, which owns the job now. This run "
                    f"must stop; nothing it does after its last checkpoint counts"
                )
                self._refuse_if_fenced()
            self._known[slot] = record
            self._next_slot = slot + 1

    def latest_before(self, claim: Claim) -> CheckpointRecord | None:
        """The last checkpoint before the claim, read now. Raises as `read`, and NotFoundError for an unknown claim."""
        return self.read().latest_before(claim)

    def _listed_end(self) -> int:
        """One more than the largest slot a listing shows; 0 for none.

        Not the listed slots themselves: a listing that runs while records are made may show one and miss the one
        before it.
        """
        last_known = max(self._known, default=None)
        after = None if last_known is None else self._paths.checkpoint(last_known)
        keys = self._store.list(self._paths.checkpoints, after=after)
        return 1 + max((slot for key in keys if (slot := self._paths.slot_of(key)) is not None), default=-1)

    def _hole(self, slot: int, end: int) -> CorruptError:
        return CorruptError(
            f"record `{self._paths.checkpoint(slot)}` of the checkpoint log is missing, though "
            f"`{self._paths.checkpoint(end - 1)}` exists. Bring it back from a backup of the store"
        )

    def _get(self, slot: int) -> Record:
        key = self._paths.checkpoint(slot)
        return decode_record(self._store.get(key), key)

    def _create(self, slot: int, record: Record) -> Record | None:
        """Put the record into the slot: None if that was seen to happen, else what is there.

        After a failed put the slot is read, because the put may have happened all the same.
        """
        key = self._paths.checkpoint(slot)
        failure: RetryableError | None = None
        try:
            if self._store.put_if_absent(key, encode_record(record)):
                return None
        except RetryableError as error:
            failure = error
        try:
            return self._get(slot)
        except (NotFoundError, RetryableError) as error:
            if failure is not None:
                raise failure from error
            raise RetryableError(f"`{key}` was reported as taken but cannot be read: {error}") from error

    def _refuse_if_fenced(self) -> None:
        if self._fenced is not None:
            raise FencedError(self._fenced)

    def _refuse_if_not_mine(self, record: CheckpointRecord) -> None:
        claim = self._claim
        if claim is None or (record.epoch, record.run_id, record.writer) != (claim.epoch, claim.run_id, claim.writer):
            held = "nothing" if claim is None else f"epoch {claim.epoch} as run `{claim.run_id}`"
            raise FencedError(
                f"checkpoint {record.id} is of epoch {record.epoch}, run `{record.run_id}`, but this driver has "
                f"claimed {held}; a commit never outlives the epoch it began in"
            )
