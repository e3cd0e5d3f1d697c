"""Drivers that were replaced while they committed or collected: their successors lose nothing that they need."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from penstock.admin.jobs import FoundJob
from penstock.admin.state.held import collect_garbage
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointId, Claim
from penstock.checkpoint.task_versions import markers_of
from penstock.driver.commit.coordinator import CommitCoordinator
from penstock.errors import FencedError
from penstock.objects.file import FileObjectStore
from penstock.objects.store import ObjectStore
from penstock.state.reading.reader import StateReader
from penstock.system.memory import MemorySystem
from penstock.testing import SettableClock
from tests.support.faults import replaced_driver
from tests.support.faults.replaced_driver import driver, expected, reads_an_index
from tests.support.jobs.home import wait_until
from tests.support.stores.hooked_store import HookedStore
from tests.support.stores.storage_job import DEADLINE_S, PATHS, StorageJob

TIMEOUT_S = 60.0
BACKENDS: dict[str, dict[str, object]] = {
    "blob": {"stores.backup.factories": "blob"},
    "changelog": {"stores.backup.factories": "changelog-files", "state.snapshot.interval.commits": 1},
    "snapshots": {
        "stores.backup.factories": "changelog-files",
        "state.snapshot.interval.commits": 1,
        "state.changelog.enabled": False,
    },
}
RETAINED = {"1": 2, "5": 6, "10,24h,7d": 12}
"""`task.checkpoint.retained`, and after how many commits a checkpoint has left."""
BEFORE = 9
"""Commits of the first driver: RocksDB has merged their tables."""


def configured(backend: str, retained: str) -> dict[str, object]:
    own = BACKENDS[backend]
    return {**own, "stores.restore.factories": own["stores.backup.factories"], "task.checkpoint.retained": retained}


def check(job: StorageJob, objects: ObjectStore) -> None:
    """Every retained checkpoint restores to what its batches made."""
    view = CheckpointLog(objects, PATHS).read()
    config = job.settings()
    with StateReader(config, PATHS, objects, job.systems) as reader:
        for record in view.restorable:
            (backend,) = markers_of(record, 0, config.changelog_partitions(record.stores, 0))
            with reader.open(record, "sums", 0, backend) as engine:
                assert dict(engine.scan(None, None)) == expected(record.batch), record.id


def commit_times(commit: Callable[[], None], times: int) -> None:
    for _ in range(times):
        commit()


@contextmanager
def paused(hooked: HookedStore, is_there: Callable[[str, str], bool]) -> Iterator[threading.Event]:
    """The first call that `is_there` accepts waits until the block is over; the event is set as it begins to wait."""
    waits, released = threading.Event(), threading.Event()

    def before(call: str, key: str) -> None:
        if not waits.is_set() and is_there(call, key):
            waits.set()
            assert released.wait(TIMEOUT_S)

    hooked.before = before
    try:
        yield waits
    finally:
        released.set()


@pytest.mark.few(3)
@pytest.mark.parametrize("retained", RETAINED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_replaced_driver_deletes_nothing_its_successor_needs(tmp_path: Path, backend: str, retained: str) -> None:
    objects, config = FileObjectStore(tmp_path / "root"), configured(backend, retained)
    with driver(objects, tmp_path / "a", config) as (_, commit):
        commit_times(commit, BEFORE)
    hooked = HookedStore(objects)
    with driver(hooked, tmp_path / "b", config) as (_, commit), paused(hooked, reads_an_index) as waits:
        commit()
        assert waits.wait(TIMEOUT_S)
        with driver(objects, tmp_path / "c", config) as (successor, commit_later):
            commit_times(commit_later, RETAINED[retained])
    # The blocks have waited for the collection.
    check(successor, objects)
    with driver(objects, tmp_path / "d", config) as (_, commit):
        commit()
    check(successor, objects)


def test_a_process_that_was_stopped_deletes_nothing_that_its_successor_needs(tmp_path: Path) -> None:
    objects, config = FileObjectStore(tmp_path / "root"), configured("blob", "1")
    with driver(objects, tmp_path / "a", config) as (_, commit):
        commit_times(commit, BEFORE)
    arguments = [str(tmp_path / "root"), str(tmp_path / "b"), json.dumps(config)]
    process = subprocess.Popen([sys.executable, replaced_driver.__file__, *arguments])
    try:
        stopped = psutil.Process(process.pid)
        wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED, "it has stopped in its collection", TIMEOUT_S)
        with driver(objects, tmp_path / "c", config) as (successor, commit):
            commit_times(commit, 2)
            stopped.resume()
            assert process.wait(TIMEOUT_S) == 0
            commit()
        check(successor, objects)
    finally:
        process.kill()
        process.wait()


def test_nothing_is_deleted_alone_and_the_log_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    objects, config = FileObjectStore(tmp_path / "root"), configured("blob", "3")
    hooked, lost, deleted = HookedStore(objects), list[str](), list[str]()

    def damage(call: str, key: str) -> None:
        if reads_an_index(call, key) and not lost:
            lost.append(key)
            objects.delete(key)
        elif call == "delete" and "/state/" in key:
            deleted.append(key)

    hooked.before = damage
    with driver(hooked, tmp_path / "a", config) as (job, commit):
        commit_times(commit, 3)
        assert not deleted
        assert caplog.text.count("is incomplete") == 1
        assert lost[0] in caplog.text
        commit_times(commit, 3)
    assert deleted
    check(job, objects)


@pytest.mark.parametrize("backend", ["blob", "snapshots"])
def test_the_command_deletes_nothing_once_its_lease_is_lost(tmp_path: Path, backend: str) -> None:
    objects, config = FileObjectStore(tmp_path / "root"), configured(backend, "1")
    with driver(objects, tmp_path / "a", config) as (job, commit):
        commit_times(commit, 3)
    hooked, errors = HookedStore(objects), list[BaseException]()

    def collect() -> None:
        try:
            collect_garbage(FoundJob(job.settings(), PATHS, hooked))
        except BaseException as error:
            errors.append(error)

    command = threading.Thread(target=collect, name="collect")
    with paused(hooked, reads_an_index) as waits:
        command.start()
        assert waits.wait(TIMEOUT_S)
        with driver(objects, tmp_path / "c", config) as (successor, commit):
            commit_times(commit, 2)
    command.join(TIMEOUT_S)
    assert [type(error) for error in errors] == [FencedError]
    check(successor, objects)


PLACE = ("sums", 0)


@pytest.mark.parametrize("backend", ["blob", "changelog-files", "changelog-stream"])
def test_its_local_copy_is_not_restored(tmp_path: Path, backend: str) -> None:
    objects, systems, clock = FileObjectStore(tmp_path / "root"), {"local": MemorySystem("local")}, SettableClock()
    config = {"stores.backup.factories": backend, "job.host-affinity.enabled": True}

    def begun(host: str) -> tuple[StorageJob, Claim, CommitCoordinator]:
        job = StorageJob(tmp_path / host, objects, systems, tasks=1, stores=("sums",), config=config)
        job.clock = clock
        log = job.start()
        claim = log.claim("run")
        return job, claim, job.open(log, claim, log.latest_before(claim), {"container": (0,)})

    job, claim, commits = begun("first")
    job.run_batch({PLACE: {b"k": b"before"}})
    job.commit(commits, claim)
    ids = list[CheckpointId]()

    def replace(step: str) -> None:
        if step != "upload":
            return
        successor, own, others = begun("second")
        successor.run_batch({PLACE: {b"k": b"committed"}})
        ids.append(successor.commit(others, own).record.id)
        successor.leave()
        others.close()

    job.fleet.at = replace
    job.run_batch({PLACE: {b"k": b"never committed"}})
    commits.begin(claim, job.request())
    assert commits.in_flight is not None
    ids.append(commits.in_flight.checkpoint_id)
    with pytest.raises(FencedError):
        commits.wait(DEADLINE_S, threading.Event())
    job.leave()
    commits.close()
    assert len(ids) == 2
    assert len(set(ids)) == 1, "the clock of the test gives both the same id"
    again, _, last = begun("first")
    assert again.content() == {PLACE: {b"k": b"committed"}}
    again.leave()
    last.close()
