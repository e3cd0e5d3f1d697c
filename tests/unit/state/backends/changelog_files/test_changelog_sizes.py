"""The cost of snapshots of the changelog files backend, and histories that are long, large, or change their ways."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest

from penstock.objects.open import open_store
from penstock.testing.state_backend_harness import EngineName
from tests.support.stores.changelog_job import (
    Job,
    Version,
    delta_key,
    kind_of,
    much,
    of_a_snapshot,
    open_job,
    some,
    zip_key,
)
from tests.support.stores.hooked_store import HookedStore

MB = 1 << 20


def put_for_snapshots(job: Job) -> int:
    """The bytes of the parts of snapshots that were put since the store was healed."""
    return sum(size for key, size in job.objects.put_sizes.items() if of_a_snapshot("put", key))


def test_the_second_snapshot_puts_only_what_is_new(tmp_path: Path) -> None:
    """This holds for a restored store too: its files are those of the snapshot."""
    rng = random.Random(1)
    with open_job(tmp_path, "rocksdb") as job:
        task = job.task(1)
        task.commit_and_wait(much(rng, 0, 10_000), snapshot=True)
        assert put_for_snapshots(job) > 3 * MB
        first = job.files_of(1)
        assert len(first) > 50
        for epoch in range(1, 4):
            job.objects.heal()
            task.commit(much(rng, epoch * 20_000, 200))
            last = task.commit_and_wait({b"%d" % epoch: b"x"}, snapshot=True)
            assert 60_000 < put_for_snapshots(job) < 150_000, f"epoch {epoch}"
            assert first <= job.files_of(last.marker.version, epoch)
            assert job.restores(last)
            task.close()
            task = job.task(epoch + 1, last)


def test_of_a_failed_snapshot_nothing_is_put_again(tmp_path: Path) -> None:
    """The next one, of a later version, names the files that it had put."""
    rng = random.Random(2)
    with open_job(tmp_path, "rocksdb") as job:
        task = job.task(1)

        def fail(call: str, key: str) -> None:
            if call == "put" and kind_of(key) == "zip":
                raise OSError("no zip today")

        job.objects.before = fail
        task.commit_and_wait(much(rng, 0, 5000), snapshot=True)
        assert not job.stored("zip")
        before = job.stored("files")
        assert put_for_snapshots(job) > MB
        job.objects.heal()
        last = task.commit_and_wait({b"x": b"1"}, snapshot=True)
        assert put_for_snapshots(job) < 100_000
        assert before <= job.files_of(2)
        assert job.restores(last)


def test_the_changelog_is_turned_off_and_on(tmp_path: Path) -> None:
    """Every version's marker restores, whatever the setting is now; with it off every version is a snapshot."""
    rng = random.Random(3)
    objects = HookedStore(open_store(f"memory://{tmp_path}"))
    log: list[Version] = []
    jobs: list[Job] = []
    for epoch, changelog in enumerate((True, False, True, False, False, True), start=1):
        jobs.append(Job(tmp_path / str(epoch), "rocksdb", every=2, changelog=changelog, objects=objects))
        with closing(jobs[-1].task(epoch, log[-1] if log else None)) as task:
            log += [task.commit_and_wait(some(rng), snapshot=rng.random() < 0.2) for _ in range(4)]
            log.append(task.commit())
            number = log[-1].marker.version
            assert (delta_key(number, epoch) in objects.list("")) == changelog
            assert changelog or log[-1].marker == log[-1].marker.of_snapshot(number, epoch)
    for job in jobs[:2]:
        for version in log:
            assert job.restores(version), version.marker
    jobs[0].collect(log[12:], log[:12], epoch=9, sweep=True)
    for version in log[12:]:
        assert jobs[1].restores(version), version.marker
    assert jobs[0].stored() == jobs[0].needed(log[12:])
    for job in jobs:
        job.harness.close()
        assert not job.harness.copies


@pytest.mark.slow
@pytest.mark.parametrize("commits", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_commits_without_a_snapshot(tmp_path: Path, commits: int) -> None:
    with open_job(tmp_path) as job:
        task = job.task(1)
        for number in range(commits):
            last = task.commit({b"%d" % (number % 700): b"%d" % number})
        assert not job.stored("zip")
        assert len(last.markers["first"]) < 100
        assert job.restores(last)
        task.close()
        task = job.task(2, last)
        last = task.commit({b"more": b"1"})
        assert len(last.markers["first"]) < 200
        last = task.commit_and_wait({b"more": b"2"}, snapshot=True)
        job.objects.heal()
        assert job.restores(last)
        assert job.objects.read == [zip_key(commits + 2, 2)]


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["memory", "rocksdb"])
def test_large_values_and_odd_keys(tmp_path: Path, engine: EngineName) -> None:
    objects = HookedStore(open_store(str(tmp_path / "objects")))
    job = Job(tmp_path / "job", engine, objects=objects, max_part_bytes=4 * MB)
    task = job.task(1)
    large = random.Random(4).randbytes(13 * MB)
    task.commit({b"": b"empty", b"k" * (64 << 10): b"", b"never there": None, b"gone": b"1"})
    task.commit({b"large": large, b"gone": None, b"nor this": None})
    snapshot = task.commit_and_wait({b"\x00": b"\xff", b"neither": None}, snapshot=True)
    after = task.commit({b"": None, b"large": b"small", b"absent": None})
    assert set(task.content) == {b"k" * (64 << 10), b"\x00", b"large"}
    assert max(objects.put_sizes[key] for key in job.stored("files")) <= 4 * MB
    assert job.restores(snapshot)
    assert job.restores(after)
    job.harness.close()
    assert not job.harness.copies


@pytest.mark.few(1)
@pytest.mark.parametrize("engines", [("rocksdb", "memory"), ("memory", "rocksdb")], ids=" then ".join)
def test_a_store_becomes_another_kind_of_store(tmp_path: Path, engines: tuple[EngineName, EngineName]) -> None:
    """And becomes what it was: each restores the snapshots of the other, and goes on with its own."""
    rng = random.Random(5)
    objects = HookedStore(open_store(f"memory://{tmp_path}"))
    jobs = [Job(tmp_path / engine, engine, objects=objects) for engine in engines]
    log: list[Version] = []
    for epoch in range(1, 5):
        job = jobs[epoch % 2]
        with closing(job.task(epoch, log[-1] if log else None)) as task:
            log.append(task.commit(much(rng, epoch * 1000, 1500)))
            log.append(task.commit_and_wait(some(rng), snapshot=True))
            log.append(task.commit(much(rng, epoch * 500, 200)))
    assert len(job.stored("zip")) == 4
    for job in jobs:
        assert all(job.restores(version) for version in log)
        job.harness.close()
        assert not job.harness.copies
    left = {path for engine in engines for path in (tmp_path / engine).iterdir() if not path.name.isdigit()}
    assert not left, "nothing may be left beside a restored store"
