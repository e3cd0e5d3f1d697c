"""A driver that was replaced finishes the upload of a commit whose record it cannot write. Its successor, on another
host, has written a record with the same id."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.checkpoint.record import CheckpointId, Claim
from penstock.driver.commit.coordinator import CommitCoordinator
from penstock.errors import FencedError
from penstock.objects.file import FileObjectStore
from penstock.system.memory import MemorySystem
from penstock.testing import SettableClock
from tests.support.stores.storage_job import DEADLINE_S, StorageJob

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
