"""Snapshots by time: also of a store that has changed once and does not change any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.state.backends.changelog_files.keeper import Pace
from tests.support.changelog_job import Job, open_job, zip_key


@pytest.fixture
def due(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the time has come."""
    now = [False]
    monkeypatch.setattr(Pace, "is_due_by_time", property(lambda _: now[0]))
    return now


def test_a_store_that_does_not_change_any_more_gets_its_snapshot_when_it_is_time(
    tmp_path: Path, due: list[bool]
) -> None:
    with open_job(tmp_path) as job:
        task = job.task(1)
        for number in range(3):
            task.commit({b"key": b"%d" % number})
        task.commit_and_wait()
        assert job.stored("zip") == set(), "it is not time yet"
        due[0] = True
        task.commit_and_wait()
        assert job.stored("zip") == {zip_key(3)}
        last = task.commit_and_wait()
        assert job.stored("zip") == {zip_key(3)}, "nothing is behind it"
        assert last.marker.snapshots == ((3, 1),)
        job.objects.read.clear()
        assert job.restores(last)
        assert not [key for key in job.objects.read if key.endswith(".delta")], "no delta is replayed"


def test_so_does_one_that_has_not_changed_since_the_start(tmp_path: Path, due: list[bool]) -> None:
    """Its versions are of an older epoch: the snapshot is of one of this epoch, which it makes for that."""
    with open_job(tmp_path) as job:
        first = job.task(1)
        for number in range(3):
            version = first.commit({b"key": b"%d" % number})
        first.close()
        task = job.task(2, version)
        due[0] = True
        task.commit_and_wait()
        last = task.commit_and_wait()
        assert job.stored("zip") == {zip_key(4, 2)}
        assert last.marker.snapshots == ((4, 2),)
        assert job.restores(last)
        assert not task.manager.wants_copy("first", changed=False, last=False)


def test_an_empty_store_gets_none(tmp_path: Path, due: list[bool]) -> None:
    due[0] = True
    with open_job(tmp_path) as job:
        task = job.task(1)
        assert not task.manager.wants_copy("first", changed=False, last=False)
        task.commit_and_wait()
        assert job.stored() == set()


def test_the_interval_counts_from_the_last_one_that_was_begun(tmp_path: Path) -> None:
    pace = Pace(Job(tmp_path).harness.config.state)
    assert not pace.is_due_by_time, "0 seconds is never"
