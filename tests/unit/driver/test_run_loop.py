"""The run loop on containers of this process: whatever happens, state and outputs are those of an independent sum."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.log import CheckpointLog
from penstock.driver.part import DriverPart
from penstock.errors import (
    ContainerLostError,
    CorruptError,
    FencedError,
    PenstockError,
    PenstockTimeoutError,
    RetryableError,
    UserCodeError,
)
from penstock.testing import SettableClock
from penstock.wire.ports import RunBrokenError
from tests.support.processes.python import run_python
from tests.support.streams.gappy_system import GappySystem
from tests.support.tools.fixtures import fixture_of
from tests.support.world.sums_job import TASKS, SumsWorld, at_end, drain, drain_and_commit, once, raising, state

world = fixture_of(SumsWorld)


def test_batches_a_commit_and_a_restart(world: SumsWorld) -> None:
    world.put(*range(10))
    first = world.started()
    drain(first)
    world.check(first)
    first.loop.commit()
    first.close()
    world.put(*range(10, 20))
    second = world.started()
    drain(second)
    world.check(second)
    assert [record.kind_detail for record in world.checkpoints] == ["start", "commit", "start"]
    assert world.checkpoints[-1].batch == world.checkpoints[1].batch


def test_the_application_asks_for_a_commit(world: SumsWorld) -> None:
    world.put(1, 2, 100)
    driver = world.started()
    drain(driver)
    driver.loop.commit()  # waits for the one in flight
    assert len(world.checkpoints) == 3
    world.check(driver)


@pytest.mark.few(2)
@pytest.mark.parametrize("step", ["start-run", "source", "stage 1", "reports", "end"])
def test_a_lost_container_leads_back_to_the_last_checkpoint(world: SumsWorld, step: str) -> None:
    world.put(*range(6))
    driver = world.started()
    drain_and_commit(driver)
    world.put(*range(6, 12))
    lost = once(step, lambda: driver.fleet.lose(1))
    driver.fleet.at = driver.runner.at = lost
    epoch = driver.loop.epoch
    drain(driver)
    assert driver.loop.epoch == epoch + 1
    world.check(driver, exactly_once=step in {"start-run", "source", "stage 1"})


def test_a_batch_has_as_many_messages_as_it_may_whatever_the_gaps_are(tmp_path: Path) -> None:
    """Parts with many gaps and parts without: batches have as many messages as their bound."""
    system = GappySystem("m")
    world = SumsWorld(tmp_path, system)
    for number in range(120):
        if number // 30 % 2:
            system.skip(SystemStreamPartition("m", "events", number % TASKS), 50)
        world.put(number % 90)
    driver = world.started()
    driver.runner.at = once("reports", raising(RunBrokenError("broken")))
    read = []
    while any(at_end(driver)):
        driver.loop.step()
        assert driver.board.last is not None
        read.append(driver.board.last.num_input_rows)
    world.check(driver, exactly_once=False)
    assert read == [4] * 30
    world.close()


def test_too_many_failures_end_the_run(world: SumsWorld) -> None:
    world.put(1)
    driver = world.started(job_retry_max=2)
    driver.runner.at = lambda _: raising(RunBrokenError("broken again"))()
    with pytest.raises(PenstockError, match=r"3 failures since the last checkpoint.*broken again"):
        drain(driver)


@pytest.mark.parametrize("error", [RunBrokenError, ContainerLostError], ids=["batch", "container"])
def test_what_fails_again_and_again_is_tried_after_pauses(world: SumsWorld, error: type[Exception]) -> None:
    """A disk that is full for a moment ends no run."""
    world.put(1)
    clock, keys = SettableClock(), {"job.retry.max": 5}
    driver = world.make(world.app.graph(), keys, containers=2, clock=clock)
    driver.loop.start()
    driver.runner.at = lambda _: raising(error("no space left on device"))()
    before = len(clock.waited)
    with pytest.raises(PenstockError, match=r"6 failures since the last checkpoint.*no space left"):
        drain(driver)
    assert [seconds for seconds in clock.waited[before:] if seconds >= 0.5] == [0.5, 1.0, 2.0, 4.0]


def test_a_failing_application_ends_the_run_and_its_batch_is_not_applied(world: SumsWorld) -> None:
    world.put(1, 2, 3)
    driver = world.started()
    drain(driver)
    before = state(driver)
    world.put(-1)
    with pytest.raises(UserCodeError, match="negative"):
        drain(driver)
    assert state(driver) == before


@pytest.mark.parametrize("recorded", [False, True])
def test_a_crash_around_the_record(world: SumsWorld, recorded: bool) -> None:
    world.put(*range(8))
    first = world.started()
    drain(first)
    step = "clean-up" if recorded else "upload"
    first.fleet.at = once(step, raising(PenstockError("the process died")))
    if recorded:
        first.loop.commit()  # what fails behind the record costs space only
    else:
        with pytest.raises(PenstockError, match="the process died"):
            first.loop.commit()
    first.close()
    second = world.started()
    begins = second.loop.boundary.batch
    assert begins == (first.loop.boundary.batch if recorded else 0)
    world.put(*range(8, 16))
    drain(second)
    world.check(second, exactly_once=recorded)


def test_an_epoch_that_does_not_open_is_tried_again_and_its_start_checkpoint_is_one(world: SumsWorld) -> None:
    world.put(*range(8))
    driver = world.driver()
    driver.fleet.at = once("open", raising(RetryableError("the store does not answer")))
    driver.loop.start()
    assert driver.loop.epoch == driver.job.claim.epoch + 1
    driver.fleet.at = lambda _: None
    drain(driver)
    world.check(driver)
    assert [record.kind_detail for record in world.checkpoints] == ["start"]


@pytest.mark.parametrize("overtaken", [True, False])
def test_state_that_cannot_be_restored_may_have_been_deleted_by_a_newer_driver(
    world: SumsWorld, overtaken: bool
) -> None:
    world.put(*range(8))
    driver = world.driver()

    def damaged() -> None:
        if overtaken:
            CheckpointLog(driver.job.objects, driver.job.paths).claim("newer")
        raise CorruptError("an object is missing")

    driver.fleet.at = once("open", damaged)
    with pytest.raises(FencedError if overtaken else CorruptError):
        driver.loop.start()


def test_a_graceful_stop_ends_with_a_commit(world: SumsWorld) -> None:
    world.put(*range(8))
    driver = world.driver()
    driver.runner.at = once("reports", driver.stop.request)
    driver.loop.run()
    assert world.checkpoints[-1].ended == "stopped"
    assert world.checkpoints[-1].batch == 1
    successor = world.started()
    assert successor.job.claim.run_id != driver.job.claim.run_id
    drain(successor)
    world.check(successor)


def test_an_immediate_stop_commits_nothing(world: SumsWorld) -> None:
    world.put(*range(8))
    driver = world.driver()

    def stop_twice() -> None:
        driver.stop.request()
        driver.stop.request()
        driver.runner.cancel()

    driver.runner.at = once("stage 1", stop_twice)
    driver.loop.run()
    assert [record.batch for record in world.checkpoints] == [0]
    successor = world.started()
    drain(successor)
    world.check(successor)


def test_the_application_shuts_the_job_down(world: SumsWorld) -> None:
    world.put(200, *range(20))
    driver = world.driver()
    driver.loop.run()
    assert world.checkpoints[-1].batch == 1


def test_a_container_lost_in_the_last_commit_is_answered_before_the_end(world: SumsWorld) -> None:
    world.put(*range(4))
    driver = world.driver()
    driver.runner.at = once("reports", driver.stop.request)
    driver.fleet.at = once("end", lambda: setattr(driver.fleet, "at", once("snapshot", lambda: driver.fleet.lose(0))))
    driver.loop.run()
    assert world.checkpoints[-1].ended == "stopped"
    successor = world.started()
    drain(successor)
    world.check(successor, exactly_once=False)


def test_a_container_lost_in_an_awaited_commit_leads_back(world: SumsWorld) -> None:
    world.put(*range(6))
    driver = world.started()
    drain(driver)
    driver.fleet.at = once("snapshot", lambda: driver.fleet.lose(0))
    ended = driver.loop.boundary
    assert not driver.loop.try_commit()
    assert driver.loop.boundary.batch < ended.batch
    drain(driver)
    assert driver.loop.try_commit()
    assert driver.loop.boundary.positions == ended.positions
    world.check(driver, exactly_once=False)


def test_a_commit_is_due_by_time_and_only_where_batches_have_ended(world: SumsWorld) -> None:
    driver = world.started(task_commit_ms=60_000, state_snapshot_interval_seconds=0)
    world.put(1)
    drain(driver)
    world.clock.advance(59)
    world.put(2)
    drain(driver)
    driver.loop.await_commit()
    assert [record.kind_detail for record in world.checkpoints] == ["start"]
    world.clock.advance(1)
    driver.loop.step()  # nothing to read, and a commit of what has ended
    driver.loop.await_commit()
    assert [record.kind_detail for record in world.checkpoints] == ["start", "commit"]
    world.clock.advance(3600)
    driver.loop.step()
    driver.loop.await_commit()
    assert len(world.checkpoints) == 2, "no batch has ended since"


def test_batch_time_is_the_wall_clock_and_never_falls(world: SumsWorld) -> None:
    driver = world.started()
    world.put(1)
    drain(driver)
    first = driver.loop.boundary.batch_time_ms
    assert first == world.clock.now_ms()
    world.clock.correct(-60_000)
    world.put(2)
    drain(driver)
    assert driver.loop.boundary.batch_time_ms == first
    driver.loop.commit()
    assert world.checkpoints[-1].batch_time_ms == first
    assert world.checkpoints[-1].id > world.checkpoints[-2].id


def test_processing_waits_for_a_commit_that_is_in_flight_for_too_long(world: SumsWorld) -> None:
    driver = world.started(task_commit_max_delay_ms=10_000)
    uploading, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        uploading.set()
        may_end.wait(60)

    driver.fleet.at = once("upload", hold)
    world.put(100)
    drain(driver)
    assert uploading.wait(60)
    world.put(100)
    drain(driver)
    assert driver.board.metrics.commits_skipped.count == 1
    world.clock.advance(10)
    world.put(1)
    threading.Timer(0.1, may_end.set).start()
    drain(driver)
    assert may_end.is_set(), "the batch after it did not end before the commit did"
    driver.loop.await_commit()
    assert [record.batch for record in world.checkpoints] == [0, 1, 3]
    world.check(driver)


def test_a_commit_that_takes_too_long_ends_the_run(world: SumsWorld) -> None:
    driver = world.started(task_commit_timeout_ms=30_000)
    may_end = threading.Event()

    def hold() -> None:
        while not may_end.wait(0.01):
            world.clock.advance(1)

    driver.fleet.at = once("upload", hold)
    world.put(1)
    drain(driver)
    try:
        with pytest.raises(PenstockTimeoutError, match=r"still not complete \d+ s after it began"):
            driver.loop.commit()
    finally:
        driver.loop.parts.commits.abandon()  # as the end of a run does, and before the upload can end
        may_end.set()
        driver.loop.close()
    assert [record.kind_detail for record in world.checkpoints] == ["start"]


def test_what_fails_to_end_keeps_nothing_else_from_ending(world: SumsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, ended = world.driver(), []
    driver.loop.start()

    def noting(part: DriverPart, end: Callable[[], None]) -> Callable[[], None]:
        def close() -> None:
            ended.append(part.wing)
            end()

        return close

    for part in driver.loop.parts.wings:
        monkeypatch.setattr(part, "close", noting(part, part.close))
    with monkeypatch.context() as failing:
        failing.setattr(driver.loop.parts.commits, "close", lambda: raising(PenstockError("it does not end"))())
        with pytest.raises(PenstockError, match="it does not end"):
            driver.loop.close()
    assert ended == ["deploy", "replay", "shadow", "drain", "standby", "outbox", "tables", "side"]


def test_a_test_runner_loads_no_spark() -> None:
    code = "import sys, penstock.testing; print(sorted({m.split('.')[0] for m in sys.modules} & {'pyspark', 'py4j'}))"
    found = run_python("-c", code)
    assert found.stdout.strip() == "[]"
