"""Messages that were deleted before the job had read them, in whole jobs on drivers and containers of this process.

What must come out is simple: every message but those that were deleted while nobody had read them. The record counts
these.
"""

from __future__ import annotations

import logging
import random

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.drain.driver import Drain
from penstock.drain.requests import write_drain_notification
from penstock.errors import ConfigError, NotFoundError
from penstock.job.paths import JobPaths
from penstock.system.memory import MemorySystem
from penstock.testing.in_process import InProcessDriver
from tests.support.world.timed_job import TASKS, TimedWorld, ask, steps

IN = [SystemStreamPartition("m", "in", partition) for partition in range(TASKS)]
SKIP = {"streams.m.in.on.data.loss": "skip"}


@pytest.fixture
def world(timed_world: TimedWorld) -> TimedWorld:
    timed_world.config |= SKIP
    return timed_world


def delete(world: TimedWorld, before: int, partition: int = 0) -> None:
    """As retention does."""
    assert isinstance(world.system, MemorySystem)
    world.system.truncate(IN[partition], before)


def numbers(world: TimedWorld, partition: int, start: int, end: int) -> set[int]:
    """The messages between two offsets: message n is in partition n % 2 at offset n // 2."""
    return {n for n in world.given if n % TASKS == partition and start <= n // TASKS < end}


def to_the_end(world: TimedWorld) -> InProcessDriver:
    driver = world.driver(until_latest=True)
    driver.loop.run()
    return driver


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.ERROR]


def metric(driver: InProcessDriver) -> object:
    return driver.board.metrics.snapshot().to_dict()["job"]["stream.m.in"].get("messages-lost")


def stopped_then_deleted(world: TimedWorld, before: int) -> None:
    """A run that has read four messages, then others, of which some are deleted before the next run."""
    world.put(10, 20, 30, 40)
    driver = world.started()
    steps(driver)
    driver.loop.finish()
    driver.close()
    world.put(*range(50, 150, 10))
    delete(world, before)


def test_by_default_it_is_an_error_with_the_ways_out(timed_world: TimedWorld) -> None:
    stopped_then_deleted(timed_world, 5)
    driver = timed_world.started()
    with pytest.raises(NotFoundError) as caught:
        steps(driver)
    for part in (
        "the offsets 2 to 4 of stream `m.in` partition 0",
        "penstock startpoint set JOB --oldest --all-partitions --stream m.in",
        "`streams.m.in.on.data.loss=skip`",
    ):
        assert part in str(caught.value)
    driver.close()
    ask(timed_world, "keep")
    to_the_end(timed_world)
    assert timed_world.came().keys() == timed_world.given.keys() - numbers(timed_world, 0, 2, 5)
    assert timed_world.checkpoints[-1].lost == {}


def test_lost_before_a_start(world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
    stopped_then_deleted(world, 5)
    driver = to_the_end(world)
    assert world.came().keys() == world.given.keys() - numbers(world, 0, 2, 5)
    assert world.checkpoints[-1].lost == {IN[0]: 3}
    assert metric(driver) == 3
    (said,) = errors(caplog)
    assert "the offsets 2 to 4 of stream `m.in` partition 0" in said
    assert "lacks 3 messages" in said


def test_what_is_lost_later_is_added(world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
    stopped_then_deleted(world, 5)
    driver = world.started()
    steps(driver)
    driver.loop.finish()
    driver.close()
    world.put(*range(200, 260, 10))
    delete(world, 9)
    delete(world, 8, partition=1)
    to_the_end(world)
    assert world.came().keys() == world.given.keys() - numbers(world, 0, 2, 5) - numbers(world, 0, 7, 9) - numbers(
        world, 1, 7, 8
    )
    assert world.checkpoints[-1].lost == {IN[0]: 5, IN[1]: 1}
    assert len(errors(caplog)) == 3


@pytest.mark.parametrize("last", [3, 6])
def test_lost_between_the_plan_of_a_batch_and_its_reading(world: TimedWorld, last: int) -> None:
    """The batch is planned again: no run of it has read what is gone. Nothing counts as a failure."""
    world.config["job.retry.max"] = 0
    world.put(*range(10, 130, 10))
    driver = world.started(until_latest=True)
    deleted: list[bool] = []

    def at(step: str) -> None:
        if step == "start-run" and not deleted:
            deleted.append(True)
            delete(world, last)

    driver.fleet.at = at
    while not driver.loop.step():
        pass
    driver.loop.finish()
    assert deleted
    assert world.came().keys() == world.given.keys() - numbers(world, 0, 0, last)
    assert world.checkpoints[-1].lost == {IN[0]: last}


def test_without_skip_the_same_is_an_error_that_says_so(timed_world: TimedWorld) -> None:
    timed_world.put(10, 20, 30, 40)
    driver = timed_world.started()
    driver.fleet.at = lambda step: delete(timed_world, 1) if step == "start-run" else None
    steps(driver)
    with pytest.raises(NotFoundError, match=r"on\.data\.loss=skip"):
        steps(driver)


def test_a_rewind_counts_and_tells_nothing_twice(world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
    stopped_then_deleted(world, 5)
    driver = world.started()
    steps(driver)
    assert driver.loop.boundary.lost == {IN[0]: 3}
    driver.fleet.lose(0)
    steps(driver)
    steps(driver)
    driver.loop.finish()
    assert driver.loop.epoch > driver.job.claim.epoch
    assert world.checkpoints[-1].lost == {IN[0]: 3}
    assert len(errors(caplog)) == 1


def test_what_was_read_after_the_checkpoint_and_is_deleted_during_a_restore(world: TimedWorld) -> None:
    """The state as of the checkpoint does not have it, so it is lost although it was read once."""
    world.put(10, 20, 30, 40)
    driver = world.started()
    driver.loop.commit()
    steps(driver)
    driver.fleet.at = lambda step: delete(world, 1) if step == "open" else None
    driver.fleet.lose(0)
    steps(driver)
    steps(driver)
    driver.loop.finish()
    assert world.checkpoints[-1].lost == {IN[0]: 1}


def test_a_run_to_the_end_ends_although_everything_is_gone(world: TimedWorld) -> None:
    world.put(10, 20, 30, 40)
    driver = world.started(until_latest=True)
    world.put(50, 60)
    delete(world, 3)
    delete(world, 2, partition=1)
    while not driver.loop.step():
        pass
    driver.loop.finish()
    assert world.came().keys() == set()
    assert world.checkpoints[-1].lost == {IN[0]: 3, IN[1]: 2}
    assert world.checkpoints[-1].ended == "end-of-stream"
    to_the_end(world)
    assert world.came().keys() == {5}


def test_an_input_that_has_ended_and_lost_its_messages_ends_the_job(world: TimedWorld) -> None:
    world.put(10, 20, 30)
    world.system.admin().end_stream("in")
    delete(world, 2)
    driver = world.started()
    while not driver.loop.step():
        pass
    assert world.came().keys() == {1}


def test_a_drain_looks_at_no_input_and_the_next_run_skips(world: TimedWorld) -> None:
    world.put(10, 20, 30, 40)
    driver = world.started()
    steps(driver)
    world.put(50, 60)
    delete(world, 3)
    write_drain_notification(world.objects, JobPaths("timed", "1"))
    driver.loop.parts.of(Drain).ask()
    while not driver.loop.step():
        pass
    driver.loop.finish()
    assert world.came().keys() == {0, 1, 2, 3}
    assert world.checkpoints[-1].lost == {}
    driver.close()
    to_the_end(world)
    assert world.checkpoints[-1].lost == {IN[0]: 1}
    assert world.came().keys() == {0, 1, 2, 3, 5}


def test_a_durable_intermediate_stream_is_never_skipped(world: TimedWorld) -> None:
    world.through = True
    world.put(10, 20, 30, 40)
    driver = world.started()
    driver.loop.step()
    assert driver.loop.boundary.left
    assert isinstance(world.system, MemorySystem)
    for partition in range(TASKS):
        world.system.truncate(SystemStreamPartition("m", "by-key", partition), 100)
    with pytest.raises(NotFoundError, match=r"m\.by-key"):
        steps(driver)


def test_a_cleared_state_has_lost_nothing(world: TimedWorld) -> None:
    stopped_then_deleted(world, 5)
    to_the_end(world)
    assert world.checkpoints[-1].lost == {IN[0]: 3}
    ask(world, "clear")
    to_the_end(world)
    assert world.checkpoints[-1].lost == {}


@pytest.mark.parametrize("stream", ["m.out", "m.by-key"])
def test_the_key_is_refused_for_other_streams_of_the_job(timed_world: TimedWorld, stream: str) -> None:
    timed_world.through = True
    timed_world.config[f"streams.{stream}.on.data.loss"] = "skip"
    with pytest.raises(ConfigError, match=rf"`streams.{stream}.on.data.loss`.*is not an input"):
        timed_world.driver()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rewinds", [False, True])
def test_nothing_is_lost_that_is_not_counted(world: TimedWorld, seed: int, rewinds: bool) -> None:
    """Retention at any moment, of any part. A rewind may lose what came out before, but is not in the state."""
    chance = random.Random(seed)
    driver = world.started()

    def maybe_delete(step: str) -> None:
        if step in {"start-run", "open", "snapshot"} and chance.random() < 0.7:
            partition = chance.randrange(TASKS)
            ends = world.system.admin().offsets("in")[partition]
            delete(world, chance.randint(ends.oldest, ends.upcoming), partition)

    driver.fleet.at = maybe_delete
    for _ in range(10):
        world.put(*(chance.randrange(1000) for _ in range(chance.randrange(10))))
        if rewinds and chance.random() < 0.3:
            driver.fleet.lose(chance.randrange(TASKS))
        for _ in range(5):
            steps(driver)
    driver.loop.finish()
    driver.close()
    to_the_end(world)
    lost = {partition: world.checkpoints[-1].lost.get(IN[partition], 0) for partition in range(TASKS)}
    missing = [n % TASKS for n in world.given.keys() - world.came().keys()]
    assert missing, "the seed should lose something"
    for partition, count in lost.items():
        assert count >= missing.count(partition)
        assert rewinds or count == missing.count(partition)
