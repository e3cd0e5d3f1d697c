"""Backends that come, go and fail, on real containers: bases, and restores from several backends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.errors import CorruptError
from penstock.system.partitioner import partition_of
from tests.support.apps.container_app import oracle
from tests.support.faults.plan import Fault
from tests.support.processes.commit_jobs import (
    FILES,
    FIRST,
    SECOND,
    A,
    B,
    C,
    CommitJob,
    D,
    Markers,
    opened,
    reconfigured,
    upload_until_good,
)
from tests.support.processes.containers import ContainerProcess, wait_until

TASKS = 2


@pytest.fixture
def container(shared_container: ContainerProcess) -> ContainerProcess:
    return shared_container


# Bases.


def test_base_before_marker_when_a_backend_is_added(tmp_path: Path, container: ContainerProcess) -> None:
    """Schedule: `a backend is added, or another one restored the store`."""
    job = opened(tmp_path, container)
    markers = job.whole_commit(1)
    job = reconfigured(job, **{"stores.backup.factories": f"{FILES},{SECOND}"})
    job.open_at(1, markers, last_ended=1)
    job.faults.plan(Fault("base", "put.begin", "block", times=2 * TASKS, backend="second"))
    for number, batch in ((2, B), (3, C)):
        job.run_batch(number, batch)
        markers = job.whole_commit(number)
        assert all(own.keys() == {FILES, SECOND} for own in markers.values())
        assert all(own[SECOND] == {} for own in markers.values()), "no marker before its base is complete"
    assert job.restored(markers) == oracle(A, B, C)
    with pytest.raises(CorruptError, match=f"no marker for store `totals` of task 0 from {SECOND}; .* from: {FILES}"):
        job.restored(markers, SECOND)
    job.faults.open()
    number = 3

    def complete() -> bool:
        nonlocal number, markers
        number += 1
        markers = job.whole_commit(number)
        return all(own[SECOND] for own in markers.values())

    wait_until(complete, "the base")
    assert job.restored(markers, SECOND) == job.restored(markers, FILES) == oracle(A, B, C)
    job.run_batch(4, D)
    markers = job.whole_commit(number + 1)
    assert job.restored(markers, SECOND) == oracle(A, B, C, D)

    shutil.rmtree(job.data_of())
    job = reconfigured(
        job, **{"stores.backup.factories": f"{FILES},{SECOND}", "stores.totals.restore.factories": SECOND}
    )
    job.open_at(number + 1, markers, last_ended=4)
    assert job.notes == []
    job.run_batch(5, B)
    markers = job.whole_commit(number + 2)
    assert job.restored(markers, SECOND) == oracle(A, B, C, D, B)


def test_a_base_that_fails_for_now_begins_again_from_a_later_copy(tmp_path: Path, container: ContainerProcess) -> None:
    job = opened(tmp_path, container)
    markers = job.whole_commit(1)
    job = reconfigured(job, **{"stores.backup.factories": f"{FILES},{SECOND}"})
    job.open_at(1, markers, last_ended=1)
    job.faults.plan(Fault("base", "put.begin", "retryable", times=2, backend="second"))
    number = 1

    def complete() -> bool:
        nonlocal number, markers
        number += 1
        job.run_batch(number, C)
        job.snapshot(number)
        markers, _ = upload_until_good(job, number)
        return all(own[SECOND] for own in markers.values())

    wait_until(complete, "the base")
    expected = oracle(A, *[C] * (number - 1))
    assert job.restored(markers, SECOND) == job.restored(markers, FILES) == expected
    assert job.faults.left() == []


# Restores from several backends.


def without_marker(task: int, preferred: str, checkpoint: int, used: str) -> str:
    """The log line about a preferred backend that the checkpoint has no marker from."""
    return (
        f"store `totals` of task {task} could not be restored from {preferred}: checkpoint {checkpoint}-0 has no "
        f"marker of it from there; {used} was used instead"
    )


def test_without_a_marker_of_a_configured_backend_another_is_used(tmp_path: Path, container: ContainerProcess) -> None:
    """SEP-28: an error in the log, and the use of another marker. The configured backends begin with a base."""
    job = opened(tmp_path, container)
    markers = job.whole_commit(1)
    job = reconfigured(job, **{"stores.backup.factories": f"blob,{SECOND}"})
    job.open_at(1, markers, last_ended=1)
    assert sorted(job.notes) == [without_marker(task, f"blob, {SECOND}", 1, FILES) for task in range(TASKS)]
    job.run_batch(2, B)
    markers = job.whole_commit(2)
    assert all(own.keys() == {"blob", SECOND} and own["blob"] and own[SECOND] for own in markers.values())
    assert job.restored(markers, "blob") == job.restored(markers, SECOND) == oracle(A, B)

    job = reconfigured(job)  # and back
    job.open_at(2, markers, last_ended=2)
    assert sorted(job.notes) == [without_marker(task, FILES, 2, "blob") for task in range(TASKS)]
    job.run_batch(3, C)
    assert job.restored(job.whole_commit(3), FILES) == oracle(A, B, C)


@pytest.mark.parametrize(("before", "after"), [("memory", "rocksdb"), ("rocksdb", "memory")])
def test_files_of_another_store_are_restored(
    tmp_path: Path, container: ContainerProcess, before: str, after: str
) -> None:
    """A blob is an engine's files. After a change of `stores.<name>.factory` a checkpoint may have files of both kinds:
    a store that did not change since keeps its old index."""
    blob = {"stores.backup.factories": "blob"}
    first = [message for message in B if partition_of(message["key"].encode(), TASKS) == 0]
    job = opened(tmp_path, container, **blob, **{"stores.totals.factory": before})
    markers = job.whole_commit(1)
    job = reconfigured(job, **blob, **{"stores.totals.factory": after})
    job.open_at(1, markers, last_ended=1)
    job.run_batch(2, first)
    mixed = job.whole_commit(2)
    assert mixed["0"] != markers["0"]
    assert mixed["1"] == markers["1"]
    for kind in (before, after):
        job = reconfigured(job, **blob, **{"stores.totals.factory": kind})
        job.open_at(2, mixed, last_ended=2)
        assert job.notes == []
    job.run_batch(3, C)
    assert job.restored(job.whole_commit(3)) == oracle(A, first, C)


def test_when_no_configured_backend_can_restore_the_others_of_the_checkpoint_are_tried(
    tmp_path: Path, container: ContainerProcess
) -> None:
    job, markers = both(tmp_path, container)
    (missing,) = job.data_of().glob("totals/1/1.*.delta")
    missing.unlink()
    job = reconfigured(job, **{"stores.backup.factories": FILES})
    job.open_at(2, markers, last_ended=2)
    (note,) = job.notes
    assert note.endswith(f"{SECOND} was used instead")
    job.run_batch(3, C)
    assert job.restored(job.whole_commit(3), FILES) == oracle(A, B, C)


def both(folder: Path, container: ContainerProcess) -> tuple[CommitJob, Markers]:
    """A job with two backends, and its second checkpoint."""
    job = opened(folder, container, **{"stores.backup.factories": f"{FILES},{SECOND}"})
    job.whole_commit(1)
    job.run_batch(2, B)
    return job, job.whole_commit(2)


def test_the_backend_that_could_not_restore_gets_a_new_base(tmp_path: Path, container: ContainerProcess) -> None:
    """A marker means that this backend alone can rebuild the store: going on behind a hole would make markers that
    restore nothing."""
    job, markers = both(tmp_path, container)
    for delta in job.data_of().glob("totals/*/1.*.delta"):
        delta.unlink()
    job.open_at(2, markers, last_ended=2)
    assert len(job.notes) == TASKS
    job.run_batch(3, C)
    number = 2

    def complete() -> bool:
        nonlocal number, markers
        number += 1
        markers = job.whole_commit(number)
        return all(own[FILES] for own in markers.values())

    wait_until(complete, "the new base")
    assert job.restored(markers, FILES) == job.restored(markers, SECOND) == oracle(A, B, C)


def test_a_restore_that_fails_for_now_is_tried_again(tmp_path: Path, container: ContainerProcess) -> None:
    job = opened(tmp_path, container, **{"stores.backup.factories": FIRST})
    markers = job.whole_commit(1)
    job.faults.plan(Fault("restore", "restore.begin", "retryable", times=2, task=0))
    job.open_at(1, markers, last_ended=1)
    assert job.notes == []
    assert job.faults.left() == []
    job.run_batch(2, B)
    assert job.restored(job.whole_commit(2)) == oracle(A, B)


def test_no_backend_can_restore(tmp_path: Path, container: ContainerProcess) -> None:
    job, markers = both(tmp_path, container)
    for label in (None, "second"):
        shutil.rmtree(job.data_of(label))
    with pytest.raises(CorruptError) as caught:
        job.open_at(2, markers, last_ended=2)
    text = str(caught.value)
    assert "store `totals` of task" in text
    assert "cannot be restored from this checkpoint" in text
    assert f"Tried {FILES}: delta `totals-1/state/totals/" in text
    assert f"; {SECOND}: delta `totals.second-1/state/totals/" in text
    assert "penstock run --from ID" in text
