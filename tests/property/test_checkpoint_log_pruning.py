"""Two drivers that claim, append and prune, stop and wake up, over a store that fails: nothing retained is ever lost,
and no slot ever belongs to two records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from obstore.store import MemoryStore

from penstock.checkpoint import log_view
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView, keep
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim, decode_record
from penstock.config.values.kinds import RetentionPolicy
from penstock.errors import FencedError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.open import RemoteObjectStore
from penstock.testing.faulty_store import FaultyStore
from tests.support.stores.checkpoints import checkpoint

PATHS = JobPaths("flights", "1")
POLICY = RetentionPolicy(2)


@pytest.fixture(autouse=True, scope="module")
def short_tail() -> Iterator[None]:
    """A short tail, so that few records suffice for slots to be freed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_view, "TAIL", 2)
        yield


class History(RemoteObjectStore):
    """An object store that remembers everything that was ever made under a key, and can be late with it.

    A put that was `held` back fails, as far as its caller knows, and happens when it is let go: it was under way while
    its driver, or the network, stood still. `meanwhile` happens once, just before the next put.
    """

    def __init__(self) -> None:
        super().__init__("memory://log", store=MemoryStore())
        self.made: dict[str, list[bytes]] = {}
        self.hold = False
        self.late: list[tuple[str, bytes]] = []
        self.meanwhile: Callable[[], None] | None = None

    def put_if_absent(self, key: str, data: bytes) -> bool:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        if self.hold:
            self.late.append((key, data))
            raise RetryableError("held back")
        done = super().put_if_absent(key, data)
        if done:
            self.made.setdefault(key, []).append(data)
        return done

    def let_go(self, number: int) -> None:
        key, data = self.late.pop(number % len(self.late))
        self.put_if_absent(key, data)


@dataclass
class Driver:
    log: CheckpointLog
    claim: Claim
    pending: CheckpointRecord | None = None


class PruningMachine(RuleBasedStateMachine):
    drivers = Bundle("drivers")

    @initialize(seed=st.integers(0, 2**32), lag=st.integers(0, 2), rate=st.sampled_from((0.0, 0.1)))
    def open(self, seed: int, lag: int, rate: float) -> None:
        self.inner = History()
        self.store = FaultyStore(self.inner, seed, rate, lag=lag)
        self.number = 0
        self.acknowledged: list[CheckpointRecord] = []

    def truth(self) -> LogView:
        return CheckpointLog(self.inner, PATHS).read()

    @rule(target=drivers)
    def start(self):  # type: ignore[no-untyped-def]
        return self.claimed(CheckpointLog(self.store, PATHS))

    @rule(target=drivers, other=drivers, commits=st.integers(1, 9))
    def start_slowly(self, other: Driver, commits: int):  # type: ignore[no-untyped-def]
        """It stands still after it looked for the end of the log, while another driver works."""
        self.inner.meanwhile = lambda: self.commit(other, commits)
        return self.claimed(CheckpointLog(self.store, PATHS))

    @rule(target=drivers, driver=consumes(drivers))
    def rewind(self, driver: Driver):  # type: ignore[no-untyped-def]
        return self.claimed(driver.log)

    def claimed(self, log: CheckpointLog):  # type: ignore[no-untyped-def]
        try:
            claim = log.claim(f"run-{self.number}")
        except (RetryableError, FencedError):
            return multiple()
        finally:
            self.inner.meanwhile = None
        assert self.truth().owner == claim
        return Driver(log, claim)

    @rule()
    def die_while_claiming(self) -> None:
        with self.held(), suppress(RetryableError):
            CheckpointLog(self.store, PATHS).claim("died")

    @rule(driver=drivers)
    def stop_while_appending(self, driver: Driver) -> None:
        with self.held():
            self.commit(driver, 1)

    @contextmanager
    def held(self) -> Iterator[None]:
        self.inner.hold = True
        try:
            yield
        finally:
            self.inner.hold = False

    @rule(driver=drivers, times=st.integers(1, 9))
    def commit(self, driver: Driver, times: int) -> None:
        """Append and prune, as a driver does again and again."""
        for _ in range(times):
            if driver.pending is None:
                self.number += 1
                kept = keep(driver.log.known().retained, CheckpointId(self.number, 0), POLICY)
                driver.pending = replace(checkpoint(driver.claim, self.number), retained=kept)
            try:
                self.append(driver, driver.pending)
                self.prune(driver)
            except (RetryableError, FencedError):
                return

    def append(self, driver: Driver, record: CheckpointRecord) -> None:
        before = self.truth()
        slot = driver.log.append(record)
        driver.pending = None
        assert before.owner is not None
        if before.owner.writer == driver.claim.writer:
            assert self.truth().records[slot] == record
        else:
            made = [decode_record(data, "k") for data in self.inner.made[PATHS.checkpoint(slot)]]
            assert made[0] == record, "a driver that is fenced learns at most of a reply it had lost"
        self.acknowledged.append(record)

    def prune(self, driver: Driver) -> None:
        before = self.truth()
        try:
            driver.log.prune()
        finally:
            after = self.truth()
            assert before.retained == after.retained
            assert before.owner == after.owner
            assert self.first_claims() <= {*after.claims}, "only what came late into a freed slot may go"
            assert after.left.items() <= before.left.items()
            if before.owner is None or before.owner.writer != driver.claim.writer:
                assert before == after, "only the owner prunes"

    def first_claims(self) -> set[Claim]:
        """The claims that took a slot nobody had had before."""
        first = [decode_record(made[0], key) for key, made in self.inner.made.items()]
        return {record for record in first if isinstance(record, Claim)}

    @rule(driver=drivers)
    def skip_the_failed_one(self, driver: Driver) -> None:
        """A driver that forgets a record whose fate it does not know may not append another one."""
        if driver.pending is not None:
            self.number += 1
            with suppress(RetryableError, FencedError):
                driver.log.append(replace(checkpoint(driver.claim, self.number), retained={}))

    @rule(number=st.integers(0, 99))
    def let_go(self, number: int) -> None:
        """The write under way arrives."""
        if self.inner.late:
            self.inner.let_go(number)

    @rule()
    def read(self) -> None:
        truth = self.truth()
        try:
            assert CheckpointLog(self.store, PATHS).read() == truth
        except RetryableError:
            return

    @invariant()
    def the_log_is_whole(self) -> None:
        if not hasattr(self, "inner"):
            return
        view = self.truth()
        assert not view.faults
        for record in self.acknowledged:
            there = record in view.checkpoints
            dropped = any(other.id > record.id for other in view.restorable)
            assert there or dropped, "what was acknowledged is there until a later one drops it"
        newest = view.checkpoints[-1:]
        assert view.restorable[-1:] == newest
        epochs = [claim.epoch for claim in view.claims]
        assert epochs == sorted(set(epochs))

    @invariant()
    def no_slot_belongs_to_two_records(self) -> None:
        if not hasattr(self, "inner"):
            return
        view = self.truth()
        for key, made in self.inner.made.items():
            first, *again = (decode_record(data, key) for data in made)
            slot = PATHS.slot_of(key)
            assert slot is not None
            if isinstance(first, Claim):
                assert not again, "a claim is never deleted"
            for record in again:
                assert record == first or isinstance(record, Claim)
                if isinstance(record, Claim) and record != first:
                    assert view.owner != record
                    assert all(other.writer != record.writer for other in view.checkpoints), "nothing came of it"


TestPruningMachine = PruningMachine.TestCase


def committed(log: CheckpointLog, claim: Claim, numbers: range, policy: RetentionPolicy = POLICY) -> None:
    for number in numbers:
        kept = keep(log.known().retained, CheckpointId(number, 0), policy)
        log.append(replace(checkpoint(claim, number), retained=kept))


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_claim_that_comes_late_into_a_freed_slot_does_not_count(rounds: int) -> None:
    """A driver stops between looking for the end and claiming there; the job goes on and frees that slot."""
    inner = History()
    owner = CheckpointLog(inner, PATHS)
    claim = owner.claim("owner")
    committed(owner, claim, range(1, 3))
    late = CheckpointLog(inner, PATHS)

    def the_job_goes_on() -> None:
        nonlocal owner, claim
        for at in range(rounds):
            committed(owner, claim, range(10 + 20 * at, 20 + 20 * at))
            assert 3 in owner.prune() or at
            owner = CheckpointLog(inner, PATHS)
            claim = owner.claim("restarted")

    inner.meanwhile = the_job_goes_on
    mine = late.claim("late")
    view = CheckpointLog(inner, PATHS).read()
    assert inner.made[PATHS.checkpoint(3)][1:], "the slot was taken again"
    assert view.owner == mine
    assert mine.epoch > claim.epoch
    assert list(view.void) == [3]
    with pytest.raises(FencedError):
        committed(owner, claim, range(100, 101))
    committed(late, mine, range(100, 110))
    assert late.prune()
    assert 3 in CheckpointLog(inner, PATHS).read().void, "a claim is never deleted, not even this one"


def test_a_driver_with_a_lost_reply_wakes_after_its_record_was_pruned() -> None:
    """It makes the same record again, which nobody wants, and nothing else."""
    inner = History()
    store = FaultyStore(inner, 0, 0.0)
    old, new = CheckpointLog(store, PATHS), CheckpointLog(inner, PATHS)
    first = old.claim("old")
    committed(old, first, range(1, 3))
    inner.hold = True
    record = replace(checkpoint(first, 3), retained={2: CheckpointId(2, 0)})
    with pytest.raises(RetryableError):
        old.append(record)
    inner.hold = False
    inner.let_go(0)
    committed(new, new.claim("new"), range(4, 12))
    assert 3 in new.prune()
    with pytest.raises(FencedError, match="whether 3-0 is in the log"):
        old.append(checkpoint(first, 9))
    assert old.append(record) == 3, "it was in the log before the job was taken over, and that is what it learns"
    with pytest.raises(FencedError, match="claimed by epoch 2"):
        old.append(checkpoint(first, 9))
    view = CheckpointLog(inner, PATHS).read()
    assert list(view.left) == [3, 10], "nobody retains it"
    assert view.owner is not None
    assert view.owner.run_id == "new"


def test_pruning_by_a_driver_that_was_fenced_deletes_nothing() -> None:
    inner = History()
    old = CheckpointLog(inner, PATHS)
    committed(old, old.claim("old"), range(1, 10))
    CheckpointLog(inner, PATHS).claim("new")
    before = inner.list("")
    for _ in range(2):
        with pytest.raises(FencedError, match="claimed by epoch 2 of run `new`"):
            old.prune()
    assert inner.list("") == before


def test_what_is_pruned() -> None:
    inner = History()
    log = CheckpointLog(inner, PATHS)
    claim = log.claim("run")
    assert log.prune() == ()
    for number in range(1, 10):
        log.append(checkpoint(claim, number))
    assert log.prune() == (), "nothing is dropped yet"
    log.append(replace(checkpoint(claim, 10), retained={4: CheckpointId(4, 0)}))
    assert list(log.known().left) == [1, 2, 3, 5, 6, 7, 8, 9]
    assert log.prune({2, 4, 0, 10, 9}) == (2,), "only what was dropped, before the tail, of what was asked for"
    assert list(log.uncollected(log.known())) == [1, 3, 5, 6, 7, 8], "9 waits for its slot to be freed"
    assert log.prune() == (1, 3, 5, 6, 7)
    assert log.uncollected(log.known()) == {}
    assert log.prune() == ()
    view = CheckpointLog(inner, PATHS).read()
    assert list(view.records) == [0, 4, 8, 9, 10]
    assert list(view.retained) == [4, 10]
    assert view.end == 11
    log.append(replace(checkpoint(claim, 11), retained={4: CheckpointId(4, 0)}))
    log.append(replace(checkpoint(claim, 12), retained={4: CheckpointId(4, 0)}))
    assert list(log.uncollected(log.known())) == [10, 11]
    assert log.prune({10}) == (8, 9), "those that had to wait go too"
    again = CheckpointLog(inner, PATHS)
    again.claim("again")
    assert again.prune() == (), "what an older owner dropped, the new one has not said yet"
