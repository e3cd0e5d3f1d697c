"""Workers of Spark that ended, and an append that does not return."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest

from penstock.batch.batch import Batch
from penstock.errors import PenstockTimeoutError
from penstock.host.position_page import MessageId, PositionPage, Span, Spot
from penstock.runtime.messages import incoming
from penstock.runtime.messages.packet import Packet, from_batch
from penstock.runtime.stage.sink import OuterStages, OutputWriters, SinkAttempts
from penstock.spark import runner
from penstock.spark.runner import worker_deaths
from penstock.spark.session.executors import Executor
from penstock.spark.workers.worker import alive_writes
from penstock.testing.in_process import InProcessDriver
from penstock.wire.containers import Lane
from tests.support.tools.fixtures import fixture_of
from tests.support.world.waiting_job import Waiting
from tests.support.world.world import ends

CRASHED = (
    "Job aborted due to stage failure: Task 1 in stage 12.0 failed 4 times, most recent failure: Lost task 1.3 in "
    "stage 12.0 (TID 20) (10.0.0.7 executor 2): org.apache.spark.SparkException: Python worker exited unexpectedly "
    "(crashed)"
)
EPOCH, BATCH = 3, Batch(5, 2, 0)
LANES = (Lane(cast("Any", None), (0, 1)), Lane(cast("Any", None), (2, 3)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runner, "live_executors", lambda _: [cast("Executor", _Local())])
    return tmp_path


class _Local:
    is_local = True


def ended(folder: Path, task: int, offset: int | None, batch: Batch = BATCH, epoch: int = EPOCH) -> None:
    """A worker has ended at one message, or in a piece."""
    number = len(list(folder.iterdir()))
    page = PositionPage.create(folder / f"worker-{number}-a.page")
    assert page is not None
    page.epoch = epoch
    slot = page.slot(0, task, ("local.events",))
    slot.begin(batch.number, batch.run)
    if offset is None:
        slot.enter_piece(Span(1, 1, 0, 9))
    else:
        slot.enter_message(MessageId(0, task, -1, 1, offset, 0))
    page.close()


def found(folder: Path, error: str = CRASHED, lanes: tuple[Lane, ...] = LANES) -> list[tuple[Spot, ...]]:
    deaths = worker_deaths(cast("Any", None), error, str(folder), EPOCH, BATCH, lanes, 100.0)
    assert all(not death.by_itself for death in deaths), "nobody knows its exit status"
    return [death.spots for death in deaths]


def test_the_task_that_spark_names_is_meant(folder: Path) -> None:
    """The workers of the others were killed by Spark."""
    ended(folder, 0, 7)
    ended(folder, 2, 8)
    assert [spot.task for (spot,) in found(folder)] == [2]


def test_the_tries_of_one_task_are_one_end(folder: Path) -> None:
    for _ in range(4):
        ended(folder, 3, 8)
    assert [len(spots) for spots in found(folder)] == [1]


def test_ends_at_several_places_stay_several(folder: Path) -> None:
    ended(folder, 2, 8)
    ended(folder, 3, 8)
    assert [len(spots) for spots in found(folder)] == [2]


def test_where_spark_does_not_name_the_task_all_are_meant(folder: Path) -> None:
    ended(folder, 0, None)
    ended(folder, 2, None)
    assert [len(spots) for spots in found(folder, lanes=())] == [2]


def test_what_is_of_another_run_or_no_crash_says_nothing(folder: Path) -> None:
    ended(folder, 2, 8, BATCH.next_run())
    ended(folder, 2, 8, Batch(4, 2, 0))
    ended(folder, 2, 8, epoch=EPOCH - 1)
    assert found(folder) == []
    ended(folder, 2, 8)
    assert found(folder, "Job 3 cancelled part of cancelled job group") == []
    assert len(found(folder)) == 1


def test_a_worker_that_waited_until_spark_killed_it_says_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(folder, 2, 8)
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 101)
    assert found(folder) == []


job = fixture_of(Waiting)


@pytest.fixture
def kept() -> Iterator[OuterStages]:
    """The outer stages of a worker."""
    job: Any = None
    with closing(OuterStages(job, job, {})) as stages:
        yield stages


def writes_in_workers(driver: InProcessDriver, kept: OuterStages, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's last stage runs as it does on Spark."""
    plainly = SinkAttempts.write

    def write(attempts: SinkAttempts, writers: OutputWriters) -> Iterator[Packet]:
        monkeypatch.setattr(kept, "writers", lambda _: writers)
        monkeypatch.setattr(SinkAttempts, "write", plainly)
        for batch in alive_writes(kept, attempts, driver.job.writer(1)):
            yield from from_batch(batch)

    monkeypatch.setattr(SinkAttempts, "write", write)
    monkeypatch.setattr(incoming, "IDLE_SECONDS", 0.01)


def test_it_is_named_and_the_run_fails(job: Waiting, kept: OuterStages, monkeypatch: pytest.MonkeyPatch) -> None:
    job.config["task.callback.drain.timeout.ms"] = 1000  # the other steps of the drain must keep it
    driver, released = job.waits(), Event()
    writes_in_workers(driver, kept, monkeypatch)
    writer = job.systems["m"].writer

    def stuck(identity: Any) -> Any:
        released.wait()
        return writer(identity)

    monkeypatch.setattr(job.systems["m"], "writer", stuck)
    job.ask_to_drain(driver)
    left: list[bool] = []
    monkeypatch.setattr(kept, "leave_writers", lambda: left.append(True))
    try:
        with pytest.raises(
            PenstockTimeoutError, match=r"the append to the output `m\.out` has taken [\d,]+ ms; task\.callback"
        ):
            ends(driver)
    finally:
        released.set()
    assert left, "a writer that is stuck could not be closed"
    assert job.checkpoints[-1].ended is None


def test_one_that_is_in_time_is_reported_once(job: Waiting, kept: OuterStages, monkeypatch: pytest.MonkeyPatch) -> None:
    job.config["task.callback.drain.timeout.ms"] = 600_000
    driver = job.waits()
    writes_in_workers(driver, kept, monkeypatch)
    job.ask_to_drain(driver)
    ends(driver)
    assert {str(each) for each in job.came() if each[0] != "drained"} == job.results()
    assert job.checkpoints[-1].ended == "drained"
