"""Several of Spark's workers have ended: one of them has ended the run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.batch.batch import Batch
from penstock.host.position_page import MessageId, PositionPage, Span, Spot
from penstock.spark.batches import spark_runner
from penstock.spark.batches.spark_runner import worker_deaths
from penstock.spark.session.executors import Executor
from penstock.wire.containers import Lane

CRASHED = (
    "Job aborted due to stage failure: Task 1 in stage 12.0 failed 4 times, most recent failure: Lost task 1.3 in "
    "stage 12.0 (TID 20) (10.0.0.7 executor 2): org.apache.spark.SparkException: Python worker exited unexpectedly "
    "(crashed)"
)
EPOCH, BATCH = 3, Batch(5, 2, 0)
LANES = (Lane(cast("Any", None), (0, 1)), Lane(cast("Any", None), (2, 3)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(spark_runner, "live_executors", lambda _: [cast("Executor", _Local())])
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
