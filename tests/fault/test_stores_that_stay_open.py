"""Stores that stay open from one epoch to the next: in the worst moments they begin with exactly the checkpoint, or are
restored."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import Claim
from penstock.checkpoint.task_versions import markers_of
from penstock.driver.commit.coordinator import CommitCoordinator
from penstock.errors import ContainerLostError
from penstock.state.engines.engine import Changes
from penstock.state.engines.open import WriteBehindEngine
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.state.reading.reader import StateReader
from penstock.system.memory import MemorySystem
from tests.support.jobs.home import wait_until
from tests.support.processes.commit_jobs import flip_a_bit
from tests.support.stores.random_life import memory
from tests.support.stores.storage_job import PATHS, StorageJob

PLACE = ("first", 0)


class OneTask:
    """A job with one task and one store, in one container that lives on."""

    def __init__(self, folder: Path, **config: object) -> None:
        self.objects = memory()
        keys = {"stores.first.factory": "rocksdb", **{key.replace("_", "."): value for key, value in config.items()}}
        systems = {"local": MemorySystem("local")}
        self.job = StorageJob(folder, self.objects, systems, tasks=1, stores=("first",), config=keys)
        self.log: CheckpointLog = self.job.start()
        self.claim: Claim
        self.commits: CommitCoordinator
        self.open()

    def open(self) -> None:
        self.claim = self.log.claim("run")
        record = self.log.latest_before(self.claim)
        self.commits = self.job.open(self.log, self.claim, record, {"c0": (0,)})

    def run(self, changes: Changes) -> None:
        self.job.run_batch({PLACE: changes})

    def commit(self) -> Any:
        return self.job.commit(self.commits, self.claim).record

    def leave(self, *, lives: bool = True) -> None:
        self.commits.abandon()
        self.job.leave(keeping=["c0"] if lives else [])
        self.commits.close()

    def rewind(self) -> None:
        self.leave()
        self.open()

    @property
    def content(self) -> dict[bytes, bytes]:
        return dict(self.job.content()[PLACE])


@contextmanager
def one_task(folder: Path, **config: object) -> Iterator[OneTask]:
    found = OneTask(folder, **config)
    yield found
    found.leave(lives=False)


def test_an_end_that_waits_for_the_disk_is_over_before_a_rewind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has given up the call, and opens the next epoch."""
    made = WriteBehindEngine.__init__
    monkeypatch.setattr(WriteBehindEngine, "__init__", lambda self, engine, writer, _: made(self, engine, writer, 0))
    goes_on = threading.Event()
    goes_on.set()
    apply = RocksDbEngine.apply

    def slow(self: RocksDbEngine, changes: Changes) -> None:
        assert goes_on.wait(30)
        apply(self, changes)

    monkeypatch.setattr(RocksDbEngine, "apply", slow)
    with one_task(tmp_path) as task:
        task.run({b"a": b"committed"})
        task.commit()
        for _ in range(5):
            goes_on.clear()
            task.run({b"a": b"begins a write"})
            threads = [
                threading.Thread(target=partial(_ignoring_losses, task.run, {b"a": b"waits", b"b": b"waits"})),
                threading.Thread(target=task.leave),
            ]
            for thread in threads:
                thread.start()
            wait_until(lambda: all(thread.is_alive() for thread in threads), "both to wait")  # noqa: B023
            goes_on.set()
            for thread in threads:
                thread.join(30)
            task.open()
            assert task.content == {b"a": b"committed"}


def _ignoring_losses(step: Any, *arguments: object) -> None:
    try:
        step(*arguments)
    except ContainerLostError:
        return


def test_a_store_whose_copy_is_damaged_is_restored(tmp_path: Path) -> None:
    """The damage was seen in the copy, and the open store does not know of it."""
    with one_task(tmp_path, state_snapshot_interval_commits=0) as task:
        task.run({b"%05d" % n: b"v" * 50 for n in range(5000)})
        task.commit()
        task.leave(lives=False)
        task.job.overrides["stores.backup.factories"] = "changelog-files,changelog-stream"  # which needs a base
        task.open()
        tables = list(tmp_path.glob("local/**/live-*/*.sst"))
        assert tables
        for table in tables:
            flip_a_bit(table)
        failures = 0
        for _ in range(4):
            try:
                task.run({b"new": b"1"})
                for _ in range(20):
                    task.commit()
                break
            except ContainerLostError:
                failures += 1
                task.rewind()
        assert failures == 1


def test_a_backend_that_could_not_restore_begins_again_also_after_a_rewind(tmp_path: Path) -> None:
    backends = {"stores_backup_factories": "changelog-files,blob", "stores_restore_factories": "changelog-files,blob"}
    with one_task(tmp_path, **backends) as task:
        task.run({b"a": b"1"})
        task.commit()
        task.leave(lives=False)
        (key,) = [key for key in task.objects.list(PATHS.state_folder("first", 0)) if key.endswith(".delta")]
        damaged = bytearray(task.objects.get(key))
        damaged[-1] ^= 1
        task.objects.delete(key)
        task.objects.put_if_absent(key, bytes(damaged))
        task.open()
        assert task.job.notes
        task.rewind()
        for value in (b"2", b"3"):
            task.run({value: value})
            record = task.commit()
        config = task.job.settings()
        markers = markers_of(record, 0, config.changelog_partitions(record.stores, 0))
        with StateReader(config, PATHS, task.objects, task.job.systems) as reader:
            for backend in [backend for backend, stores in markers.items() if "first" in stores]:
                with reader.open(record, "first", 0, backend) as engine:
                    assert dict(engine.scan(None, None)) == {b"a": b"1", b"2": b"2", b"3": b"3"}, backend
