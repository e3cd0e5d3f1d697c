"""Event time in whole jobs, on drivers and containers of this process: the schedules that must go well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.api.startpoint import StartpointOldest
from penstock.driver.ports import RunBrokenError
from penstock.metadata.paths import JobPaths
from penstock.runtime.batch import END_OF_TIME, NO_WATERMARK
from penstock.runtime.operators.table import OPERATORS
from penstock.startpoint.manager import StartpointManager
from penstock.startpoint.request import WithState
from tests.support.metrics_page import OF_EVENT_TIME, exported
from tests.support.sums_job import once, raising
from tests.support.timed_job import NOW, TASKS, Hold, HoldNode, HoldSpec, TimedWorld, reached, steps


@pytest.fixture(autouse=True)
def _one_line_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATORS, HoldSpec, Hold)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TimedWorld]:
    world = TimedWorld(tmp_path)
    yield world
    world.close()


def test_what_the_watermark_has_passed_comes_out_without_another_message(world: TimedWorld) -> None:
    driver = world.started()
    world.put(10, 20, 30, 40, 50, 60)
    steps(driver)
    assert world.came() == {n: [] for n in range(5)}, "50 is the lowest of both partitions"
    assert driver.loop.boundary.watermarks["two"] == 50


@pytest.mark.parametrize("apart", [False, True])
def test_two_windows_in_a_row(world: TimedWorld, apart: bool) -> None:
    """In one stage and in two: what the first one fires is late nowhere, although many fire, and few in each batch."""
    world.apart = apart
    driver = world.started()
    for first in range(0, 200, 20):
        world.put(*(time * 10 for time in range(first, first + 20)))
        steps(driver)
    came = world.came()
    assert len(came) == 199
    assert not any(came.values())


def test_a_late_message_is_late(world: TimedWorld) -> None:
    driver = world.started()
    world.put(100, 100)
    steps(driver)
    world.put(99, 100, 120)
    steps(driver)
    came = world.came()
    assert came[2] == ["one", "two"]
    assert came[3] == []
    assert 4 not in came


def test_a_batch_that_moved_the_watermark_is_run_again(world: TimedWorld) -> None:
    driver = world.started()
    world.put(10, 10, 20, 20)
    steps(driver)
    world.put(30, 30, 40, 40)
    for step in ("reports", "sink", "stage 2"):
        driver.runner.at = once(step, raising(RunBrokenError("broken")))
        world.put(50, 50)
        steps(driver)
    by_number: dict[int, set[tuple[object, ...]]] = {}
    runs = set()
    for batch in HoldNode.batches:
        chosen = (batch.time_ms, *map(str, (dict(batch.late), dict(batch.firing), dict(batch.held))))
        by_number.setdefault(batch.number, set()).add(chosen)
        runs.add(batch.run)
    assert runs == {1, 2}
    assert all(len(chosen) == 1 for chosen in by_number.values())
    assert not any(world.came().values())


def test_a_rewind_goes_back_to_the_event_times_of_the_checkpoint(world: TimedWorld) -> None:
    driver = world.started()
    world.put(10, 10)
    steps(driver)
    driver.loop.commit()
    before = driver.loop.boundary
    world.put(20, 20, 30, 30)
    driver.fleet.at = once("end", lambda: driver.fleet.lose(1))
    driver.loop.step()
    after = driver.loop.boundary
    assert (after.event_times, after.watermarks) == (before.event_times, before.watermarks)
    steps(driver)
    assert world.came() == {n: [] for n in range(6)}


def test_a_restart_goes_on_with_the_watermarks_of_the_checkpoint(world: TimedWorld) -> None:
    first = world.started()
    world.put(100, 100)
    steps(first)
    first.loop.commit()
    boundary = first.loop.boundary
    first.close()
    assert reached(world.checkpoints[-1].watermarks) == {"in": 100, "by-key": 100, "one": 100, "by-n": 100, "two": 100}
    second = world.started()
    assert second.loop.boundary.event_times == boundary.event_times
    world.put(50)
    steps(second)
    assert world.came()[2] == ["one", "two"]


def test_what_is_due_fires_after_a_restart_although_nothing_comes(world: TimedWorld) -> None:
    first = world.started()
    world.put(10, 10)
    first.loop.step()
    first.loop.commit()
    assert world.came() == {}
    first.close()
    second = world.started()
    steps(second)
    assert world.came() == {0: [], 1: []}


def test_a_partition_without_messages_holds_back_until_it_is_idle(world: TimedWorld) -> None:
    world.config["streams.m.in.idle.ms"] = 5_000
    driver = world.started()
    steps(driver)
    world.put(10, 20, partition=0)
    steps(driver)
    assert world.came() == {}
    world.clock.advance(4)
    steps(driver)
    assert world.came() == {0: [], 1: []}
    world.put(30, partition=0)
    steps(driver)
    assert 2 in world.came(), "it is idle still"


def test_an_idle_partition_returns(world: TimedWorld) -> None:
    """The watermark does not fall: what it brings may be late."""
    world.config["streams.m.in.idle.ms"] = 0
    driver = world.started()
    steps(driver)
    world.put(100, partition=0)
    steps(driver)
    world.put(50, partition=1)
    steps(driver)
    assert world.came() == {0: [], 1: ["one", "two"]}
    assert driver.loop.boundary.watermarks["one"] == 100


def test_if_all_partitions_are_idle_the_watermark_stays(world: TimedWorld) -> None:
    world.config["streams.m.in.idle.ms"] = 1_000
    driver = world.started()
    world.put(100, partition=0)
    world.put(50, partition=1)
    steps(driver)
    world.clock.advance(3600)
    for _ in range(3):
        driver.loop.step()
    assert driver.loop.boundary.watermarks["one"] == 50


def test_started_after_a_day_with_a_day_of_backlog(world: TimedWorld) -> None:
    """No partition with unread messages is idle, however long the batch before was ago."""
    first = world.started()
    world.put(10, 10)
    steps(first)
    first.loop.commit()
    first.close()
    world.clock.advance(86_400)
    world.put(*range(1000, 1100, 10), partition=0)
    world.put(*range(500, 600, 10), partition=1)
    second = world.started()
    steps(second)
    assert not any(world.came().values())
    assert second.loop.boundary.watermarks["two"] == 590


def test_idle_time_begins_again_with_each_epoch(world: TimedWorld) -> None:
    world.config["streams.m.in.idle.ms"] = 10_000
    driver = world.started()
    steps(driver)
    world.clock.advance(8)
    driver.fleet.lose(1)
    driver.loop.step()
    steps(driver)
    world.put(10, partition=0)
    steps(driver)
    world.clock.advance(6)
    steps(driver)
    assert world.came() == {}, "8 seconds in the first epoch, and 8 in the second one"
    world.clock.advance(2)
    steps(driver)
    assert world.came() == {0: []}


def test_a_message_far_in_the_future(world: TimedWorld) -> None:
    driver = world.started()
    world.put(10, 10, NOW + 86_400_000 * 2, 20, 30)
    steps(driver)
    assert world.came() == {0: [], 1: [], 3: []}
    assert driver.loop.boundary.watermarks["one"] == 20
    world.put(30, 30)
    steps(driver)
    assert not any(world.came().values())


def test_a_policy_that_waits(world: TimedWorld) -> None:
    world.inputs["m.in"] = ps.BoundedOutOfOrderness(25)
    driver = world.started()
    world.put(100, 100)
    steps(driver)
    world.put(76, 75)
    steps(driver)
    assert world.came() == {3: []}, "75 is the watermark"
    world.put(74)
    steps(driver)
    assert world.came() == {3: [], 4: ["one", "two"]}


def test_out_of_orderness_raised(world: TimedWorld) -> None:
    """The watermark stays until event time has caught up."""
    first = world.started()
    world.put(100, 100)
    steps(first)
    first.loop.commit()
    first.close()
    world.inputs["m.in"] = ps.BoundedOutOfOrderness(60)
    second = world.started()
    world.put(110, 110, 99)
    steps(second)
    assert second.loop.boundary.watermarks["one"] == 100
    assert world.came()[4] == ["one", "two"]


def test_an_input_added(world: TimedWorld) -> None:
    """It holds nobody back below what has been reached; then it counts."""
    first = world.started()
    world.put(100, 100)
    steps(first)
    first.loop.commit()
    first.close()
    world.inputs["m.other"] = None
    second = world.started()
    world.put(150, 150)
    steps(second)
    assert second.loop.boundary.watermarks["one"] == 100
    world.put(50, 120, 130, stream="other")
    steps(second)
    came = world.came()
    assert came[4] == ["one", "two"]
    assert second.loop.boundary.watermarks["one"] == 120
    assert came[5] == []
    assert 2 not in came


def test_a_new_operator_starts_with_the_watermark_of_its_inputs(world: TimedWorld) -> None:
    """A message that is late where its inputs are is late there too, in the first batch."""
    world.second = False
    first = world.started()
    world.put(100, 100)
    steps(first)
    first.loop.commit()
    first.close()
    assert "two" not in world.checkpoints[-1].watermarks
    world.second = True
    second = world.started()
    world.put(50, 100, 100)
    steps(second)
    assert world.came() == {0: [], 1: [], 2: ["one", "two"], 3: [], 4: []}


def test_many_are_due_after_a_long_stop(world: TimedWorld) -> None:
    """At most a few fire in each attempt, the next batch starts at once, and the operators behind wait."""
    world.config["job.batch.max.messages"] = 1000
    world.inputs["m.in"] = ps.BoundedOutOfOrderness(10_000)
    driver = world.started()
    world.put(*range(200))
    steps(driver)
    assert world.came() == {}
    world.put(20_000, 20_000)
    driver.loop.step()
    driver.loop.step()
    world.put(20_000, 20_000)
    stands = [driver.loop.boundary]
    while stands[-1].is_behind:
        driver.loop.step()
        stands.append(driver.loop.boundary)
    assert len(stands) > 10
    assert all(each.positions == stands[0].positions for each in stands), "first what is due"
    batches = driver.loop.boundary.batch
    steps(driver)
    assert batches > 200 / 2 / 5 / 2, "two tasks, five each"
    assert world.came() == {n: [] for n in range(200)}
    held = [batch.held for batch in HoldNode.batches if batch.held]
    assert len({str(dict(each)) for each in held}) > 10
    assert driver.loop.boundary.next_due == {"one": (20_000, None)}


def test_the_clock_goes_back(world: TimedWorld) -> None:
    """Between two batches, and between two drivers: batch time does not, and nothing else changes."""
    first = world.started()
    world.put(10, 10)
    steps(first)
    world.clock.correct(-3_600_000)
    world.put(20, 20)
    steps(first)
    first.loop.commit()
    first.close()
    world.clock.correct(-3_600_000)
    second = world.started()
    world.put(30, 30, NOW + 86_400_000)
    steps(second)
    times = [batch.time_ms for batch in HoldNode.batches]
    assert times == sorted(times)
    assert times[0] >= NOW
    assert {n: late for n, late in world.came().items() if n < 6} == {n: [] for n in range(6)}


# The end of the stream.


def test_the_end_closes_everything_and_the_record_says_so(world: TimedWorld) -> None:
    world.put(10, 20, 30, 40, 1000)
    world.driver(until_latest=True).loop.run()
    assert world.came() == {n: [] for n in range(5)}
    last = world.checkpoints[-1]
    assert (last.ended, last.event_times, last.watermarks) == ("end-of-stream", {}, {})
    assert [str(ssp) for ssp in last.ended_inputs] == ["m.in.0", "m.in.1"]
    closing = HoldNode.batches[-1]
    assert closing.control == "end-of-stream"
    assert {closing.firing_watermark(op) for op in ("one", "two")} == {END_OF_TIME}


def test_a_run_may_stop_without_closing(world: TimedWorld) -> None:
    world.put(10, 20, 30, 40)
    world.driver(until_latest=True, close=False).loop.run()
    assert world.came() == {0: [], 1: [], 2: []}
    assert world.checkpoints[-1].ended == "stopped"
    assert world.checkpoints[-1].watermarks["one"] == 30
    driver = world.started()
    world.put(35, 45)
    steps(driver)
    assert world.came() == {0: [], 1: [], 2: [], 4: []}


def test_a_second_run_to_the_end_after_the_first(world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
    """As after a drain, event time begins again: what is older is not late."""
    world.put(1000, 1000)
    world.driver(until_latest=True).loop.run()
    world.put(10, 20)
    caplog.set_level("INFO")
    world.driver(until_latest=True).loop.run()
    assert world.came() == {n: [] for n in range(4)}
    said = [r.message for r in caplog.records if "had ended" in r.message]
    assert said == [f"`m.in.{n}` had ended, and has new messages: they are read" for n in range(2)]
    world.driver(until_latest=True).loop.run()
    assert len(world.output()) == 4


@pytest.mark.parametrize("step", ["start-run", "stage 1", "sink", "end"])
def test_the_end_is_repeated_after_a_rewind(world: TimedWorld, step: str) -> None:
    """Whether the stream is closed is a matter of the boundary."""
    world.put(10, 20, 1000)
    driver = world.driver(until_latest=True)
    driver.loop.start()

    def at(name: str) -> None:
        batch = HoldNode.batches[-1] if HoldNode.batches else None
        if name == step and batch is not None and batch.control == "end-of-stream":
            driver.fleet.at = driver.runner.at = lambda _: None
            driver.fleet.lose(1)

    driver.fleet.at = driver.runner.at = at
    while not driver.loop.step():
        pass
    assert driver.loop.boundary.closed
    assert sorted(world.came()) == [0, 1, 2]


def test_a_commit_of_a_closed_stream_says_so_whoever_asks_for_it(world: TimedWorld) -> None:
    world.put(10, 20, 1000)
    driver = world.driver(until_latest=True)
    driver.loop.start()
    while not driver.loop.step():
        pass
    driver.loop.commit()
    assert world.checkpoints[-1].ended == "end-of-stream"
    driver.close()
    second = world.started()
    assert second.loop.boundary.watermarks == {}
    world.put(5)
    assert steps(second) == 1


def test_inputs_that_have_ended_end_the_job(world: TimedWorld) -> None:
    world.put(10, 20, 1000)
    driver = world.driver()
    driver.loop.start()
    steps(driver)
    for ssp in {at.ssp for at in driver.loop.boundary.positions}:
        world.system.end(ssp)
    while not driver.loop.step():
        pass
    assert sorted(world.came()) == [0, 1, 2]
    assert driver.loop.boundary.closed


def test_an_input_that_has_ended_holds_nothing_back(world: TimedWorld) -> None:
    world.inputs["m.other"] = None
    driver = world.started()
    world.put(10, 10)
    world.put(20, 20, stream="other")
    steps(driver)
    assert driver.loop.boundary.watermarks["one"] == 10
    for ssp in {at.ssp for at in driver.loop.boundary.positions if at.ssp.stream == "in"}:
        world.system.end(ssp)
    world.put(30, 30, stream="other")
    steps(driver)
    assert reached(driver.loop.boundary.watermarks) == {
        "in": END_OF_TIME, "other": 30, "all": 30, "by-key": 30, "one": 30, "by-n": 30, "two": 30
    }  # fmt: skip
    driver.loop.commit()
    assert [str(ssp) for ssp in world.checkpoints[-1].ended_inputs] == ["m.in.0", "m.in.1"]
    driver.close()
    world.put(25, 35, 45, 45)
    world.put(45, 45, stream="other")
    second = world.started()
    assert second.loop.boundary.watermarks.get("in", NO_WATERMARK) == NO_WATERMARK, "it begins again"
    assert second.loop.boundary.watermarks["one"] == 30
    steps(second)
    assert world.came()[6] == ["one", "two"]
    assert world.came()[7] == []


# What is shown.


def test_the_watermark_its_delay_and_who_holds_it_back_are_shown(world: TimedWorld) -> None:
    driver = world.started()
    world.put(NOW - 5_000, NOW - 9_000, NOW - 1_000, NOW + 86_400_001 + 10_000)
    steps(driver)
    progress = driver.board.last
    assert progress is not None
    (source,) = progress.sources
    assert (source.watermark, source.held_back_by) == (NOW - 9_000, "1")
    shown = driver.board.metrics.snapshot().to_dict()
    assert shown["job"]["stream.m.in"]["watermark"] == NOW - 9_000
    assert shown["job"]["stream.m.in"]["watermark-delay-ms"] == HoldNode.batches[-1].time_ms - NOW + 9_000
    assert driver.board.metrics.snapshot().total("messages-too-far-ahead") == 1
    assert exported(driver.board.metrics.snapshot()) >= OF_EVENT_TIME


# Starts.


def ask(world: TimedWorld, with_state: WithState) -> None:
    """Read everything again."""
    manager = StartpointManager(world.objects, JobPaths("timed", "1"), 10**9, world.clock.now_ms)
    for partition in range(TASKS):
        startpoint = StartpointOldest(creation_timestamp=NOW)
        manager.write_startpoint(SystemStreamPartition("m", "in", partition), startpoint, with_state=with_state)


def ran_once(world: TimedWorld) -> None:
    first = world.started()
    world.put(100, 100)
    steps(first)
    world.put(200, 200)
    steps(first)
    first.loop.commit()
    first.close()


def test_everything_is_read_again_after_clear(world: TimedWorld) -> None:
    ran_once(world)
    ask(world, "clear")
    second = world.started()
    assert second.loop.boundary.watermarks == {}
    steps(second)
    assert world.output() == sorted([(0, 100, []), (1, 100, []), (2, 200, []), (3, 200, [])] * 2)


def test_everything_is_read_again_with_keep(world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
    ran_once(world)
    ask(world, "keep")
    second = world.started()
    assert second.loop.boundary.watermarks["two"] == 200
    steps(second)
    assert world.output().count((0, 100, ["one", "two"])) == 1
    assert world.output().count((2, 200, [])) == 2
    said = [record.message for record in caplog.records if "was moved back" in record.message]
    assert [text.partition(",")[0] for text in said] == [f"`m.in.{n}` was moved back" for n in range(TASKS)]


def test_a_start_from_an_older_checkpoint_takes_its_event_times(world: TimedWorld) -> None:
    first = world.started()
    world.put(100, 100)
    steps(first)
    first.loop.commit()
    older = world.checkpoints[-1]
    world.put(200, 200)
    steps(first)
    first.loop.commit()
    first.close()
    second = world.started(from_checkpoint=str(older.id))
    assert second.loop.boundary.watermarks == older.watermarks
    assert set(second.loop.boundary.event_times.values()) == {100}
    steps(second)
    assert not any(world.came().values())
