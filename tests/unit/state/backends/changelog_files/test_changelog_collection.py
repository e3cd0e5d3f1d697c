"""After a collection of the changelog files backend, every retained marker restores, in each way it names."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.errors import CorruptError, NotFoundError, RetryableError
from penstock.testing.state_backend_harness import EngineName
from tests.support.stores.changelog_job import Job, Version, delta_key, much, open_job, some, zip_key
from tests.support.tools.fixtures import fixture_of

job = fixture_of(open_job)


def break_zip(job: Job, key: str) -> bytes:
    """Change a byte of an object; what it was."""
    data = job.objects.get(key)
    job.objects.replace(key, data[:-70] + bytes([data[-70] ^ 1]) + data[-69:])
    return data


def check(job: Job, retained: Sequence[Version]) -> None:
    """Each restores from its newest snapshot, and with that one broken in another way."""
    for version in retained:
        job.objects.heal()
        assert job.restores(version)
        if read := [key for key in job.objects.read if key.endswith(".zip")]:
            before = break_zip(job, read[0])
            exact, notes = job.restore(version)
            assert exact
            assert read[0] in notes[0]
            job.objects.replace(read[0], before)


@pytest.mark.few(1)
@pytest.mark.parametrize("retained", [1, 4, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 5))])
def test_forty_commits_and_a_collection_after_each(tmp_path: Path, retained: int) -> None:
    rng = random.Random(retained)
    with open_job(tmp_path, every=3) as job:
        task, log = job.task(1), list[Version]()
        for number in range(40):
            changes = much(rng, number * 100, 150) if number % 7 == 3 else some(rng)
            log.append(task.commit_and_wait(changes))
            job.collect(log[-retained:], log[-retained - 1 : -retained], epoch=1, sweep=rng.random() < 0.3)
            check(job, log[-retained:])
            # With three commits a snapshot on average, four at most: the older one is at most eight commits back.
            assert len(job.stored("delta")) <= 8 + retained
            assert len(job.stored("zip")) <= 3 + retained // 2
        floor = log[-retained].marker.snapshots[-1]
        assert delta_key(floor[0]) not in job.stored()
        assert delta_key(floor[0] + 1) in job.stored()
        task.close()
        job.collect(log[-retained:], [], epoch=2, sweep=True)
        assert job.stored() == job.needed(log[-retained:])


def test_files_that_only_an_older_snapshot_had_are_gone(tmp_path: Path) -> None:
    rng = random.Random(1)
    with open_job(tmp_path, "rocksdb") as job:
        task = job.task(1)
        log = [task.commit_and_wait(much(rng, number * 1000, 200), snapshot=True) for number in range(6)]
        log.append(task.commit())
        assert log[-1].marker.snapshots == ((6, 1), (5, 1))
        unshared = job.files_of(1) - job.files_of(5) - job.files_of(6)
        shared = job.files_of(1) & job.files_of(6)
        assert unshared or shared
        job.collect(log[-1:], log[:-1], epoch=1)
        assert job.stored() == {delta_key(6), zip_key(5), zip_key(6), *job.files_of(5), *job.files_of(6)}
        check(job, log[-1:])


@pytest.mark.few(6)
@pytest.mark.parametrize("engine", ["memory", "rocksdb"])
@pytest.mark.parametrize("sweep", [False, True])
@pytest.mark.parametrize("newest", [False, True], ids=["a found one", "a named one"])
@pytest.mark.parametrize("lost", [False, True], ids=["damaged", "missing"])
def test_a_broken_snapshot_does_not_cost_the_older_one(
    tmp_path: Path, engine: EngineName, newest: bool, sweep: bool, lost: bool
) -> None:
    rng = random.Random(2)
    with open_job(tmp_path, engine) as job:
        task = job.task(1)
        log = [task.commit_and_wait(much(rng, number * 300, 200), snapshot=number in (1, 3, 5)) for number in range(8)]
        last = log[7] if newest else log[5]
        assert last.marker.snapshots == (((6, 1), (4, 1)) if newest else ((4, 1), (2, 1)))
        task.close()
        if lost:
            job.objects.delete(zip_key(6))
        else:
            break_zip(job, zip_key(6))
        for _ in range(2):
            left = [version for version in log if version.markers != last.markers]
            if newest:  # what a retained marker names is unknown, so nothing may go
                before = job.stored()
                with pytest.raises((CorruptError, NotFoundError), match=re.escape(zip_key(6))):
                    job.collect([last], left, epoch=2, sweep=sweep)
                assert job.stored() == before
            else:
                job.collect([last], left, epoch=2, sweep=sweep)
            assert job.restore(last)[0]
            for number, epoch in last.marker.snapshots:
                assert number == 6 or (zip_key(number, epoch) in job.stored() and job.files_of(number) <= job.stored())
        task = job.task(2, last)
        following = task.commit_and_wait(some(rng), snapshot=True)
        assert job.restores(following)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("sweep", "done"),
    [
        (False, False),
        (True, True),
        *(pytest.param(*both, marks=pytest.mark.slow) for both in ((False, True), (True, False))),
    ],
)
def test_a_collection_that_ends_at_any_step(tmp_path: Path, sweep: bool, done: bool) -> None:
    """The k-th deletion is the last thing that happens, or that does not, for every k; the next one ends as it would
    have ended."""
    steps = 0
    for k in range(1000):
        with open_job(tmp_path / str(k)) as job:
            log, retained = a_log(job)
            left = [version for version in log if version not in retained]
            planned = job.collect(retained, left, epoch=3, sweep=sweep, dry_run=True).names
            if k == len(planned):
                break
            after = job.stored() - set(planned)
            stop_at(job, planned[k], done=done)
            with pytest.raises(RetryableError, match="the end"):
                job.collect(retained, left, epoch=3, sweep=sweep)
            assert len(job.stored()) == len(after) + len(planned) - k - done
            job.objects.heal()
            for version in retained:
                assert job.restores(version), f"step {k}"
            job.collect(retained, left, epoch=3, sweep=sweep)
            assert job.stored() == after, f"step {k}"
            for version in retained:
                assert job.restores(version), f"step {k}"
            steps += 1
    assert steps > 10


def a_log(job: Job) -> tuple[list[Version], list[Version]]:
    """Versions of two epochs, with what a rewind left behind; and two of them that are retained."""
    rng = random.Random(3)
    task, log = job.task(1), list[Version]()
    for number in range(11):
        if number == 5:
            task.commit(much(rng, 9000, 150), snapshot=True, logged=False)
            task.finish()
            task.close()
            task = job.task(2, log[-1])
        log.append(task.commit_and_wait(much(rng, number * 200, 150), snapshot=number % 2 == 0))
    task.close()
    return log, log[-3::2]


def stop_at(job: Job, last: str, *, done: bool) -> None:
    """Let no deletion happen from this key on, or behind it."""
    over = False

    def stop(call: str, key: str) -> None:
        nonlocal over
        if call == "delete" and (over or key == last):
            over = True
            raise RetryableError("the end")

    job.objects.after, job.objects.before = (stop, job.objects.before) if done else (job.objects.after, stop)
