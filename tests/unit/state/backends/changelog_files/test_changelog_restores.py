"""Restores where a snapshot or a delta of the changelog files backend is damaged or missing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from penstock.errors import CorruptError, NotFoundError, PenstockError
from penstock.testing.state_backend_harness import EngineName
from tests.support.stores.changelog_job import Job, Version, delta_key, kind_of, much, open_job, some, zip_key
from tests.support.stores.hooked_store import HookedStore
from tests.support.tools.fixtures import fixture_of

Breakage = Callable[[HookedStore, str], None]


def remove(objects: HookedStore, key: str) -> None:
    objects.delete(key)


def cut(objects: HookedStore, key: str) -> None:
    objects.replace(key, objects.get(key)[:-1])


def halve(objects: HookedStore, key: str) -> None:
    data = objects.get(key)
    objects.replace(key, data[: len(data) // 2])


def empty(objects: HookedStore, key: str) -> None:
    objects.replace(key, b"")


def flip(objects: HookedStore, key: str) -> None:
    data = objects.get(key)
    middle = len(data) // 2
    objects.replace(key, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])


BREAKAGES = [remove, cut, halve, empty, flip]


@pytest.fixture(params=["memory", "rocksdb"])
def engine(request: pytest.FixtureRequest) -> EngineName:
    name: EngineName = request.param
    return name


job = fixture_of(open_job, using=("tmp_path", "engine"))


def a_history(job: Job, *snapshots: int, commits: int = 9) -> Version:
    """Its last version; each snapshot has a file that the others do not have."""
    rng = random.Random(5)
    task = job.task(1)
    for number in range(1, commits):
        changes = much(rng, number * 1000, 200) if number in snapshots else some(rng)
        task.commit_and_wait(changes, snapshot=number in snapshots)
    last = task.commit_and_wait(some(rng), snapshot=commits in snapshots)
    assert job.stored("zip") == {zip_key(number) for number in snapshots}
    return last


def own_file(job: Job, number: int, other: int) -> str:
    """A shared file of a snapshot that another one does not have."""
    return min(job.files_of(number) - job.files_of(other))


@pytest.mark.few(5)
@pytest.mark.parametrize("part", ["zip", "files"])
@pytest.mark.parametrize("breakage", BREAKAGES)
def test_the_older_snapshot_and_more_deltas(job: Job, part: str, breakage: Breakage) -> None:
    last = a_history(job, 4, 7)
    broken = zip_key(7) if part == "zip" else own_file(job, 7, 4)
    breakage(job.objects, broken)
    job.objects.heal()
    exact, notes = job.restore(last)
    assert exact
    assert len(notes) == 1
    assert broken in notes[0]
    assert zip_key(7) in notes[0]
    assert "an older one and more deltas were used instead" in notes[0]
    assert {key for key in job.objects.read if kind_of(key) == "delta"} == {delta_key(n) for n in range(5, 10)}
    assert zip_key(4) in job.objects.read


@pytest.mark.few(5)
@pytest.mark.parametrize("part", ["zip", "files"])
@pytest.mark.parametrize("breakage", BREAKAGES)
def test_all_snapshots_broken_and_every_delta_there(job: Job, part: str, breakage: Breakage) -> None:
    """As long as a marker names fewer than two snapshots, it names all deltas."""
    rng = random.Random(6)
    task = job.task(1)
    first = task.commit_and_wait(much(rng), snapshot=True)
    second = task.commit(some(rng))
    breakage(job.objects, zip_key(1) if part == "zip" else max(job.files_of(1)))
    for version in (first, second):
        exact, notes = job.restore(version)
        assert exact
        # A snapshot that is gone is noted where the marker names it.
        assert all(zip_key(1) in note for note in notes)
        assert len(notes) == int(part == "files" or breakage is not remove or version.marker.snapshots != ())


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_all_snapshots_broken_and_deltas_gone(job: Job, breakage: Breakage) -> None:
    last = a_history(job, 4, 7)
    job.collect([last], [], epoch=2, sweep=True)
    broken = min(job.files_of(4))
    breakage(job.objects, zip_key(7))
    breakage(job.objects, broken)
    with pytest.raises(PenstockError, match="version 9 of store `first` of task 0 cannot be rebuilt") as raised:
        job.restore(last)
    assert type(raised.value) is (NotFoundError if breakage is remove else CorruptError)
    for key in (zip_key(7), zip_key(4), broken):
        assert key in str(raised.value)


def test_the_only_snapshot_broken_and_the_first_delta_gone(job: Job) -> None:
    last = a_history(job, 4)
    flip(job.objects, zip_key(4))
    job.objects.delete(delta_key(1))
    with pytest.raises(NotFoundError) as raised:
        job.restore(last)
    assert delta_key(1) in str(raised.value)
    assert zip_key(4) in str(raised.value), "what would make the delta needless is not named"


def test_a_snapshot_under_another_ones_name_is_not_used(job: Job) -> None:
    last = a_history(job, 4, 7)
    job.objects.replace(zip_key(7), job.objects.get(zip_key(4)))
    exact, notes = job.restore(last)
    assert exact
    assert "is a snapshot of version (4, 1)" in notes[0]


@pytest.mark.few(5)
@pytest.mark.parametrize("breakage", BREAKAGES)
@pytest.mark.parametrize(("lost", "intact"), [(9, "versions 7 to 8"), (8, "version 7")])
def test_a_damaged_delta_after_the_snapshot(job: Job, breakage: Breakage, lost: int, intact: str) -> None:
    last = a_history(job, 4, 7)
    breakage(job.objects, delta_key(lost))
    with pytest.raises(PenstockError) as raised:
        job.restore(last)
    assert type(raised.value) is (NotFoundError if breakage is remove else CorruptError)
    text = str(raised.value)
    assert delta_key(lost) in text
    assert "version 9 of store `first` of task 0 cannot be rebuilt" in text
    assert f"Before it {intact} can be" in text


def test_a_damaged_delta_before_the_snapshot_is_not_needed(job: Job) -> None:
    last = a_history(job, 4, 7)
    for number in range(1, 8):
        flip(job.objects, delta_key(number))
    assert job.restores(last)


@pytest.mark.few(2)
@pytest.mark.parametrize("part", ["zip", "files"])
@pytest.mark.parametrize("breakage", [remove, flip])
def test_what_is_continued_after_a_fallback_has_two_ways_again(job: Job, part: str, breakage: Breakage) -> None:
    """The next epoch makes a snapshot; with that one broken, too, everything can still be rebuilt."""
    last = a_history(job, 4, 7)
    breakage(job.objects, zip_key(7) if part == "zip" else own_file(job, 7, 4))
    job.objects.heal()
    rng = random.Random(7)
    task = job.task(2, last)
    made = task.commit_and_wait(some(rng), snapshot=True)
    following = task.commit(some(rng))
    job.collect([following], [last, made], epoch=3, sweep=True)
    assert job.restores(following)
    remove(job.objects, zip_key(10, 2))
    assert job.restore(following)[0]


def test_a_marker_whose_snapshots_are_gone_is_not_continued(job: Job) -> None:
    """Another backend restored the store: what follows begins anew, and restores."""
    last = a_history(job, 4, 7)
    job.collect([last], [], epoch=1, sweep=True)
    for number in (4, 7):
        job.objects.delete(zip_key(number))
    content = {"first": last.content, "second": {}}
    task = job.harness.backup(2, last.markers, content=content)
    markers = task.commit_changes({"first": {b"new": b"1"}}, complete=True)
    assert job.restores(Version(markers, {**last.content, b"new": b"1"}))
