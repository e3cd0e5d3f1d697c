"""The lease: who may try, judged on the observer's own clock; a lost lease is never written again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from penstock.errors import CorruptError, IncompatibleError, PenstockTimeoutError, RetryableError
from penstock.host.posix import process_start
from penstock.job.lease import (
    Lease,
    LeaseHeldError,
    LeaseHolder,
    LeaseKeeper,
    LeaseState,
    LeaseVerdict,
    Sighting,
    acquire,
    judge,
)
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.objects.open import RemoteObjectStore
from penstock.objects.store import ObjectStore
from penstock.testing.faulty_store import FaultyStore

PATHS = JobPaths("flights", "1")
LEASE_MS = 9000
TIMEOUT_S = 60.0
ELSEWHERE = LeaseHolder("elsewhere", 1, "1", "boot", "pid:[1]", "other", "2024-01-01T00:00:00+00:00")


@dataclass
class Time:
    """A clock that moves when somebody waits; `meanwhile` happens during a wait."""

    now: float = 100.0
    waits: list[float] = field(default_factory=list)
    meanwhile: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.waits.append(seconds)
        self.meanwhile()


@pytest.fixture
def store() -> ObjectStore:
    return RemoteObjectStore("memory://lease", store=MemoryStore())


def take(
    store: ObjectStore, clock: Time, me: LeaseHolder = ELSEWHERE, lease_ms: int = LEASE_MS, wait_s: float = 1000.0
) -> Lease:
    return acquire(store, PATHS, me, lease_ms, clock() + wait_s, clock=clock, pause=clock.pause, holder_clock=clock)


def stored(store: ObjectStore) -> LeaseState:
    return LeaseState.decode(store.get(PATHS.lease), PATHS.lease)


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, at most TIMEOUT_S."""
    waiting = threading.Event()
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        waiting.wait(0.005)


def test_an_absent_lease_is_taken_at_once(store: ObjectStore) -> None:
    clock = Time()
    lease = take(store, clock)
    assert clock.waits == []
    assert stored(store).holder == ELSEWHERE
    assert lease.may_start_batch()


def test_a_released_lease_is_taken_at_once(store: ObjectStore) -> None:
    clock = Time()
    first = take(store, clock)
    first.release()
    first.release()
    assert stored(store).released
    assert not first.may_start_batch()
    assert not first.renew()
    take(store, clock, replace(ELSEWHERE, run_id="second"))
    assert clock.waits == []
    assert stored(store).holder.run_id == "second"


def test_a_lease_that_is_renewed_is_refused_by_name(store: ObjectStore) -> None:
    clock = Time()
    first = take(store, clock)
    clock.meanwhile = first.renew
    with pytest.raises(LeaseHeldError, match="pid 1 on host `elsewhere`") as caught:
        take(store, clock, replace(ELSEWHERE, run_id="second"))
    assert caught.value.holder == ELSEWHERE
    assert "(`penstock stop " in str(caught.value)
    assert stored(store).holder == ELSEWHERE


@pytest.mark.parametrize(("theirs", "ours"), [(9000, 1000), (1000, 9000)])
def test_a_lease_that_stands_is_taken_after_the_longer_of_both(store: ObjectStore, theirs: int, ours: int) -> None:
    clock = Time()
    first = take(store, clock, lease_ms=theirs)
    began = clock()
    second = take(store, clock, replace(ELSEWHERE, run_id="second"), lease_ms=ours)
    assert 9.0 <= clock() - began < 9.6
    assert not first.may_start_batch()
    assert second.may_start_batch()
    assert not first.renew()
    assert first.lost is not None
    assert "second" in first.lost
    assert not first.renew()
    first.release()
    assert stored(store).holder.run_id == "second", "a lost lease is never written again"


def test_the_deadline_ends_the_observation(store: ObjectStore) -> None:
    clock = Time()
    take(store, clock)
    with pytest.raises(PenstockTimeoutError, match="observed"):
        take(store, clock, replace(ELSEWHERE, run_id="second"), wait_s=2.0)
    assert sum(clock.waits) == pytest.approx(2.0)


def test_written_times_say_nothing(store: ObjectStore) -> None:
    """A holder whose wall clock is years ahead or behind is observed like any other."""
    for year in ("1970", "2999"):
        clock = Time()
        holder = replace(ELSEWHERE, started_at=f"{year}-01-01T00:00:00+00:00", run_id=year)
        take(store, clock, holder)
        assert stored(store).holder.run_id == year


def test_a_batch_may_start_until_half_of_the_lease_after_the_renewal_began(store: ObjectStore) -> None:
    clock = Time()
    lease = take(store, clock)
    clock.now += 4.4
    assert lease.may_start_batch()
    clock.now += 0.1
    assert not lease.may_start_batch()
    assert lease.renew()
    assert lease.may_start_batch()
    store.delete(PATHS.lease)
    assert not lease.renew()
    assert lease.lost is not None
    assert "deleted" in lease.lost
    assert not lease.may_start_batch()


def test_judge() -> None:
    state = LeaseState(ELSEWHERE, 1000, "t")
    seen = Sighting("a", 50.0)
    assert judge(seen, state, "a", 50.9, 500) is LeaseVerdict.WAIT
    assert judge(seen, state, "a", 51.0, 500) is LeaseVerdict.FREE
    assert judge(seen, state, "a", 51.0, 1500) is LeaseVerdict.WAIT
    assert judge(seen, state, "b", 90.0, 500) is LeaseVerdict.HELD
    assert judge(Sighting(None, 50.0), state, "a", 50.0, 500) is LeaseVerdict.HELD, "made before our eyes"
    assert judge(seen, replace(state, released=True), "b", 50.0, 500) is LeaseVerdict.FREE
    assert judge(seen, None, None, 50.0, 500) is LeaseVerdict.FREE


def test_a_dead_process_of_this_host_is_followed_at_once(store: ObjectStore) -> None:
    clock = Time()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    me = LeaseHolder.of_this_process("me")
    assert not me.known_dead()
    holder = replace(me, pid=child.pid, process_start=process_start(child.pid) or "", run_id="child")
    assert not holder.known_dead()
    take(store, clock, holder)
    child.kill()
    # Dead before it is waited for: a zombie holds no lease either.
    until(holder.known_dead)
    take(store, clock, me)
    assert clock.waits == []
    child.communicate()
    assert holder.known_dead()
    assert replace(me, process_start="1").known_dead(), "the pid was given to another process"
    for other in (
        replace(holder, host="x"),
        replace(holder, boot_id="x"),
        replace(holder, pid_namespace="x"),
        replace(holder, process_start=""),
    ):
        assert not other.known_dead(), "nothing is known of a process elsewhere"


@pytest.mark.parametrize("seed", range(20))
def test_one_of_many_gets_it_whatever_replies_are_lost(seed: int) -> None:
    inner = RemoteObjectStore("memory://lease", store=MemoryStore())
    faulty = FaultyStore(inner, seed, rate=0.3)
    barrier = threading.Barrier(4)

    def attempt(number: int) -> Lease | None:
        barrier.wait(TIMEOUT_S)
        clock = Time()
        try:
            return take(faulty, clock, replace(ELSEWHERE, run_id=str(number)), wait_s=8.0)
        except (LeaseHeldError, PenstockTimeoutError):
            return None

    with ThreadPoolExecutor(4) as pool:
        leases = [lease for lease in pool.map(attempt, range(4)) if lease is not None]
    assert len(leases) == 1
    lease = leases[0]
    assert stored(inner).holder == lease.state.holder
    renewed = 0
    while renewed < 5:
        try:
            renewed += lease.renew()
        except RetryableError:
            continue
        assert lease.lost is None
    while not lease.released:
        try:
            lease.release()
        except RetryableError:
            continue
    assert stored(inner).released


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"format":1}', b'{"format":1,"holder":{},"lease_ms":1,"token":"t"}']
)
def test_a_damaged_lease_names_its_key(store: ObjectStore, data: bytes) -> None:
    store.put_if_absent(PATHS.lease, data)
    with pytest.raises(CorruptError, match=PATHS.lease):
        take(store, Time())


def test_a_newer_lease(store: ObjectStore) -> None:
    store.put_if_absent(PATHS.lease, b'{"format":2}')
    with pytest.raises(IncompatibleError, match=PATHS.lease):
        take(store, Time())


def test_the_keeper_renews_until_it_is_stopped(tmp_path: Path) -> None:
    store = FileObjectStore(tmp_path)
    lease = acquire(store, PATHS, LeaseHolder.of_this_process("me"), 60, time.monotonic() + TIMEOUT_S)
    keeper = LeaseKeeper(lease)
    keeper.start()
    until(lambda: stored(store).renewal >= 3)
    keeper.stop(TIMEOUT_S)
    standing = stored(store)
    assert keeper.failures == 0
    lease.release()
    left = stored(store)
    assert left == replace(standing, renewal=standing.renewal + 1, released=True, renewed_ms=left.renewed_ms)


def test_the_keeper_counts_failures_and_goes_on(store: ObjectStore) -> None:
    faulty = FaultyStore(store, seed=1, rate=0.0)
    lease = acquire(faulty, PATHS, LeaseHolder.of_this_process("me"), 120, time.monotonic() + TIMEOUT_S)
    keeper = LeaseKeeper(lease)
    keeper.start()
    faulty.rate = 1.0
    until(lambda: keeper.failures >= 2 and not lease.may_start_batch())
    assert isinstance(keeper.failure, RetryableError)
    faulty.rate = 0.0
    until(lambda: keeper.failures == 0 and lease.may_start_batch())
    keeper.stop(TIMEOUT_S)


def test_a_keeper_that_never_started_stops(store: ObjectStore) -> None:
    LeaseKeeper(take(store, Time())).stop(0.1)


HOLDER = """
import sys, time
from penstock.objects.file import FileObjectStore
from penstock.job.lease import LeaseHolder, LeaseKeeper, acquire
from penstock.job.paths import JobPaths
me = LeaseHolder.of_this_process("stopped-run")
lease = acquire(FileObjectStore(sys.argv[1]), JobPaths("flights", "1"), me, 600, time.monotonic() + 60)
keeper = LeaseKeeper(lease)
keeper.start()
print("holding", flush=True)
deadline = time.monotonic() + 60
while lease.lost is None and time.monotonic() < deadline:
    time.sleep(0.005)
keeper.stop(60)
lease.release()
print("lost:", lease.lost, lease.may_start_batch(), flush=True)
"""


def test_a_stopped_holder_that_wakes_does_not_overwrite_its_successor(tmp_path: Path) -> None:
    store = FileObjectStore(tmp_path)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        until(lambda: stored(store).renewal >= 1)
        with pytest.raises(LeaseHeldError, match="stopped-run"):
            acquire(store, PATHS, LeaseHolder.of_this_process("early"), 60_000, time.monotonic() + TIMEOUT_S)
        os.kill(holder.pid, signal.SIGSTOP)
        began = time.monotonic()
        lease = acquire(store, PATHS, LeaseHolder.of_this_process("successor"), 600, began + TIMEOUT_S)
        assert time.monotonic() - began >= 0.6, "a stopped process exists: only standing still tells"
        taken = store.get(PATHS.lease)
        os.kill(holder.pid, signal.SIGCONT)
        out, _ = holder.communicate(timeout=TIMEOUT_S)
        assert out.startswith("lost: another driver took this job over: run `successor`")
        assert out.endswith("False\n")
        assert store.get(PATHS.lease) == taken
        assert lease.renew()
    finally:
        holder.kill()
        holder.wait(TIMEOUT_S)
        if holder.stdout is not None:
            holder.stdout.close()
