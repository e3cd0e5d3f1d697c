"""The metrics of a job on containers of this process, against what the job really did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.metrics.snapshot import MetricId, Snapshot, TimerValue
from penstock.wire.ports import RunBrokenError
from tests.support.jobs.home import wait_until
from tests.support.world.sums_job import TASKS, SumsWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SumsWorld]:
    made = SumsWorld(tmp_path)
    yield made
    for driver in made.drivers:
        driver.close()


def steps(driver: object, count: int) -> None:
    for _ in range(count):
        driver.loop.step()  # type: ignore[attr-defined]


def test_messages_count_per_stage_task_and_stream(world: SumsWorld) -> None:
    driver = world.started()
    world.put(*range(1, 10))
    steps(driver, 6)
    found = driver.board.metrics.snapshot()
    assert found.total("messages-actually-processed", "stage.0") == 9
    assert found.total("messages-actually-processed", "stage.1") == 9
    read = found.to_dict()
    assert [read[f"Partition {t}"]["stream.m.events"]["messages-read"] for t in range(TASKS)] == [3, 3, 3]
    assert found.total("bytes-read", "stream.m.events") > 9
    assert found.total("messages-sent", "stream.m.sums") == len(world.output()) == 9
    batches = found.total("batches")
    assert batches == driver.loop.boundary.batch
    spent = found[MetricId("job", "job", "run-ns")]
    assert isinstance(spent, TimerValue)
    assert spent.count == batches
    assert found.total("messages-behind-high-watermark") == 0


def test_a_run_that_broke_off_counts_nothing_but_the_retry(world: SumsWorld) -> None:
    driver = world.started()
    broken: list[str] = []

    def once(step: str) -> None:
        if step == "reports" and not broken:
            broken.append(step)
            raise RunBrokenError("all stages have run, and nobody heard of it")

    driver.runner.at = once
    world.put(1, 2, 3)
    steps(driver, 2)
    found = driver.board.metrics.snapshot()
    assert broken
    assert found.total("retries") == 1
    assert found.total("messages-actually-processed", "stage.1") == 3
    assert found.total("seen", "user.sums") == 3


def test_the_metrics_of_an_application(world: SumsWorld) -> None:
    driver = world.started()
    world.put(*range(1, 10))
    steps(driver, 6)
    found = driver.board.metrics.snapshot()
    assert found.total("seen", "user.sums") == 9
    assert max(value.value for key, value in found.items() if key.name == "largest") == 9  # type: ignore[union-attr]


def test_what_stores_and_backends_count(world: SumsWorld) -> None:
    driver = world.started()
    world.put(*range(1, 11))
    steps(driver, 6)
    driver.loop.commit()
    before = driver.board.metrics.snapshot()
    assert before.total("gets", "store.sums") == 10
    assert before.total("cache-hits", "store.sums") == 5, "each of five keys was read from the engine once"
    assert 5 <= before.total("puts", "store.sums") <= 10
    assert before.total("keys", "store.sums") == 5
    assert before.total("bytes-uploaded", "backend.changelog-files") > before.total("bytes-written", "store.sums") / 2
    assert before.total("upload-ns", "backend.changelog-files") == TASKS * 2, "the start checkpoint, and this one"
    assert before.total("bytes-restored", "backend.changelog-files") == 0
    written = sum(key.endswith(".delta") for key in world.objects.list("sums-1/state/sums"))
    assert before.total("changelog-version", "store.sums") == written > 0
    assert before.total("changelog-snapshot-version", "store.sums") == 0
    driver.fleet.lose(0)
    steps(driver, 1)
    after = driver.board.metrics.snapshot()
    assert after.total("gets", "store.sums") == 10, "what a lost container has counted stays"
    assert after.total("keys", "store.sums") == 5
    assert after.total("bytes-restored", "backend.changelog-files") > 0
    assert after.total("changelog-deltas-replayed", "store.sums") == written
    assert after.total("restore-ns", "backend.changelog-files") == TASKS


class Visits(ps.StreamTask):
    """Counts keys; 0 deletes one. Scans them all with each message."""

    def init(self, context: Any) -> None:
        self.store = context.store("sums")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.store.put(envelope.key, envelope.value or None)
        list(self.store.range("a", "z"))


def test_deletes_and_scans_of_stores_and_what_rocksdb_counts(world: SumsWorld) -> None:
    world.app = ps.StreamApplication("sums")
    world.app.store("sums", key=ps.String(), value=ps.Integer())
    world.app.input("m.events", key=ps.String(), value=ps.Integer()).process(Visits, stores=["sums"], id="sum")
    driver = world.started(stores_sums_factory="rocksdb", job_batch_max_messages=100)
    world.put(*range(1, 16))
    steps(driver, 1)
    world.put(0, 0, 5)
    steps(driver, 1)
    driver.loop.commit()
    found = driver.board.metrics.snapshot()
    assert found.total("scans", "store.sums") == 18
    assert (found.total("puts", "store.sums"), found.total("deletes", "store.sums")) == (16, 2)
    timers = {key.name: value for key, value in found.items() if isinstance(value, TimerValue)}
    assert timers["seek-ns"].count > 0
    driver.fleet.lose(0)
    steps(driver, 1)
    after = driver.board.metrics.snapshot()
    assert after.total("seek-ns", "store.sums") >= found.total("seek-ns", "store.sums"), "it stays over epochs"


def test_a_changelog_stream_counts_what_it_appends(world: SumsWorld) -> None:
    driver = world.started(stores_sums_backup_factories="changelog-stream")
    world.put(1, 2, 3)
    steps(driver, 2)
    driver.loop.commit()
    found = driver.board.metrics.snapshot()
    written = found.total("bytes-written", "store.sums")
    assert found.total("bytes-uploaded", "backend.changelog-stream") == written > 0


def test_snapshots_of_whole_stores(world: SumsWorld) -> None:
    driver = world.started(state_snapshot_interval_commits=1)
    world.put(1, 2, 3)
    steps(driver, 2)
    driver.loop.commit()
    wait_until(lambda: driver.board.metrics.snapshot().total("store-snapshot-ns") >= 1, "a snapshot")
    found = driver.board.metrics.snapshot()
    assert 1 <= found.total("changelog-snapshot-version") <= found.total("changelog-version")


def test_commits_and_rewinds(world: SumsWorld) -> None:
    driver = world.started()
    world.put(1, 2, 3)
    steps(driver, 2)
    driver.loop.commit()
    driver.fleet.lose(0)
    steps(driver, 1)
    found = driver.board.metrics.snapshot()
    assert found.total("commit-calls") == found.total("commit-ns") == len(world.checkpoints)
    assert found.total("rewinds") == 1
    assert found.total("restore-ns", "job") == 2


def test_snapshots_survive_their_form_between_processes(world: SumsWorld) -> None:
    driver = world.started()
    found = driver.board.metrics.snapshot()
    assert dict(Snapshot.of_rows(found.rows())) == dict(found)
