"""Reading a store beside a job that goes on: a checkpoint that leaves the list meanwhile is never half read."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import CorruptError, NotFoundError
from penstock.state.reading.comparison import diff
from penstock.state.reading.reader import StateReader, StoreVersion
from tests.support.stores.state_job import StateJob
from tests.support.tools.fixtures import fixture_of

TASKS = 3
CONTENT = {task: {b"k%d" % task: b"%d" % task} for task in range(TASKS)}


job = fixture_of(lambda tmp_path: StateJob(tmp_path / "home", tasks=TASKS))


class Beside:
    """A reader, whose `then` is called once, after the first task was restored."""

    def __init__(self, job: StateJob, then: Callable[[], object] = lambda: None) -> None:
        harness = job.harnesses["changelog-files"]
        self.reader = StateReader(harness.config, job.paths, job.objects, harness.systems)
        self._job = job
        self._then = then
        self.restored: list[int] = []

    def version(self, record: CheckpointRecord) -> StoreVersion:
        log = CheckpointLog(self._job.objects, self._job.paths)
        return StoreVersion(self.reader, log, record, "first", None, self._told)

    def _told(self, _store: str, _backend: str, task: int) -> None:
        self.restored.append(task)
        if len(self.restored) == 1:
            self._then()


def delete_all(job: StateJob) -> None:
    shutil.rmtree(job.home / "jobs" / job.paths.store_folder("first"))


@pytest.mark.parametrize("deleted", [False, True], ids=["everything is still there", "its objects are gone"])
def test_a_checkpoint_that_leaves_the_list_while_it_is_read(job: StateJob, deleted: bool) -> None:
    record = job.commit(CONTENT)

    def leave() -> None:
        job.commit({0: {b"k0": b"new"}}, retained=[])
        if deleted:
            delete_all(job)

    beside = Beside(job, leave)
    with beside.reader, beside.version(record) as version:
        with pytest.raises(NotFoundError, match=rf"checkpoint {record.id} .* no longer is.* Retained now: 170"):
            version.scan()
        assert beside.restored == ([0] if deleted else [0, 1, 2])


def test_what_is_missing_of_a_retained_checkpoint_is_damage(job: StateJob) -> None:
    record = job.commit(CONTENT)
    beside = Beside(job, lambda: delete_all(job))
    with (
        beside.reader,
        beside.version(record) as version,
        pytest.raises(CorruptError, match=r"1\.1\.delta` is missing"),
    ):
        version.scan()


def test_commits_of_a_running_job_change_nothing_of_what_is_read(job: StateJob) -> None:
    record = job.commit(CONTENT)

    def go_on() -> None:
        for _ in range(3):
            job.commit({task: {b"k%d" % task: b"new", b"more": b"1"} for task in range(TASKS)})

    beside = Beside(job, go_on)
    with beside.reader, beside.version(record) as version:
        found = version.scan()
        job.commit({0: {b"k0": None}}, retained=[])
        delete_all(job)
        assert {(each.key, each.task): each.value for each in found} == job.expected(record), "it is in scratch by now"


def test_only_the_tasks_that_are_needed_are_restored_and_once(job: StateJob) -> None:
    record = job.commit({**CONTENT, 1: {b"key": b"1"}})
    beside = Beside(job)
    with beside.reader, beside.version(record) as version:
        assert [each.value for each in version.get(b"key", 1)] == [b"1"]
        assert beside.restored == [1]
        assert version.get(b"key", 2) == []
        assert [entry.key for entry in version.scan(tasks=[2])] == [b"k2"]
        assert beside.restored == [1, 2]
        assert len(list(version.scan())) == 3
        assert sorted(beside.restored) == [0, 1, 2]
        assert version.backend(2) == "changelog-files"


def test_a_diff_restores_no_task_that_did_not_change(job: StateJob) -> None:
    first = job.commit(CONTENT)
    second = job.commit({1: {b"k1": b"new"}, 2: {b"k2": b"2"}})
    beside = Beside(job)
    with beside.reader, beside.version(first) as before, beside.version(second) as after:
        (found,) = diff(before, after)
        assert (found.change, found.key, found.task, found.before, found.after) == ("changed", b"k1", 1, b"1", b"new")
        assert beside.restored == [1, 2, 1, 2], "task 0 has one marker in both"
