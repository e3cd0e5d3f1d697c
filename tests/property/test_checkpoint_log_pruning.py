"""Two drivers that claim, append and prune, and people who set and take off labels, stop and wake up, over a store that
fails: nothing retained or labelled is ever lost, and no slot ever belongs to two records."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from obstore.store import MemoryStore

from penstock.checkpoint import log_view
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView, keep
from penstock.checkpoint.record import CheckpointId, CheckpointRecord, Claim, Record, decode_record
from penstock.config.kinds import RetentionPolicy
from penstock.errors import FencedError, IncompatibleError, NotFoundError, RetryableError
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


def is_of(found: Record, record: CheckpointRecord) -> bool:
    """True if it is the record, whichever labels it took over."""
    return isinstance(found, CheckpointRecord) and (found.id, found.writer) == (record.id, record.writer)


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
        self.labels: dict[str, CheckpointId] = {}
        """Labels that hold for certain: somebody was told so, and nobody has begun to change them since."""

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

    @rule(name=st.sampled_from("ab"), place=st.integers(0, 9))
    def label(self, name: str, place: int) -> None:
        view = self.truth()
        if view.restorable:
            self.set_label(name, view.restorable[place % len(view.restorable)].id)

    @rule(other=drivers, name=st.sampled_from("ab"), place=st.integers(0, 9), commits=st.integers(1, 9))
    def label_slowly(self, other: Driver, name: str, place: int, commits: int) -> None:
        """The command stands still after it looked for the end of the log, while a driver commits and prunes."""
        self.inner.meanwhile = lambda: self.commit(other, commits)
        try:
            self.label(name, place)
        finally:
            self.inner.meanwhile = None

    @rule(name=st.sampled_from("ab"))
    def unlabel(self, name: str) -> None:
        self.set_label(name, None)

    @rule(name=st.sampled_from("ab"), place=st.integers(0, 9))
    def die_while_labelling(self, name: str, place: int) -> None:
        with self.held():
            self.label(name, place)

    def set_label(self, name: str, checkpoint: CheckpointId | None) -> None:
        before = self.labels.pop(name, None)
        try:
            CheckpointLog(self.store, PATHS).label(name, checkpoint, 0)
        except RetryableError:
            return
        except NotFoundError:
            assert checkpoint not in self.truth().retained.values()
            return
        except IncompatibleError:
            assert before != checkpoint
            if before is not None:
                self.labels[name] = before
            return
        if checkpoint is not None:
            self.labels[name] = checkpoint

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
                made = checkpoint(driver.claim, self.number)
                driver.pending = replace(made, retained=driver.log.known().retained_beside(made, POLICY))
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
            assert is_of(self.truth().records[slot], record)
        else:
            made = [decode_record(data, "k") for data in self.inner.made[PATHS.checkpoint(slot)]]
            assert is_of(made[0], record), "a driver that is fenced learns at most of a reply it had lost"
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
            there = any(is_of(other, record) for other in view.checkpoints)
            dropped = any(other.id > record.id for other in view.restorable)
            assert there or dropped, "what was acknowledged is there until a later one drops it"
        newest = view.checkpoints[-1:]
        assert view.restorable[-1:] == newest
        epochs = [claim.epoch for claim in view.claims]
        assert epochs == sorted(set(epochs))

    @invariant()
    def labels_keep_their_checkpoints(self) -> None:
        if not hasattr(self, "inner"):
            return
        view = self.truth()
        held = {name: each.checkpoint for name, each in view.labels.items()}
        assert self.labels.items() <= held.items()
        assert set(self.labels.values()) <= set(view.retained.values())

    @invariant()
    def no_slot_belongs_to_two_records(self) -> None:
        if not hasattr(self, "inner"):
            return
        view = self.truth()
        for key, made in self.inner.made.items():
            first, *again = (decode_record(data, key) for data in made)
            slot = PATHS.slot_of(key)
            assert slot is not None
            if not isinstance(first, CheckpointRecord):
                assert not again, "claims and labels are never deleted"
            for record in again:
                assert record == first or not isinstance(record, CheckpointRecord)
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


def test_a_label_in_the_slot_of_a_record_that_was_not_written() -> None:
    """The owner's put failed without effect. A label takes the slot, and a collection passes it before the owner tries
    again."""
    inner = History()
    owner = CheckpointLog(inner, PATHS)
    claim = owner.claim("run")
    committed(owner, claim, range(1, 3))
    inner.hold = True
    record = replace(checkpoint(claim, 3), retained={})
    with pytest.raises(RetryableError):
        owner.append(record)
    inner.hold, inner.late = False, []
    CheckpointLog(inner, PATHS).label("keep", CheckpointId(1, 0), 0)
    owner.check_owner()
    owner.append(record)
    view = CheckpointLog(inner, PATHS).read()
    assert list(view.labels) == ["keep"]
    assert [each.id.millis for each in view.restorable] == [1, 3]


def test_a_label_that_was_set_again_is_not_taken_off_for_the_one_before() -> None:
    inner = History()
    log = CheckpointLog(inner, PATHS)
    committed(log, log.claim("run"), range(1, 3))
    other = CheckpointLog(inner, PATHS)
    other.label("a", CheckpointId(1, 0), 5)
    seen = other.read().labels["a"]
    other.label("a", None, 6)
    other.label("a", CheckpointId(1, 0), 7)
    other.label("a", None, 8, instead_of=seen)
    assert list(other.read().labels) == ["a"]
    other.label("a", None, 9, instead_of=other.read().labels["a"])
    assert other.read().labels == {}


@pytest.mark.parametrize("seed", range(10))
def test_labels_that_are_set_beside_commits(seed: int) -> None:
    """Once its command has ended, a label keeps its checkpoint. Before, the command stands still while the job commits
    or is started again, or its label comes late into a slot that has been freed."""
    rng = random.Random(seed)
    inner = History()
    owner = CheckpointLog(inner, PATHS)
    claim, number = owner.claim("run"), 0
    held: dict[str, CheckpointId] = {}

    def commit(times: int = 1) -> None:
        nonlocal number
        for _ in range(times):
            number += 1
            made = checkpoint(claim, number)
            owner.append(replace(made, retained=owner.known().retained_beside(made, POLICY)))
            owner.prune()

    step = ""
    for _ in range(40):
        before = step
        step = rng.choice(["commit", "commit", "label", "label", "unlabel", "restart", "late"]) if number else "commit"
        if step == "commit":
            commit()
        elif step == "restart":
            owner = CheckpointLog(inner, PATHS)
            claim = owner.claim("run")
        elif step == "late" and inner.late:
            inner.let_go(rng.randrange(9))
        elif step == "unlabel" and held:
            CheckpointLog(inner, PATHS).label(name := rng.choice(sorted(held)), None, 0)
            del held[name]
        elif step == "label":
            wanted = rng.choice(CheckpointLog(inner, PATHS).read().restorable).id
            name = f"label-{len(inner.made)}"
            between = rng.choice([0, 0, 1, 2, 6])
            inner.meanwhile = partial(commit, between)
            inner.hold = not between and rng.random() < 0.3
            with suppress(RetryableError, NotFoundError):
                CheckpointLog(inner, PATHS).label(name, wanted, 0)
                held[name] = wanted
            inner.hold, inner.meanwhile = False, None
        view = CheckpointLog(inner, PATHS).read()
        labels = {name: each.checkpoint for name, each in view.labels.items()}
        assert held.items() <= labels.items()
        assert set(labels.values()) <= set(view.retained.values())
        assert view.restorable[-1].id == CheckpointId(number, 0)
        unnamed = [each.id for each in view.restorable[:-1] if each.id not in labels.values()]
        if before == step == "commit":
            assert unnamed == [CheckpointId(number - 1, 0)], "what has a label takes no place, and others leave"
