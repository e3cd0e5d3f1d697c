"""The gate of the lease: batches wait while it is not renewed, and a driver that lost it ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.driver.watches import LeaseGate
from penstock.errors import FencedError, PenstockTimeoutError
from penstock.job.lease import Lease, LeaseHolder, LeaseKeeper, acquire
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.testing import SettableClock

LEASE_MS = 10_000


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def lease(tmp_path: Path, clock: SettableClock) -> Lease:
    me = LeaseHolder.of_this_process("r")
    return acquire(
        FileObjectStore(tmp_path), JobPaths("a", "1"), me, LEASE_MS, float("inf"), holder_clock=clock.monotonic
    )


@pytest.fixture
def gate(lease: Lease, clock: SettableClock) -> LeaseGate:
    return LeaseGate(LeaseKeeper(lease), LEASE_MS, clock)


def test_a_renewed_lease_lets_batches_pass_at_once(gate: LeaseGate, clock: SettableClock) -> None:
    assert gate.await_batch(threading.Event(), lambda: None)
    assert clock.waited == []


def test_a_batch_waits_until_the_lease_is_renewed(gate: LeaseGate, lease: Lease, clock: SettableClock) -> None:
    clock.advance(LEASE_MS / 1000)
    looks = []

    def look() -> None:
        looks.append(clock.monotonic())
        if len(looks) == 5:
            lease.renew()

    assert gate.await_batch(threading.Event(), look)
    assert len(clock.waited) == len(looks) == 5


def test_a_lease_that_is_not_renewed_ends_the_run(gate: LeaseGate, clock: SettableClock) -> None:
    clock.advance(LEASE_MS / 1000)
    began = clock.monotonic()
    with pytest.raises(PenstockTimeoutError, match=r"could not be renewed for 40 s \(job.lease.ms is 10000\)"):
        gate.await_batch(threading.Event(), lambda: None)
    assert clock.monotonic() - began == pytest.approx(40, abs=1)


def test_who_is_asked_to_stop_waits_no_longer(gate: LeaseGate, clock: SettableClock) -> None:
    clock.advance(LEASE_MS / 1000)
    stop = threading.Event()
    assert not gate.await_batch(stop, stop.set)


def test_a_lost_lease_ends_the_run(gate: LeaseGate, lease: Lease, tmp_path: Path) -> None:
    lease.store.delete(lease.key)
    lease.renew()
    with pytest.raises(FencedError, match=r"was deleted while it ran.*does not count"):
        gate.await_batch(threading.Event(), lambda: None)
    with pytest.raises(FencedError, match="was deleted while it ran"):
        gate.check_commit()
