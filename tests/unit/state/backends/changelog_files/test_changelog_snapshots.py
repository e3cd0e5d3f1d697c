"""Snapshots of the changelog files backend: their content, restores from them, and what a clean stop leaves."""

from __future__ import annotations

import random
from pathlib import Path
from threading import Event

import pytest

from penstock.errors import CorruptError, IncompatibleError
from penstock.state.backends.changelog_files.versions import ChangelogMarker, StoreSnapshot
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
from tests.support.stores.hooked_store import Call
from tests.support.tools.fixtures import fixture_of

job = fixture_of(open_job)


rocksdb = fixture_of(open_job, "rocksdb")


def read_by(job: Job, version: Version) -> dict[str, list[str]]:
    """The objects that a restore reads, by kind; it must be exact and have nothing to note."""
    job.objects.heal()
    assert job.restores(version)
    read: dict[str, list[str]] = {"delta": [], "zip": [], "files": []}
    for key in job.objects.read:
        read[kind_of(key)].append(key)
    return read


# -- formats --


def test_a_marker_with_snapshots_as_it_is_written() -> None:
    marker = ChangelogMarker(9, ((1, 4, 7), (3, 8, 9)), ((8, 3), (3, 1)))
    text = '{"format":1,"version":9,"epoch":3,"lineage":[[1,4,7],[3,8,9]],"snapshots":[[8,3],[3,1]]}'
    assert marker.serialize() == text
    assert ChangelogMarker.parse(text) == marker


def test_a_marker_of_the_first_format_is_read() -> None:
    text = '{"format":1,"version":3,"epoch":2,"lineage":[[1,1,2],[2,3,3]]}'
    assert ChangelogMarker.parse(text) == ChangelogMarker(3, ((1, 1, 2), (2, 3, 3)), ())


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ('"version":9,"lineage":[[1,5,9]],"snapshots":[[3,1]]', "a gap before version 5"),
        ('"version":9,"lineage":[[1,4,9]],"snapshots":[[3,1],[8,1]]', "gap|not in order"),
        ('"version":9,"lineage":[[1,4,9]],"snapshots":[[10,1],[3,1]]', "not in order"),
        ('"version":9,"lineage":[[1,4,9]],"snapshots":[[3,1],[3,1]]', "not in order"),
        ('"version":9,"lineage":[],"snapshots":[[8,1]]', "ends at version 8"),
        ('"version":9,"lineage":[[1,1,9]],"snapshots":[[0,1]]', "not in order"),
        ('"version":9,"lineage":[[1,4,9]],"snapshots":[[3]]', "is not a marker"),
        ('"version":9,"lineage":[[1,4,9]],"snapshots":7', "is not a marker"),
    ],
)
def test_snapshots_that_do_not_lead_to_the_version_are_refused(rest: str, said: str) -> None:
    with pytest.raises(CorruptError, match=said):
        ChangelogMarker.parse('{"format":1,"epoch":1,' + rest + "}")


def test_a_snapshot_of_a_newer_format_is_refused_as_such(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    version = job.task(1).commit_and_wait({b"a": b"1"}, snapshot=True)
    monkeypatch.setattr("penstock.state.backends.changelog_files.versions.SNAPSHOT_FORMAT", 7)
    newer = StoreSnapshot.decode(job.objects.get(zip_key(1)), "").encode()
    monkeypatch.undo()
    job.objects.replace(zip_key(1), newer)
    with pytest.raises(IncompatibleError, match=r"1\.1\.zip` has format 7"):
        job.restore(version)


# -- what a restore reads --


@pytest.mark.parametrize("engine", ["memory", "rocksdb"])
def test_a_restore_reads_one_snapshot_and_the_deltas_after_it(tmp_path: Path, engine: EngineName) -> None:
    rng = random.Random(1)
    with open_job(tmp_path, engine) as job:
        task = job.task(1)
        task.commit(much(rng))
        versions = [task.commit_and_wait(some(rng), snapshot=number in (2, 6)) for number in range(10)]
        named = [version.marker.snapshots for version in versions]
        assert named == [()] * 3 + [((4, 1),)] * 4 + [((8, 1), (4, 1))] * 3
        assert job.stored("zip") == {zip_key(4), zip_key(8)}
        for number, version in enumerate(versions, start=2):
            newest = max((made for made in (4, 8) if made <= number), default=0)
            read = read_by(job, version)
            assert read["zip"] == ([zip_key(newest)] if newest else [])
            assert set(read["files"]) == (job.files_of(newest) if newest else set())
            assert read["delta"] == [delta_key(later) for later in range(newest + 1, number + 1)]
        assert job.files_of(8)


def test_what_is_not_in_the_lineage_is_not_read(job: Job) -> None:
    """A snapshot of another epoch's version of the same number."""
    first = job.task(1).commit({b"a": b"1"})
    job.task(2, first).commit_and_wait({b"a": b"dead"}, snapshot=True)
    live = job.task(3, first).commit({b"a": b"live"})
    assert job.stored("zip") == {zip_key(2, 2)}
    assert read_by(job, live) == {"delta": [delta_key(1), delta_key(2, 3)], "zip": [], "files": []}


@pytest.mark.parametrize("engine", ["memory", "rocksdb"])
@pytest.mark.parametrize("seed", range(4))
def test_a_snapshot_is_exactly_its_version(tmp_path: Path, engine: EngineName, seed: int) -> None:
    """Commits go on while the uploads of snapshots are held; then only the snapshots are left of what was before."""
    rng = random.Random(seed)
    gate = Event()

    def hold(call: Call, key: str) -> None:
        assert not of_a_snapshot(call, key) or gate.wait(60)

    with open_job(tmp_path, engine) as job:
        task, log, begun = job.task(1), list[Version](), list[Version]()
        for _ in range(5):
            gate.clear()
            job.objects.before = hold
            log.append(task.commit(much(rng, rng.randrange(50)), snapshot=True))
            begun.append(log[-1])
            log += [task.commit(some(rng)) for _ in range(rng.randrange(1, 5))]
            assert zip_key(begun[-1].marker.version) not in job.stored()
            gate.set()
            task.finish()
        log.append(task.commit())
        assert job.stored("zip") == {zip_key(version.marker.version) for version in begun}
        for snapshot in begun:
            for delta in sorted(job.stored("delta")):
                if int(delta.rpartition("/")[2].partition(".")[0]) <= snapshot.marker.version:
                    job.objects.delete(delta)
            for version in log[log.index(snapshot) :]:
                assert job.restores(version), f"seed {seed}, {version.marker}"


# -- a clean stop --


@pytest.mark.parametrize("held", [False, True], ids=["idle", "while one is made"])
@pytest.mark.parametrize("unchanged", [False, True], ids=["changed", "unchanged"])
@pytest.mark.parametrize("engine", ["memory", "rocksdb"])
def test_after_a_clean_stop_no_delta_is_read(tmp_path: Path, engine: EngineName, unchanged: bool, held: bool) -> None:
    rng = random.Random(2)
    gate = Event()

    def hold(call: Call, key: str) -> None:
        assert not of_a_snapshot(call, key) or gate.wait(60)

    with open_job(tmp_path, engine) as job:
        task = job.task(1)
        for _ in range(3):
            task.commit(some(rng))
        if held:
            job.objects.before = hold
            task.commit(much(rng), snapshot=True)
            task.commit(some(rng))
        last = task.commit({} if unchanged else much(rng, 100), snapshot=True)
        gate.set()
        task.finish()
        task.close()
        number = last.marker.version
        assert read_by(job, last)["delta"] == []
        # The driver of the next epoch may collect before the task wrote anything, and after its first commit.
        job.collect([last], [], epoch=2, sweep=True)
        assert zip_key(number) in job.stored()
        task = job.task(2, last)
        assert task.commit().marker.snapshots[0] == (number, 1)
        job.collect([last], [], epoch=2, sweep=True)
        following = task.commit(some(rng))
        assert following.marker.snapshots[0] == (number, 1)
        job.collect([following], [last], epoch=2, sweep=True)
        read = read_by(job, following)
        assert (read["zip"], read["delta"]) == ([zip_key(number)], [delta_key(number + 1, 2)])
        assert job.stored() == job.needed([following])


def test_a_second_clean_stop_without_a_change_writes_nothing(rocksdb: Job) -> None:
    task = rocksdb.task(1)
    last = task.commit_and_wait(much(random.Random(3)), snapshot=True)
    task.close()
    before = rocksdb.stored()
    again = rocksdb.task(2, last)
    stopped = again.commit_and_wait(snapshot=True)
    assert rocksdb.stored() == before
    assert stopped.marker.snapshots == ((1, 1),)
    assert read_by(rocksdb, stopped)["delta"] == []


def test_a_clean_stop_makes_up_for_one_that_was_not(rocksdb: Job) -> None:
    """The first epoch died and left deltas; the next one changed nothing, and ends well."""
    rng = random.Random(6)
    task = rocksdb.task(1)
    log = [task.commit(much(rng, number * 100, 200)) for number in range(3)]
    task.close()
    task = rocksdb.task(2, log[-1])
    log.append(task.commit())
    log.append(task.commit_and_wait(snapshot=True))
    task.close()
    assert read_by(rocksdb, log[-1])["delta"] == []
    rocksdb.collect(log[-1:], log[:-1], epoch=3, sweep=True)
    assert rocksdb.restores(log[-1])
    task = rocksdb.task(3, log[-1])
    log.append(task.commit())
    rocksdb.collect(log[-1:], log[:-1], epoch=3, sweep=True)
    assert read_by(rocksdb, log[-1])["delta"] == []
    assert all(epoch_in_name(key) == 2 for key in rocksdb.stored("zip"))


def epoch_in_name(key: str) -> int:
    return int(key.rsplit(".", 2)[1])


# -- rewinds --


def test_commit_8_and_its_snapshot_are_discarded(rocksdb: Job) -> None:
    """Its record was never written; another epoch commits another 8."""
    rng = random.Random(4)
    task = rocksdb.task(1)
    versions = [task.commit_and_wait(much(rng, 10 * number, 100), snapshot=number == 4) for number in range(7)]
    task.commit(much(rng, 500, 300), snapshot=True, logged=False)
    task.finish()
    task.close()
    lost = {delta_key(8), zip_key(8), *rocksdb.files_of(8)}
    assert lost < rocksdb.stored()
    task = rocksdb.task(2, versions[-1])
    eighth = task.commit({b"8": b"of epoch 2"})
    ninth = task.commit_and_wait({b"9": b"of epoch 2"}, snapshot=True)
    assert (8, 1) not in ninth.marker.snapshots
    tenth = task.commit(some(rng))
    assert all(rocksdb.restores(version) for version in (versions[-1], eighth, ninth, tenth))
    rocksdb.collect([ninth, tenth], [*versions, eighth], epoch=2, sweep=True)
    assert not rocksdb.stored() & {delta_key(8), zip_key(8)}
    assert not rocksdb.stored() & (lost - rocksdb.needed([ninth, tenth]))
    assert rocksdb.stored() == rocksdb.needed([ninth, tenth])
    assert rocksdb.restores(ninth)
    assert rocksdb.restores(tenth)
