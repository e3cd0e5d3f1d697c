"""Commits go on while what no checkpoint needs is deleted, however long that takes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.checkpoint.record import CheckpointRecord
from penstock.driver.part import DriverPart
from penstock.objects.open import open_store
from penstock.system.memory import MemorySystem
from tests.support.stores.storage_job import StorageJob

pytestmark = pytest.mark.slow

DEADLINE_S = 60.0
HOMES = {"c": (0, 1)}


class Held(DriverPart):
    """Holds each collection at its begin until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def collect(self, record: CheckpointRecord) -> None:
        self.begun.set()
        assert self.go.wait(DEADLINE_S)


@pytest.mark.parametrize("backends", ["changelog-files", "blob", "changelog-stream", "changelog-files,blob"])
@pytest.mark.parametrize("snapshots", [0, 2])
@pytest.mark.parametrize("more", [1, 2, 5])
def test_a_collection_deletes_nothing_that_a_later_checkpoint_needs(
    tmp_path: Path, backends: str, snapshots: int, more: int
) -> None:
    """It began behind one checkpoint; when it deletes, there are `more`, and those between have left the log. The last
    one shares objects with them: a history, and the files of a task that was quiet."""
    job = StorageJob(
        tmp_path,
        open_store(f"memory://{tmp_path}"),
        {"local": MemorySystem("local")},
        tasks=2,
        stores=("store",),
        config={
            "stores.backup.factories": backends,
            "stores.restore.factories": backends,
            "stores.store.factory": "memory",
            "state.snapshot.interval.commits": snapshots,
            "task.checkpoint.retained": 1,
        },
    )
    held = Held()
    job.parts = (held,)
    log = job.start()
    claim = log.claim("run")
    commits = job.open(log, claim, None, HOMES)
    content: dict[tuple[str, int], dict[bytes, bytes]] = {("store", task): {} for task in range(2)}
    for number in range(2 + more):
        changes = {place: {b"%d" % number: b"of %d" % number} for place in content if number < 2 or place[1] == 0}
        for place, own in changes.items():
            content[place].update(own)
        job.run_batch(changes)
        record = job.commit(commits, claim).record
        assert held.begun.wait(DEADLINE_S)
    held.go.set()
    commits.close()
    job.leave()
    for backend in backends.split(","):
        job.overrides["stores.restore.factories"] = backend
        claim = log.claim("run")
        commits = job.open(log, claim, record, HOMES)
        assert job.content() == content, backend
        commits.close()
        job.leave()
