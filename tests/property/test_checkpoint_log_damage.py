"""Damage and holes: what is needed is never skipped, what is not is no trouble, and there is a way to go on."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from obstore.store import MemoryStore

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointId, Claim, encode_record
from penstock.errors import CorruptError, FencedError, IncompatibleError, NotFoundError
from penstock.job.paths import JobPaths
from penstock.objects.open import RemoteObjectStore
from penstock.objects.store import ObjectStore
from tests.support.stores.checkpoints import checkpoint

PATHS = JobPaths("flights", "1")


@pytest.fixture
def store() -> ObjectStore:
    return RemoteObjectStore("memory://log", store=MemoryStore())


def at(number: int) -> CheckpointId:
    return CheckpointId(number, 0)


def damage(store: ObjectStore, slot: int) -> None:
    store.delete(PATHS.checkpoint(slot))
    store.put_if_absent(PATHS.checkpoint(slot), b'{"format":1,')


def filled(store: ObjectStore) -> CheckpointLog:
    """Slot 0 a claim, 1 to 4 checkpoints 1 to 4, 5 a claim, 6 checkpoint 6, which retains 2 and 4."""
    log = CheckpointLog(store, PATHS)
    claim = log.claim("first")
    for number in (1, 2, 3, 4):
        log.append(checkpoint(claim, number))
    log = CheckpointLog(store, PATHS)
    log.append(replace(checkpoint(log.claim("second"), 6), retained={2: at(2), 4: at(4)}))
    return log


@pytest.mark.parametrize("missing", [True, False], ids=["missing", "damaged"])
@pytest.mark.parametrize("slot", [1, 3])
def test_what_is_not_retained_is_not_needed(store: ObjectStore, slot: int, missing: bool) -> None:
    filled(store)
    store.delete(PATHS.checkpoint(slot)) if missing else damage(store, slot)
    view = CheckpointLog(store, PATHS).read()
    assert not view.faults
    assert list(view.damaged) == [] if missing else [slot]
    assert slot not in view.left
    assert list(view.retained) == [2, 4, 6]
    assert CheckpointLog(store, PATHS).claim("third").epoch == 3


@pytest.mark.parametrize("missing", [True, False], ids=["missing", "damaged"])
@pytest.mark.parametrize("slot", [2, 4])
def test_what_is_retained_is_needed_until_a_start_leaves_it_out(store: ObjectStore, slot: int, missing: bool) -> None:
    filled(store)
    store.delete(PATHS.checkpoint(slot)) if missing else damage(store, slot)
    for call in (CheckpointLog(store, PATHS).read, lambda: CheckpointLog(store, PATHS).claim("third")):
        with pytest.raises(CorruptError) as caught:
            call()
        text = str(caught.value)
        assert PATHS.checkpoint(slot) in text
        assert "the last of which is 6-0: `penstock checkpoint list flights-1`" in text
        assert "penstock run ... --from ID" in text
    go_on_from(store, 6, epoch=3)


def go_on_from(store: ObjectStore, number: int, epoch: int) -> None:
    """Do what a run with --from does: claim, choose, write a start checkpoint of the records that remain."""
    log = CheckpointLog(store, PATHS)
    reported = log.read("report")
    assert reported.faults
    claim = log.claim("goes on", "report")
    assert claim.epoch == epoch
    view = log.read()
    chosen = view.find(str(at(number)))
    assert chosen == reported.restorable[-1]
    log.append(replace(checkpoint(claim, 100, chosen.id), retained=view.retained))
    whole = CheckpointLog(store, PATHS).read()
    assert whole.owner == claim
    assert {**view.retained, log.known().end - 1: at(100)} == whole.retained


def test_a_damaged_last_checkpoint(store: ObjectStore) -> None:
    filled(store)
    damage(store, 6)
    with pytest.raises(CorruptError, match=r"00000006\.json.*damaged.*the last of which is 4-0"):
        CheckpointLog(store, PATHS).read()
    # The damaged record may have been a claim of epoch 3.
    go_on_from(store, 4, epoch=4)


def test_a_damaged_last_claim(store: ObjectStore) -> None:
    filled(store)
    CheckpointLog(store, PATHS).claim("third")
    damage(store, 7)
    go_on_from(store, 6, epoch=4)


def test_a_rewind_before_the_start_checkpoint_is_written(store: ObjectStore) -> None:
    filled(store)
    damage(store, 6)
    log = CheckpointLog(store, PATHS)
    log.claim("goes on", "report")
    claim = log.claim("goes on")
    assert log.latest_before(claim) == log.read().find("4-0")
    with pytest.raises(CorruptError):
        CheckpointLog(store, PATHS).claim("another")


def test_a_damaged_claim_is_known_by_its_checkpoints(store: ObjectStore) -> None:
    filled(store)
    damage(store, 5)
    view = CheckpointLog(store, PATHS).read()
    assert list(view.retained) == [2, 4, 6]
    assert view.next_epoch() == 3
    store.delete(PATHS.checkpoint(5))
    with pytest.raises(CorruptError, match=r"00000005\.json.*missing"):
        CheckpointLog(store, PATHS).read()
    assert "belonged to epoch 1" in CheckpointLog(store, PATHS).read("report").faults[6]


def test_without_an_intact_checkpoint_there_is_no_way_on(store: ObjectStore) -> None:
    CheckpointLog(store, PATHS).claim("first")
    damage(store, 0)
    with pytest.raises(CorruptError, match="No other checkpoint is intact"):
        CheckpointLog(store, PATHS).read()


def test_another_record_in_the_place_of_a_retained_one(store: ObjectStore) -> None:
    filled(store)
    owner = CheckpointLog(store, PATHS).read().claims[0]
    store.delete(PATHS.checkpoint(2))
    store.put_if_absent(PATHS.checkpoint(2), encode_record(checkpoint(owner, 77)))
    view = CheckpointLog(store, PATHS).read("report")
    assert list(view.faults) == [2]
    assert list(view.retained) == [4, 6]


def test_a_checkpoint_without_a_list_keeps_what_the_last_list_kept(store: ObjectStore) -> None:
    log = filled(store)
    (_, claim) = log.read().claims
    log.append(checkpoint(claim, 7))
    store.delete(PATHS.checkpoint(1))
    view = CheckpointLog(store, PATHS).read()
    assert list(view.retained) == [2, 4, 6, 7]
    store.delete(PATHS.checkpoint(6))
    with pytest.raises(CorruptError):
        CheckpointLog(store, PATHS).read()


def test_a_log_of_the_first_format_keeps_everything(store: ObjectStore) -> None:
    log = CheckpointLog(store, PATHS)
    claim = log.claim("first")
    for number in (1, 2):
        log.append(checkpoint(claim, number))
    assert list(log.read().retained) == [1, 2]
    assert log.read().left == {}


def test_what_was_dropped_cannot_be_retained_again(store: ObjectStore) -> None:
    log = filled(store)
    (_, claim) = log.read().claims
    for retained in ({3: at(3)}, {2: at(99)}, {5: at(5)}):
        with pytest.raises(IncompatibleError, match="cannot retain"):
            log.append(replace(checkpoint(claim, 7), retained=retained))
    assert log.append(replace(checkpoint(claim, 7), retained={6: at(6)})) == 7


def test_only_what_is_retained_is_found(store: ObjectStore) -> None:
    view = filled(store).read()
    assert view.find(at(4)) == view.restorable[1]
    assert [record.id for record in view.left.values()] == [at(1), at(3)]
    with pytest.raises(NotFoundError, match="is no longer retained"):
        view.find("3-0")
    with pytest.raises(NotFoundError, match="no checkpoint `9-0`"):
        view.find("9-0")


def test_a_fenced_owner_appends_nothing_behind_a_way_on(store: ObjectStore) -> None:
    """The last record is damaged in the store, but its owner still runs."""
    owner = filled(store)
    (_, claim) = owner.read().claims
    damage(store, 6)
    go_on_from(store, 4, epoch=4)
    with pytest.raises(FencedError):
        owner.append(replace(checkpoint(claim, 9), retained={}))


class Slow(RemoteObjectStore):
    """A store far away, which counts how many answers are waited for at once."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__("memory://log", store=inner)
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    def get(self, key: str) -> bytes:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.002)
        with self.lock:
            self.now -= 1
        return super().get(key)


def test_records_are_fetched_in_parallel() -> None:
    inner = MemoryStore()
    log = CheckpointLog(RemoteObjectStore("memory://log", store=inner), PATHS)
    claim = log.claim("first")
    for number in range(1, 200):
        log.append(checkpoint(claim, number))
    slow = Slow(inner)
    view = CheckpointLog(slow, PATHS).read()
    assert len(view.checkpoints) == 199
    assert 4 < slow.most <= 16


def test_a_log_that_is_pruned_while_it_is_read(store: ObjectStore) -> None:
    """The reader has listed the log and not fetched it yet when the owner goes on and prunes."""
    owner = CheckpointLog(store, PATHS)
    claim: Claim = owner.claim("owner")
    for number in range(1, 30):
        owner.append(replace(checkpoint(claim, number), retained=owner.known().retained))

    class Reader(RemoteObjectStore):
        lock, done = threading.Lock(), False

        def get(self, key: str) -> bytes:
            with self.lock:
                if not self.done:
                    self.done = True
                    for number in range(30, 80):
                        owner.append(replace(checkpoint(claim, number), retained={}))
                    assert len(owner.prune()) > 50
            return store.get(key)

        def list(self, prefix: str, after: str | None = None) -> list[str]:
            return store.list(prefix, after)

    view = CheckpointLog(Reader("memory://log", store=MemoryStore()), PATHS).read()
    assert view.checkpoints[-1].id == at(79)
    assert list(view.retained) == [79]
