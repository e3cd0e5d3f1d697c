"""Event time in whole jobs, on drivers and containers of this process: the schedules that must go well."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.batch.watermarks import TIME
from penstock.wire.ports import RunBrokenError
from tests.support.oracles.metrics_page import OF_EVENT_TIME, exported
from tests.support.world.sums_job import once, raising
from tests.support.world.timed_job import NOW, TASKS, HoldNode, TimedWorld, ask, reached, steps, steps_and_commit


def test_what_the_watermark_has_passed_comes_out_without_another_message(timed_world: TimedWorld) -> None:
    driver = timed_world.started()
    timed_world.put(10, 20, 30, 40, 50, 60)
    steps(driver)
    assert timed_world.came() == {n: [] for n in range(5)}, "50 is the lowest of both partitions"
    assert driver.loop.boundary.watermarks["two"] == 50


@pytest.mark.parametrize("apart", [False, True])
def test_two_windows_in_a_row(timed_world: TimedWorld, apart: bool) -> None:
    """In one stage and in two: what the first one fires is late nowhere, although many fire, and few in each batch."""
    timed_world.apart = apart
    driver = timed_world.started()
    for first in range(0, 60, 20):
        timed_world.put(*(time * 10 for time in range(first, first + 20)))
        steps(driver)
    came = timed_world.came()
    assert len(came) == 59
    assert not any(came.values())


def test_a_late_message_is_late(timed_world: TimedWorld) -> None:
    driver = timed_world.started()
    timed_world.put(100, 100)
    steps(driver)
    timed_world.put(99, 100, 120)
    steps(driver)
    came = timed_world.came()
    assert came[2] == ["one", "two"]
    assert came[3] == []
    assert 4 not in came


def test_a_batch_that_moved_the_watermark_is_run_again(timed_world: TimedWorld) -> None:
    driver = timed_world.started()
    timed_world.put(10, 10, 20, 20)
    steps(driver)
    timed_world.put(30, 30, 40, 40)
    for step in ("reports", "sink", "stage 2"):
        driver.runner.at = once(step, raising(RunBrokenError("broken")))
        timed_world.put(50, 50)
        steps(driver)
    by_number: dict[int, set[tuple[object, ...]]] = {}
    runs = set()
    for batch in HoldNode.batches:
        chosen = (batch.time_ms, *map(str, (dict(batch.late), dict(batch.firing), dict(batch.held))))
        by_number.setdefault(batch.number, set()).add(chosen)
        runs.add(batch.run)
    assert runs == {1, 2}
    assert all(len(chosen) == 1 for chosen in by_number.values())
    assert not any(timed_world.came().values())


def test_a_rewind_goes_back_to_the_event_times_of_the_checkpoint(timed_world: TimedWorld) -> None:
    driver = timed_world.started()
    timed_world.put(10, 10)
    steps_and_commit(driver)
    before = driver.loop.boundary
    timed_world.put(20, 20, 30, 30)
    driver.fleet.at = once("end", lambda: driver.fleet.lose(1))
    driver.loop.step()
    after = driver.loop.boundary
    assert (after.event_times, after.watermarks) == (before.event_times, before.watermarks)
    steps(driver)
    assert timed_world.came() == {n: [] for n in range(6)}


def test_a_restart_goes_on_with_the_watermarks_of_the_checkpoint(timed_world: TimedWorld) -> None:
    first = timed_world.started()
    timed_world.put(100, 100)
    steps_and_commit(first)
    boundary = first.loop.boundary
    first.close()
    assert reached(timed_world.checkpoints[-1].section(TIME).watermarks) == {
        "in": 100,
        "by-key": 100,
        "one": 100,
        "by-n": 100,
        "two": 100,
    }
    second = timed_world.started()
    assert second.loop.boundary.event_times == boundary.event_times
    timed_world.put(50)
    steps(second)
    assert timed_world.came()[2] == ["one", "two"]


def test_what_is_due_fires_after_a_restart_although_nothing_comes(timed_world: TimedWorld) -> None:
    first = timed_world.started()
    timed_world.put(10, 10)
    first.loop.step()
    first.loop.commit()
    assert timed_world.came() == {}
    first.close()
    second = timed_world.started()
    steps(second)
    assert timed_world.came() == {0: [], 1: []}


def test_a_partition_without_messages_holds_back_until_it_is_idle(timed_world: TimedWorld) -> None:
    timed_world.config["streams.m.in.idle.ms"] = 5_000
    driver = timed_world.started()
    steps(driver)
    timed_world.put(10, 20, partition=0)
    steps(driver)
    assert timed_world.came() == {}
    timed_world.clock.advance(4)
    steps(driver)
    assert timed_world.came() == {0: [], 1: []}
    timed_world.put(30, partition=0)
    steps(driver)
    assert 2 in timed_world.came(), "it is idle still"


def test_an_idle_partition_returns(timed_world: TimedWorld) -> None:
    """The watermark does not fall: what it brings may be late."""
    timed_world.config["streams.m.in.idle.ms"] = 0
    driver = timed_world.started()
    steps(driver)
    timed_world.put(100, partition=0)
    steps(driver)
    timed_world.put(50, partition=1)
    steps(driver)
    assert timed_world.came() == {0: [], 1: ["one", "two"]}
    assert driver.loop.boundary.watermarks["one"] == 100


def test_if_all_partitions_are_idle_the_watermark_stays(timed_world: TimedWorld) -> None:
    timed_world.config["streams.m.in.idle.ms"] = 1_000
    driver = timed_world.started()
    timed_world.put(100, partition=0)
    timed_world.put(50, partition=1)
    steps(driver)
    timed_world.clock.advance(3600)
    for _ in range(3):
        driver.loop.step()
    assert driver.loop.boundary.watermarks["one"] == 50


def test_started_after_a_day_with_a_day_of_backlog(timed_world: TimedWorld) -> None:
    """No partition with unread messages is idle, however long the batch before was ago."""
    first = timed_world.started()
    timed_world.put(10, 10)
    steps_and_commit(first)
    first.close()
    timed_world.clock.advance(86_400)
    timed_world.put(*range(1000, 1100, 10), partition=0)
    timed_world.put(*range(500, 600, 10), partition=1)
    second = timed_world.started()
    steps(second)
    assert not any(timed_world.came().values())
    assert second.loop.boundary.watermarks["two"] == 590


def test_idle_time_begins_again_with_each_epoch(timed_world: TimedWorld) -> None:
    timed_world.config["streams.m.in.idle.ms"] = 10_000
    driver = timed_world.started()
    steps(driver)
    timed_world.clock.advance(8)
    driver.fleet.lose(1)
    driver.loop.step()
    steps(driver)
    timed_world.put(10, partition=0)
    steps(driver)
    timed_world.clock.advance(6)
    steps(driver)
    assert timed_world.came() == {}, "8 seconds in the first epoch, and 8 in the second one"
    timed_world.clock.advance(2)
    steps(driver)
    assert timed_world.came() == {0: []}


def test_a_message_far_in_the_future(timed_world: TimedWorld) -> None:
    driver = timed_world.started()
    timed_world.put(10, 10, NOW + 86_400_000 * 2, 20, 30)
    steps(driver)
    assert timed_world.came() == {0: [], 1: [], 3: []}
    assert driver.loop.boundary.watermarks["one"] == 20
    timed_world.put(30, 30)
    steps(driver)
    assert not any(timed_world.came().values())


def test_a_policy_that_waits(timed_world: TimedWorld) -> None:
    timed_world.inputs["m.in"] = ps.BoundedOutOfOrderness(25)
    driver = timed_world.started()
    timed_world.put(100, 100)
    steps(driver)
    timed_world.put(76, 75)
    steps(driver)
    assert timed_world.came() == {3: []}, "75 is the watermark"
    timed_world.put(74)
    steps(driver)
    assert timed_world.came() == {3: [], 4: ["one", "two"]}


def test_out_of_orderness_raised(timed_world: TimedWorld) -> None:
    """The watermark stays until event time has caught up."""
    first = timed_world.started()
    timed_world.put(100, 100)
    steps_and_commit(first)
    first.close()
    timed_world.inputs["m.in"] = ps.BoundedOutOfOrderness(60)
    second = timed_world.started()
    timed_world.put(110, 110, 99)
    steps(second)
    assert second.loop.boundary.watermarks["one"] == 100
    assert timed_world.came()[4] == ["one", "two"]


def test_an_input_added(timed_world: TimedWorld) -> None:
    """It holds nobody back below what has been reached; then it counts."""
    first = timed_world.started()
    timed_world.put(100, 100)
    steps_and_commit(first)
    first.close()
    timed_world.inputs["m.other"] = None
    second = timed_world.started()
    timed_world.put(150, 150)
    steps(second)
    assert second.loop.boundary.watermarks["one"] == 100
    timed_world.put(50, 120, 130, stream="other")
    steps(second)
    came = timed_world.came()
    assert came[4] == ["one", "two"]
    assert second.loop.boundary.watermarks["one"] == 120
    assert came[5] == []
    assert 2 not in came


def test_a_new_operator_starts_with_the_watermark_of_its_inputs(timed_world: TimedWorld) -> None:
    """A message that is late where its inputs are is late there too, in the first batch."""
    timed_world.second = False
    first = timed_world.started()
    timed_world.put(100, 100)
    steps_and_commit(first)
    first.close()
    assert "two" not in timed_world.checkpoints[-1].section(TIME).watermarks
    timed_world.second = True
    second = timed_world.started()
    timed_world.put(50, 100, 100)
    steps(second)
    assert timed_world.came() == {0: [], 1: [], 2: ["one", "two"], 3: [], 4: []}


def test_many_are_due_after_a_long_stop(timed_world: TimedWorld) -> None:
    """At most a few fire in each attempt, the next batch starts at once, and the operators behind wait."""
    timed_world.config["job.batch.max.messages"] = 1000
    timed_world.inputs["m.in"] = ps.BoundedOutOfOrderness(10_000)
    driver = timed_world.started()
    timed_world.put(*range(200))
    steps(driver)
    assert timed_world.came() == {}
    timed_world.put(20_000, 20_000)
    driver.loop.step()
    driver.loop.step()
    timed_world.put(20_000, 20_000)
    stands = [driver.loop.boundary]
    while stands[-1].is_behind:
        driver.loop.step()
        stands.append(driver.loop.boundary)
    assert len(stands) > 10
    assert all(each.positions == stands[0].positions for each in stands), "first what is due"
    batches = driver.loop.boundary.batch
    steps(driver)
    assert batches > 200 / 2 / 5 / 2, "two tasks, five each"
    assert timed_world.came() == {n: [] for n in range(200)}
    held = [batch.held for batch in HoldNode.batches if batch.held]
    assert len({str(dict(each)) for each in held}) > 10
    assert driver.loop.boundary.next_due == {"one": (20_000, None)}


def test_many_are_due_and_another_driver_continues(timed_world: TimedWorld) -> None:
    """It knows what is due when it begins: few fire in its first batch, and nothing behind comes too early."""
    timed_world.config["job.batch.max.messages"] = 1000
    timed_world.inputs["m.in"] = ps.BoundedOutOfOrderness(10_000)
    first = timed_world.started()
    timed_world.put(*range(200))
    steps(first)
    timed_world.put(20_000, 20_000)
    for _ in range(6):
        first.loop.step()
    first.loop.commit()
    left = first.loop.boundary
    assert left.is_behind
    first.close()
    came = len(timed_world.came())
    assert 0 < came < 100
    timed_world.inputs["m.in"] = None
    second = timed_world.started()
    assert second.loop.boundary.next_due == left.next_due
    (oldest, _), (behind, _) = left.next_due["one"], left.next_due["two"]
    assert oldest is not None
    assert behind is not None
    second.loop.step()
    batch = HoldNode.batches[-1]
    assert batch.number == left.batch + 1
    assert second.loop.boundary.positions == left.positions, "first what is due"
    assert batch.firing["one"] > batch.late["one"] >= oldest
    assert batch.held == {"one": oldest - 1, "two": behind - 1}
    assert batch.firing["two"] == oldest - 1
    assert len(timed_world.came()) <= came + 2 * 5 * 2, "two tasks, five each, and those that the second one held"
    steps(second)
    assert timed_world.came() == {n: [] for n in range(202)}


def one_batch_each(world: TimedWorld, between: str) -> list[dict[int, list[str]]]:
    """The output after each of ten batches. `between` happens between two batches."""
    world.config["job.batch.max.messages"] = 1000
    driver, found = world.started(), []
    for first in range(0, 100, 10):
        world.put(*range(first, first + 10))
        batch, epoch = driver.loop.boundary.batch, driver.loop.epoch
        driver.loop.step()
        driver.loop.commit()
        if between == "restart":
            driver.close()
            driver = world.started()
        if between == "rewind":
            driver.fleet.lose(0)
            driver.loop.step()
        assert driver.loop.boundary.batch == batch + 1
        assert (driver.loop.epoch > epoch) == (between != "nothing")
        found.append(world.came())
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("between", ["restart", "rewind"])
def test_epochs_of_one_batch(timed_world: TimedWorld, tmp_path: Path, between: str, apart: bool) -> None:
    """The first batch of an epoch moves watermarks as any other one, also behind operators in which something waits."""
    timed_world.apart = apart
    with closing(TimedWorld(tmp_path / "in one epoch", apart)) as other:
        expected = one_batch_each(other, "nothing")
    assert one_batch_each(timed_world, between) == expected
    assert len(expected[-1]) > 30
    assert not any(expected[-1].values())


def test_a_restart_runs_no_batch_if_nothing_is_due(timed_world: TimedWorld) -> None:
    first = timed_world.started()
    timed_world.put(10, 10, 20, 20, 30)
    steps_and_commit(first)
    left = first.loop.boundary
    first.close()
    second = timed_world.started()
    assert second.loop.boundary == left
    assert steps(second) == 0
    assert left.next_due == {"one": (30, None)}


def test_a_container_that_does_not_say_what_waits(timed_world: TimedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what watermarks may pass: the epoch is not entered, and opened again under another claim."""
    first = timed_world.started()
    timed_world.put(10, 10, 20, 30)
    steps_and_commit(first)
    left = first.loop.boundary
    first.close()
    second = timed_world.driver()
    opens = second.fleet.open
    silent = [1]

    def opened(*given: Any) -> Any:
        found = dict(opens(*given))
        for task in silent:
            del found[task]
        silent.clear()
        return found

    monkeypatch.setattr(second.fleet, "open", opened)
    claimed = second.loop.epoch
    second.loop.start()
    assert second.loop.epoch == claimed + 1
    assert second.loop.boundary.next_due == left.next_due != {}


def test_the_clock_goes_back(timed_world: TimedWorld) -> None:
    """Between two batches, and between two drivers: batch time does not, and nothing else changes."""
    first = timed_world.started()
    timed_world.put(10, 10)
    steps(first)
    timed_world.clock.correct(-3_600_000)
    timed_world.put(20, 20)
    steps_and_commit(first)
    first.close()
    timed_world.clock.correct(-3_600_000)
    second = timed_world.started()
    timed_world.put(30, 30, NOW + 86_400_000)
    steps(second)
    times = [batch.time_ms for batch in HoldNode.batches]
    assert times == sorted(times)
    assert times[0] >= NOW
    assert {n: late for n, late in timed_world.came().items() if n < 6} == {n: [] for n in range(6)}


# What is shown.


def test_the_watermark_its_delay_and_who_holds_it_back_are_shown(timed_world: TimedWorld) -> None:
    driver = timed_world.started()
    timed_world.put(NOW - 5_000, NOW - 9_000, NOW - 1_000, NOW + 86_400_001 + 10_000)
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


def test_times_in_another_unit_are_warned_of_once(timed_world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
    def warned() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == "penstock.driver.reporter"]

    driver = timed_world.started()
    timed_world.put(5_000, 86_400_000)  # small times, as in tests, are no mistake
    steps(driver)
    assert warned() == []
    for _ in range(2):
        timed_world.put(*[NOW // 1_000 + n for n in range(8)])
        steps(driver)
    (seconds,) = warned()
    assert "of `m.in` is 170000000" in seconds
    assert "which is 1970-01-20" in seconds
    assert "seconds instead of milliseconds?" in seconds
    timed_world.put(NOW * 1_000, partition=0)
    steps(driver)
    (ahead,) = warned()[1:]
    assert "1 message of `m.in.0`" in ahead
    assert "in microseconds?" in ahead


# Starts.


def ran_once(timed_world: TimedWorld) -> None:
    first = timed_world.started()
    timed_world.put(100, 100)
    steps(first)
    timed_world.put(200, 200)
    steps_and_commit(first)
    first.close()


def test_everything_is_read_again_after_clear(timed_world: TimedWorld) -> None:
    ran_once(timed_world)
    ask(timed_world, "clear")
    second = timed_world.started()
    assert second.loop.boundary.watermarks == {}
    steps(second)
    assert timed_world.output() == sorted([(0, 100, []), (1, 100, []), (2, 200, []), (3, 200, [])] * 2)


def test_everything_is_read_again_with_keep(timed_world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
    ran_once(timed_world)
    ask(timed_world, "keep")
    second = timed_world.started()
    assert second.loop.boundary.watermarks["two"] == 200
    steps(second)
    assert timed_world.output().count((0, 100, ["one", "two"])) == 1
    assert timed_world.output().count((2, 200, [])) == 2
    said = [record.message for record in caplog.records if "was moved back" in record.message]
    assert [text.partition(",")[0] for text in said] == [f"`m.in.{n}` was moved back" for n in range(TASKS)]


def test_a_start_from_an_older_checkpoint_takes_its_event_times(timed_world: TimedWorld) -> None:
    first = timed_world.started()
    timed_world.put(100, 100)
    steps_and_commit(first)
    older = timed_world.checkpoints[-1]
    timed_world.put(200, 200)
    steps_and_commit(first)
    first.close()
    second = timed_world.started(from_checkpoint=str(older.id))
    assert second.loop.boundary.watermarks == older.section(TIME).watermarks
    assert set(second.loop.boundary.event_times.values()) == {100}
    steps(second)
    assert not any(timed_world.came().values())


def test_a_run_names_the_empty_partition_that_holds_something_back_once(
    timed_world: TimedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    driver = timed_world.started()
    timed_world.put(10, 20, partition=0)
    steps(driver)
    assert timed_world.came() == {}
    assert not caplog.messages, "most partitions have messages in the first seconds"
    while timed_world.clock.now_ms() < NOW + 59_000:
        driver.loop.step()
    named = "`m.in` partition 1 holds the watermark back: it has had no message yet. "
    assert [message.startswith(named) for message in caplog.messages] == [True]
    timed_world.clock.advance(2)
    steps(driver)
    assert timed_world.came() == {0: [], 1: []}
