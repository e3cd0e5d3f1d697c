"""The end of a stream in whole jobs, on drivers and containers of this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.batch.batch import END_OF_TIME, NO_WATERMARK
from penstock.batch.watermarks import TIME
from penstock.system.local import LocalSystem
from tests.support.world.timed_job import HoldNode, TimedWorld, reached, steps


def test_the_end_closes_everything_and_the_record_says_so(timed_world: TimedWorld) -> None:
    timed_world.put(10, 20, 30, 40, 1000)
    timed_world.driver(until_latest=True).loop.run()
    assert timed_world.came() == {n: [] for n in range(5)}
    last = timed_world.checkpoints[-1]
    assert (last.ended, last.section(TIME).event_times, last.section(TIME).watermarks) == ("end-of-stream", {}, {})
    assert [str(ssp) for ssp in last.ended_inputs] == ["m.in.0", "m.in.1"]
    closing = HoldNode.batches[-1]
    assert closing.control == "end-of-stream"
    assert {closing.firing_watermark(op) for op in ("one", "two")} == {END_OF_TIME}


def test_a_run_may_stop_without_closing(timed_world: TimedWorld) -> None:
    timed_world.put(10, 20, 30, 40)
    timed_world.driver(until_latest=True, close=False).loop.run()
    assert timed_world.came() == {0: [], 1: [], 2: []}
    assert timed_world.checkpoints[-1].ended == "stopped"
    assert timed_world.checkpoints[-1].section(TIME).watermarks["one"] == 30
    driver = timed_world.started()
    timed_world.put(35, 45)
    steps(driver)
    assert timed_world.came() == {0: [], 1: [], 2: [], 4: []}


def test_a_second_until_latest_after_the_first(timed_world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
    """As after a drain, event time begins again: what is older is not late."""
    timed_world.put(1000, 1000)
    timed_world.driver(until_latest=True).loop.run()
    timed_world.put(10, 20)
    caplog.set_level("INFO")
    timed_world.driver(until_latest=True).loop.run()
    assert timed_world.came() == {n: [] for n in range(4)}
    said = [r.message for r in caplog.records if "had ended" in r.message]
    assert said == [f"`m.in.{n}` had ended, and has new messages: they are read" for n in range(2)]
    timed_world.driver(until_latest=True).loop.run()
    assert len(timed_world.output()) == 4


@pytest.mark.parametrize("step", ["start-run", "stage 1", "sink", "end"])
def test_the_end_is_repeated_after_a_rewind(timed_world: TimedWorld, step: str) -> None:
    """The boundary decides whether the stream has ended."""
    timed_world.put(10, 20, 1000)
    driver = timed_world.started(until_latest=True)

    def at(name: str) -> None:
        batch = HoldNode.batches[-1] if HoldNode.batches else None
        if name == step and batch is not None and batch.control == "end-of-stream":
            driver.fleet.at = driver.runner.at = lambda _: None
            driver.fleet.lose(1)

    driver.fleet.at = driver.runner.at = at
    while not driver.loop.step():
        pass
    assert driver.loop.boundary.closed
    assert sorted(timed_world.came()) == [0, 1, 2]


def test_a_commit_of_a_closed_stream_says_so_whoever_asks_for_it(timed_world: TimedWorld) -> None:
    timed_world.put(10, 20, 1000)
    driver = timed_world.started(until_latest=True)
    while not driver.loop.step():
        pass
    driver.loop.commit()
    assert timed_world.checkpoints[-1].ended == "end-of-stream"
    driver.close()
    second = timed_world.started()
    assert second.loop.boundary.watermarks == {}
    timed_world.put(5)
    assert steps(second) == 1


def test_inputs_that_have_ended_end_the_job(timed_world: TimedWorld) -> None:
    timed_world.put(10, 20, 1000)
    driver = timed_world.started()
    steps(driver)
    timed_world.system.admin().end_stream("in")
    while not driver.loop.step():
        pass
    assert sorted(timed_world.came()) == [0, 1, 2]
    assert driver.loop.boundary.closed


def test_an_input_that_has_ended_holds_nothing_back(timed_world: TimedWorld) -> None:
    timed_world.inputs["m.other"] = None
    driver = timed_world.started()
    timed_world.put(10, 10)
    timed_world.put(20, 20, stream="other")
    steps(driver)
    assert driver.loop.boundary.watermarks["one"] == 10
    timed_world.system.admin().end_stream("in")
    timed_world.put(30, 30, stream="other")
    steps(driver)
    assert reached(driver.loop.boundary.watermarks) == {
        "in": END_OF_TIME, "other": 30, "all": 30, "by-key": 30, "one": 30, "by-n": 30, "two": 30
    }  # fmt: skip
    driver.loop.commit()
    assert [str(ssp) for ssp in timed_world.checkpoints[-1].ended_inputs] == ["m.in.0", "m.in.1"]
    driver.close()
    timed_world.put(25, 35, 45, 45)
    timed_world.put(45, 45, stream="other")
    second = timed_world.started()
    assert second.loop.boundary.watermarks.get("in", NO_WATERMARK) == NO_WATERMARK, "it begins again"
    assert second.loop.boundary.watermarks["one"] == 30
    steps(second)
    assert timed_world.came()[6] == ["one", "two"]
    assert timed_world.came()[7] == []


def test_ended_streams_end_the_job(timed_world: TimedWorld, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The next run reads the messages that are published later."""
    system = LocalSystem("m", str(tmp_path / "streams"))
    timed_world.system = timed_world.systems["m"] = system
    admin = system.admin()
    for stream in ("in", "out"):
        admin.create_stream(stream, 2)
    timed_world.put(10, 20, 1000)
    driver = timed_world.started()
    steps(driver)
    assert 2 not in timed_world.came()
    admin.end_stream("in")
    while not driver.loop.step():
        pass
    assert sorted(timed_world.came()) == [0, 1, 2]
    driver.loop.commit()
    driver.close()
    timed_world.put(5, 7)
    caplog.set_level("INFO")
    second = timed_world.started()
    assert [r.message for r in caplog.records if "had ended" in r.message] == [
        f"`m.in.{n}` had ended, and has new messages: they are read" for n in range(2)
    ]
    steps(second)
    admin.end_stream("in")
    while not second.loop.step():
        pass
    assert timed_world.came() == {n: [] for n in range(5)}
    admin.close()
