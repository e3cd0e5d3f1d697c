"""Snapshots of the changelog files backend that fail, are cut off, or are made by two epochs at once."""

from __future__ import annotations

import errno
import logging
import random
from pathlib import Path
from threading import Event

import pytest

from penstock.errors import PenstockError, RetryableError
from penstock.testing.state_backend_harness import EngineName
from tests.support.stores.changelog_job import Job, Task, Version, kind_of, much, of_a_snapshot, open_job, some, zip_key
from tests.support.stores.hooked_store import Call
from tests.support.tools.fixtures import fixture_of

job = fixture_of(open_job, "rocksdb")


def begun(job: Job) -> tuple[Task, list[Version]]:
    """A task of epoch 1, two commits after its first snapshot."""
    rng = random.Random(1)
    task = job.task(1)
    log = [task.commit_and_wait(much(rng, 0, 500), snapshot=True)]
    return task, [*log, task.commit(some(rng)), task.commit(much(rng, 1000, 400))]


class Death:
    """The process dies at the k-th put of a snapshot, before it happens or behind it: nothing works after it."""

    def __init__(self, job: Job, k: int, *, done: bool) -> None:
        self._left = k
        self.came = False
        job.objects.before = self._dead if done else self._die
        job.objects.after = self._die if done else self._dead

    def _die(self, call: Call, key: str) -> None:
        self._dead(call, key)
        if of_a_snapshot(call, key):
            if self._left == 0:
                self.came = True
            self._left -= 1
        self._dead(call, key)

    def _dead(self, call: Call, key: str) -> None:
        if self.came:
            raise RetryableError(f"{call} of {key}: dead")


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["memory", "rocksdb"])
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_death_at_any_step_of_a_snapshot(tmp_path: Path, engine: EngineName, done: bool) -> None:
    """A new epoch continues from the last marker; nothing is lost, and its sweep leaves nothing behind."""
    rng = random.Random(2)
    k, came = 0, True
    while came:
        with open_job(tmp_path / str(k), engine) as job:
            task, log = begun(job)
            death = Death(job, k, done=done)
            log.append(task.commit_and_wait(much(rng, 2000, 300), snapshot=True))
            came = death.came
            task.close()
            job.objects.heal()
            assert all(job.restores(version) for version in log), f"step {k}"
            task = job.task(2, log[-1])
            log.append(task.commit(some(rng)))
            log.append(task.commit_and_wait(much(rng, 3000, 300), snapshot=True))
            log.append(task.commit(some(rng)))
            task.close()
            assert all(job.restores(version) for version in log), f"step {k}"
            job.collect(log[-1:], log[:-1], epoch=3, sweep=True)
            assert job.restores(log[-1]), f"step {k}"
            assert job.stored() == job.needed(log[-1:]), f"step {k}"
            k += 1
    assert k > 4


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), PenstockError("no"), RetryableError("later")])
def test_the_store_is_full_in_a_snapshot(job: Job, caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    task, log = begun(job)
    rng = random.Random(3)

    def full(call: Call, key: str) -> None:
        if of_a_snapshot(call, key):
            raise error

    for _ in range(3):
        job.objects.before = full
        log.append(task.commit_and_wait(much(rng, 2000, 200), snapshot=True))
        number = log[-1].marker.version
        warned = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert f"no snapshot was made of version {number} of store `first` of task 0" in warned[-1].getMessage()
        assert str(error) in warned[-1].getMessage()
        assert warned[-1].exc_info is None
    job.objects.heal()
    log.append(task.commit_and_wait(some(rng), snapshot=True))
    log.append(task.commit())
    assert log[-1].marker.snapshots == ((log[-1].marker.version, 1), (1, 1))
    assert all(job.restores(version) for version in log)
    task.close()
    assert not job.harness.copies


@pytest.mark.parametrize("made", [False, True], ids=["not made", "made, its reply lost"])
def test_the_same_version_is_tried_again_at_the_end(job: Job, caplog: pytest.LogCaptureFixture, made: bool) -> None:
    """With nothing changed since; but RocksDB may have written its files anew, so the second copy is another one."""
    rng = random.Random(5)
    failed = Event()

    def fail(call: Call, key: str) -> None:
        if call == "put" and kind_of(key) == "zip" and not failed.is_set():
            failed.set()
            raise RetryableError("no reply")

    task = job.task(1)
    task.commit(much(rng, 0, 500))
    if made:
        job.objects.after = fail
    else:
        job.objects.before = fail
    task.commit_and_wait(much(rng, 600, 500), snapshot=True)
    assert failed.is_set()
    assert (zip_key(2) in job.stored()) == made
    task.compact()
    caplog.clear()
    last = task.commit_and_wait(snapshot=True)
    assert job.stored("zip") == {zip_key(2)}
    assert job.restores(last)
    assert task.commit().marker.snapshots == ((2, 1),)
    assert not caplog.messages, "a second try of the same version is no second container"


@pytest.mark.parametrize("full", [False, True])
def test_closed_with_one_snapshot_running_and_one_queued(job: Job, full: bool) -> None:
    """Both copies are let go of, and nothing that was begun counts."""
    task, log = begun(job)
    manager, began = task.manager, Event()

    def hold(call: Call, key: str) -> None:
        if of_a_snapshot(call, key):
            began.set()
            assert manager._closing.wait(60)  # type: ignore[attr-defined]
            if full:
                raise OSError(errno.ENOSPC, "no space left")

    job.objects.before = hold
    rng = random.Random(4)
    log += [task.commit(much(rng, 1000 * number, 200), snapshot=True) for number in (2, 3)]
    assert began.wait(60)
    assert len(job.harness.copies) == 2
    task.close()
    assert not job.harness.copies
    assert zip_key(5) not in job.stored()
    job.objects.heal()
    task = job.task(2, log[-1])
    log.append(task.commit(some(rng)))
    assert all(job.restores(version) for version in log)


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("reopened", [False, True])
def test_an_idle_store_is_not_copied_at_every_commit(tmp_path: Path, every: int, reopened: bool) -> None:
    """It may have deltas enough for a snapshot; but while nothing changes a copy, which the next batch waits for, is
    wanted once and not each time."""
    with open_job(tmp_path / "no snapshots") as before, open_job(tmp_path / "snapshots", every=every) as job:
        task = before.task(1)
        last = [task.commit({b"%d" % number: b"x"}) for number in range(8)][-1]
        task.close()
        job.harness.objects = before.objects
        idle = job.task(2, last)
        if not reopened:
            idle.commit_and_wait({b"own": b"1"})
        wanted = 0
        for _ in range(10):
            wanted += idle.manager.wants_copy("first", changed=False, last=False)
            idle.commit_and_wait()
        assert wanted <= 2


@pytest.mark.parametrize("seed", range(4))
def test_two_epochs_at_once(tmp_path: Path, seed: int) -> None:
    """An old container goes on beside the new one. What the new epoch's markers name is its own."""
    rng = random.Random(seed)
    with open_job(tmp_path, "rocksdb" if seed % 2 else "memory", every=2) as job:
        task = job.task(1)
        log = [task.commit(much(rng, 0, 300)), task.commit(some(rng)), task.commit(some(rng))]
        task.close()
        old, new = job.task(2, log[-1]), job.task(3, log[-1])
        lost: list[Version] = []
        for number in range(16):
            if rng.random() < 0.5:
                lost.append(old.commit(much(rng, number * 100, 150), snapshot=rng.random() < 0.2))
            if rng.random() < 0.7:
                log.append(new.commit(much(rng, number * 100, 150), snapshot=rng.random() < 0.2))
            if rng.random() < 0.2:
                job.collect(log, [], epoch=3, sweep=True)
            assert job.restore(log[-1])[0], f"seed {seed}"
        old.finish()
        new.finish()
        log.append(new.commit())
        for version in log:
            assert job.restore(version)[0], f"seed {seed}"
            assert all(epoch != 2 for _, epoch in (*version.marker.snapshots, *version.marker.deltas()))
        old.close()
        new.close()
        job.collect(log[-2:], log[:-2], epoch=4, sweep=True)
        assert job.stored() == job.needed(log[-2:])
        assert all(job.restores(version) for version in log[-2:])
