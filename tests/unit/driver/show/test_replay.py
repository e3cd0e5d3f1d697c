"""Messages that a job reads again after a start or a rewind are counted, until it is back where it was."""

from __future__ import annotations

from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import TaskSsp
from penstock.batch.portions import PortionRead
from penstock.driver.show.exports import MetricsExports
from penstock.driver.show.metrics import Replay, read_again
from penstock.job.shown import MetricsBoard
from penstock.metrics.snapshot import MetricId, TimerValue
from penstock.testing.in_process import InProcessDriver
from tests.support.tools.fixtures import fixture_of
from tests.support.world.sums_job import TASKS, SumsWorld, at_end, drain, drain_and_commit

SSPS = [SystemStreamPartition("m", "events", partition) for partition in range(3)]


world = fixture_of(SumsWorld)


def replayed(driver: InProcessDriver) -> list[int]:
    """Messages by task."""
    shown = driver.board.metrics.snapshot().to_dict()
    return [shown[f"Partition {task}"]["stream.m.events"]["messages-replayed"] for task in range(TASKS)]


def replays(driver: InProcessDriver) -> TimerValue:
    found = driver.board.metrics.snapshot()[MetricId("job", "job", "replay-ns")]
    assert isinstance(found, TimerValue)
    return found


def test_what_a_rewind_reads_again(world: SumsWorld) -> None:
    driver = world.started()
    world.put(*range(1, 10))
    drain_and_commit(driver)
    world.put(*range(10, 17))  # (3, 2, 2) more
    drain(driver)
    assert (replayed(driver), replays(driver).count) == ([0, 0, 0], 0)
    driver.fleet.lose(0)
    world.put(*range(17, 40))
    replaying: list[str] = []

    def take_a_second(step: str) -> None:
        if step == "source":
            world.clock.advance(1)
            if not replays(driver).count:
                replaying.append(step)

    driver.runner.at = take_a_second
    drain(driver)
    assert replayed(driver) == [3, 2, 2]
    assert replays(driver).count == 1
    assert replays(driver).total_ns == len(replaying) * 1e9
    driver.runner.at = lambda _: None
    driver.loop.commit()
    driver.fleet.lose(1)
    world.put(40)
    driver.loop.step()
    drain(driver)
    assert (replayed(driver), replays(driver).count) == ([3, 2, 2], 1), "everything was in the checkpoint"
    world.check(driver, exactly_once=False)


def test_a_rewind_in_the_middle_of_a_replay(world: SumsWorld) -> None:
    driver = world.started(job_batch_max_messages=3)
    world.put(*range(1, 13))
    drain(driver)
    for task in (0, 1):
        driver.fleet.lose(task)
        for _ in range(3):  # the rewind, and two of four batches
            driver.loop.step()
    assert replays(driver).count == 0
    drain(driver)
    assert replays(driver).count == 1
    assert sum(replayed(driver)) == 6 + 12


def test_what_a_new_driver_reads_again(world: SumsWorld) -> None:
    first = world.driver()
    exports = MetricsExports(first.job, "first", first.board, lambda: True)
    first.loop.start()
    world.put(*range(1, 10))
    drain_and_commit(first)
    world.put(*range(10, 17))
    drain(first)
    exports.close()  # puts what it puts from time to time; no checkpoint follows
    first.close()
    world.put(*range(17, 20))
    second = world.driver()
    exports = MetricsExports(second.job, "second", second.board, lambda: True)
    second.loop.start()
    drain(second)
    assert not any(at_end(second))
    assert (replayed(second), replays(second).count) == ([3, 2, 2], 1)
    exports.close()
    shown = MetricsBoard(world.objects, second.job.paths).get()
    assert shown is not None
    assert shown.run_id == "second"
    assert shown.reached == {(at.task, at.ssp): end for at, end in second.loop.boundary.positions.items()}


def test_a_stream_that_was_made_again_ends_the_replay() -> None:
    at = TaskSsp(0, SSPS[0])
    replay = Replay()
    replay.continues({at: 100})
    again = replay.ended({at: PortionRead(4, messages=4)}, {SSPS[0]: 4}, {at: 0}, {at: 4}, 1.0, 3.0)
    assert again.messages == {at: 4}
    assert again.took_ns == 2e9
    assert replay.reached == {at: 4}


def test_a_portion_that_goes_beyond_the_target() -> None:
    at, other = TaskSsp(0, SSPS[0]), TaskSsp(0, SSPS[1])
    before, target = {at: 10, other: 0}, {at: 15, TaskSsp(1, SSPS[0]): 99}
    assert read_again({at: PortionRead(20, messages=10), other: PortionRead(9, messages=9)}, before, target) == {at: 5}
    assert read_again({at: PortionRead(20, messages=4)}, before, target) == {at: 2}, "a share, with gaps"
    assert read_again({at: PortionRead(20, messages=10)}, before, {}) == {}
