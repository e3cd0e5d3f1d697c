"""Commits of real containers: local copies, copies while a batch ends, uploads."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.errors import CorruptError, PenstockError, RetryableError
from penstock.runtime.reports import SuccessfulBatch
from tests.support.apps.container_app import oracle
from tests.support.faults.plan import Fault
from tests.support.processes.commit_jobs import (
    FIRST,
    SECOND,
    A,
    B,
    C,
    D,
    flip_a_bit,
    opened,
    reconfigured,
    upload_until_good,
)
from tests.support.processes.containers import DEADLINE_S, ContainerProcess, wait_until

AFFINITY = {"job.host-affinity.enabled": "true"}
TASKS = 2


@pytest.fixture
def container(shared_container: ContainerProcess) -> ContainerProcess:
    """Tests with faults around a copy have one of their own: its process knows the faults of its first job."""
    return shared_container


# Stores that stay open.


def test_a_commit_in_the_log_without_a_clean_up_is_read_as_a_tail(tmp_path: Path, container: ContainerProcess) -> None:
    """The container knows only the checkpoint before as one to go back to."""
    job = opened(tmp_path, container)
    job.whole_commit(1)
    job.run_batch(2, B)
    job.snapshot(2)
    markers = job.upload(2)
    job.run_batch(3, C)
    first = list(job.data_of().glob("totals/*/1.*.delta"))
    assert first
    for path in first:
        path.rename(path.with_suffix(".away"))
    job.open_at(2, markers, last_ended=2, same_run=True)
    assert job.notes == []
    for path in first:
        path.with_suffix(".away").rename(path)
    job.run_batch(3, D)
    assert job.restored(job.whole_commit(3)) == oracle(A, B, D)


def test_a_task_that_was_elsewhere_in_between_is_restored(tmp_path: Path, container: ContainerProcess) -> None:
    job = opened(tmp_path, container)
    markers = job.whole_commit(1)
    homes, other = job.homes, ContainerProcess(tmp_path)
    try:
        for number, there in ((2, {0: container, 1: other}), (3, homes), (4, {0: other, 1: container}), (5, homes)):
            job.homes = there
            job.open_at(number - 1, markers, last_ended=number - 1, same_run=True)
            job.run_batch(number, C)
            markers = job.whole_commit(number)
    finally:
        other.kill()
    assert job.restored(markers) == oracle(A, C, C, C, C)


# Copies on the host.


def test_without_affinity_no_copy_is_made_and_none_is_used(tmp_path: Path, container: ContainerProcess) -> None:
    job = opened(tmp_path, container, **AFFINITY)
    markers = job.whole_commit(1)
    assert job.copy_ids(0) == job.copy_ids(1) == [1]
    without = reconfigured(job)
    without.open_at(1, markers, last_ended=1)
    without.run_batch(2, B)
    markers = without.whole_commit(2)
    assert without.copy_ids(0) == [1], "nobody looks after copies that are not asked for"
    shutil.rmtree(job.data_of())
    with pytest.raises(CorruptError, match="is missing"):
        without.open_at(2, markers, last_ended=2)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a byte": lambda copy: flip_a_bit(max((p for p in copy.iterdir() if p.name.startswith("MANIFEST")), key=str)),
    "CURRENT is gone": lambda copy: (copy / "CURRENT").unlink(),
    "all files are gone": shutil.rmtree,
    "half of the description": lambda copy: _halve(copy.with_name(f"{copy.name}.json")),
    "a description of nothing": lambda copy: copy.with_name(f"{copy.name}.json").write_text(
        '{"format": 2, "markers": {"fault": "m"}, "files": {}}'
    ),
    "a description that is none": lambda copy: copy.with_name(f"{copy.name}.json").write_text(
        '{"format": 2, "markers": {"fault": "m"}, "files": {"CURRENT": 1}}'
    ),
}


@pytest.mark.parametrize(
    "damage", [pytest.param(each, marks=() if each == "a byte" else pytest.mark.slow) for each in DAMAGES]
)
def test_a_damaged_copy_is_refused_for_the_backend(tmp_path: Path, container: ContainerProcess, damage: str) -> None:
    job = opened(tmp_path, container, **AFFINITY)
    markers = job.whole_commit(1)
    DAMAGES[damage](job.store_folder(0) / "copy-1-0")
    before = len(container.log)
    job.open_at(1, markers, last_ended=1)
    assert re.search("the local copy .*is not used", container.log[before:], re.DOTALL)
    job.run_batch(2, B)
    markers = job.whole_commit(2)
    assert job.restored(markers) == job.copied(2) == oracle(A, B)


def test_a_copy_of_another_kind_of_store_is_refused_for_the_backend(
    tmp_path: Path, container: ContainerProcess
) -> None:
    job = opened(tmp_path, container, **AFFINITY)
    markers = job.whole_commit(1)
    job = reconfigured(job, **AFFINITY, **{"stores.totals.factory": "memory"})
    job.open_at(1, markers, last_ended=1)
    job.run_batch(2, B)
    markers = job.whole_commit(2)
    assert job.restored(markers) == job.copied(2) == oracle(A, B)


# A copy is being made.


def test_end_waits_for_a_copy_which_is_of_the_boundary(tmp_path: Path, own_container: ContainerProcess) -> None:
    """The next batch is processed meanwhile: only its End waits."""
    job = opened(tmp_path, own_container, **AFFINITY, **{"stores.backup.factories": FIRST})
    job.faults.plan(Fault("copy", "copy.begin", "block", times=TASKS))
    job.snapshot(1)
    wait_until(lambda: job.faults.is_reached("copy"), "the copy begins")
    run = job.start(2, B)
    results = [packet for task in range(TASKS) for packet in job.attempt(run, task)[0]]
    outcome = job.outcome(run, results)
    assert isinstance(outcome, SuccessfulBatch), outcome
    with ThreadPoolExecutor(2) as pool:
        uploading = pool.submit(job.upload, 1)
        ending = pool.submit(job.end, 2, outcome.tokens)
        client = own_container.client
        own_container.client.listen(lambda _: None)
        wait_until(lambda: client.last_beat is not None, "a beat")
        assert not ending.done()
        assert not uploading.done()
        job.faults.open()
        ending.result(DEADLINE_S)
        markers = uploading.result(DEADLINE_S)
    assert job.copied(1) == job.restored(markers) == oracle(A)
    assert job.restored(job.whole_commit(2)) == oracle(A, B)


def test_a_new_epoch_waits_for_no_copy_that_nobody_needs(tmp_path: Path, own_container: ContainerProcess) -> None:
    job = opened(tmp_path, own_container, **AFFINITY, **{"stores.backup.factories": FIRST, "task.shutdown.ms": 20_000})
    markers = job.whole_commit(1)
    job.faults.plan(Fault("copy", "copy.begin", "block", times=TASKS))
    job.run_batch(2, B)
    job.snapshot(2)
    wait_until(lambda: job.faults.is_reached("copy"), "the copy begins")
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(job.open_at, 1, markers, 1)
        job.faults.open()
        opening.result(DEADLINE_S)
    job.run_batch(2, C)
    assert job.restored(job.whole_commit(3)) == oracle(A, C)
    assert not [path for task in range(TASKS) for path in job.store_folder(task).glob("making-*")]


# Uploads.


def test_an_upload_that_is_repeated_has_the_same_effect(tmp_path: Path, container: ContainerProcess) -> None:
    job = opened(tmp_path, container, **{"stores.backup.factories": f"{FIRST},{SECOND}"})
    job.faults.plan(
        Fault("before", "upload.begin", "retryable", backend="files"),
        Fault("half", "upload.middle", "retryable", task=0, backend="second"),
        Fault("reply", "upload.end", "retryable", task=1, backend="files"),
    )
    job.snapshot(1)
    markers, tries = upload_until_good(job, 1)
    assert tries > 1
    assert job.faults.left() == []
    for backend in (FIRST, SECOND):
        assert job.restored(markers, backend) == oracle(A)
    assert job.upload(1) == markers
    job.clean_up(1, markers)
    job.clean_up(1, markers)
    job.run_batch(2, B)
    markers = job.whole_commit(2)
    assert job.restored(markers, FIRST) == job.restored(markers, SECOND) == oracle(A, B)


def test_what_is_final_comes_before_what_may_pass(tmp_path: Path, container: ContainerProcess) -> None:
    job = opened(tmp_path, container, **{"stores.backup.factories": f"{FIRST},{SECOND}"})
    job.faults.plan(
        Fault("retry", "upload.begin", "retryable", backend="files", times=TASKS),
        Fault("final", "upload.end", "fail", backend="second", task=1),
    )
    job.snapshot(1)
    with pytest.raises(PenstockError, match="`final` is final") as caught:
        job.upload(1)
    assert not isinstance(caught.value, RetryableError)


def test_managers_are_told_that_their_checkpoint_is_in_the_log(tmp_path: Path, container: ContainerProcess) -> None:
    """A driver that died between the record and the clean-up leaves that to the next start."""
    job = opened(tmp_path, container, **{"stores.backup.factories": FIRST})
    job.snapshot(1)
    markers = job.upload(1)
    job.open_at(1, markers, last_ended=1)
    inits = job.faults.trace("init", "clean_up.end")[-2 * TASKS :]
    assert sorted(each["point"] for each in inits) == ["clean_up.end"] * TASKS + ["init"] * TASKS
    assert {each["checkpoint"] for each in inits} == {"1-0"}


def test_a_clean_up_that_fails_at_a_start_costs_nothing(tmp_path: Path, container: ContainerProcess) -> None:
    job = opened(tmp_path, container, **{"stores.backup.factories": FIRST})
    markers = job.whole_commit(1)
    job.faults.plan(Fault("clean-up", "clean_up.begin", "fail", times=TASKS))
    job.open_at(1, markers, last_ended=1)
    assert job.faults.left() == []
    job.run_batch(2, B)
    assert job.restored(job.whole_commit(2)) == oracle(A, B)


def _halve(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
