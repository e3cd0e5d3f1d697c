"""Jobs whose messages go through durable intermediate streams, on drivers and containers of this process."""

from __future__ import annotations

import pytest

from penstock.api.intermediate import DrainMessage, IntermediateMessageSerde, WatermarkMessage
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import END_OF_TIME
from penstock.checkpoint.streams import STREAMS
from penstock.drain.driver import Drain
from penstock.drain.requests import DRAIN, DrainRequests, write_drain_notification
from penstock.job.paths import JobPaths
from penstock.system.base import OffsetRange
from penstock.system.memory import MemorySystem
from penstock.testing.in_process import InProcessDriver
from tests.support.world.sums_job import once
from tests.support.world.timed_job import HoldNode, TimedWorld, steps, steps_and_commit

PATHS = JobPaths("timed", "1")


@pytest.fixture
def world(timed_world: TimedWorld) -> TimedWorld:
    timed_world.through = True
    return timed_world


def drain(world: TimedWorld, driver: InProcessDriver) -> None:
    write_drain_notification(world.objects, PATHS)
    driver.loop.parts.of(Drain).ask()
    while not driver.loop.step():
        pass
    driver.loop.finish()


def test_messages_pass_and_what_waits_follows_the_watermark(world: TimedWorld) -> None:
    world.put(10, 20, 30, 40)
    driver = world.started()
    steps(driver)
    assert world.came() == {0: [], 1: [], 2: []}
    world.put(90, 90)
    steps(driver)
    assert world.came() == {number: [] for number in range(6)}


@pytest.mark.attack
def test_what_somebody_else_has_written_is_left_out(world: TimedWorld, caplog: pytest.LogCaptureFixture) -> None:
    """Here in the place of a message: brokers put records of others between those of a batch."""
    world.put(10, 20, 30, 40, 50, 60)
    driver = world.started()
    driver.loop.step()
    assert isinstance(world.system, MemorySystem)
    partitions = world.system.partitions("by-key")
    replaced = 0
    for messages in (each.messages for each in partitions if each.messages):
        offset, timestamp, key, *_ = messages[0]
        messages[0] = (offset, timestamp, key, b"from a stranger")
        replaced += 1
    world.put(90, 90)
    steps(driver)
    assert replaced
    assert len(world.came()) == len(world.given) - replaced
    assert driver.board.metrics.snapshot().total("messages-foreign") == replaced
    assert caplog.text.count("has messages that Penstock has not written, 1 message in this batch") == replaced


def test_nothing_is_read_in_the_batch_that_wrote_it(world: TimedWorld) -> None:
    world.put(10, 20, 30, 40)
    driver = world.started()
    driver.loop.step()
    assert [each.left() for each in driver.loop.boundary.intermediate.values()] == [4, 0]
    driver.loop.step()
    assert [each.left() for each in driver.loop.boundary.intermediate.values()] == [0, 0]


def test_the_watermark_behind_a_stream_is_that_of_what_was_read(world: TimedWorld) -> None:
    """A source's watermark never reaches it directly."""
    world.config["job.batch.max.messages"] = 1000
    driver = world.started()
    world.put(*range(100, 140))
    driver.loop.step()
    driver.loop.step()
    marks = driver.loop.boundary.watermarks
    assert marks["by-key"] == 138
    assert "by-key.through" not in marks
    driver.loop.step()
    assert driver.loop.boundary.watermarks["by-key.through"] == 138


def test_a_drain_closes_one_part_after_the_other(world: TimedWorld) -> None:
    world.put(10, 20, 30, 40)
    driver = world.started()
    steps(driver)
    assert set(world.came()) < set(world.given)
    world.put(50, 60)
    HoldNode.batches.clear()
    drain(world, driver)
    assert world.came() == {number: [] for number in range(4)}, "and nothing more was read"
    closing = {b.number: b for b in HoldNode.batches if b.control == "drain"}
    parts = [("by-key.through", "by-n", "one"), None]  # after that of the input, in which no operator holds anything
    assert [batch.closes for _, batch in sorted(closing.items())] == parts
    assert driver.loop.boundary.closing == "drained"
    assert not driver.loop.boundary.partly_closed
    assert [each.left() for each in driver.loop.boundary.intermediate.values()] == [0, 0]


def test_the_end_of_the_stream_closes_one_part_after_the_other(world: TimedWorld) -> None:
    world.put(*range(10, 100, 10))
    driver = world.driver(until_latest=True)
    driver.loop.run()
    assert world.came() == {number: [] for number in range(9)}
    assert world.checkpoints[-1].ended == "end-of-stream"


def partly_at_its_end(world: TimedWorld) -> InProcessDriver:
    """A driver of a run whose stream ends, and has ended for its first part only."""
    world.put(*range(10, 100, 10))
    driver = world.started(until_latest=True)
    while not driver.loop.boundary.partly_closed:
        assert not driver.loop.step()
    return driver


def test_a_request_to_drain_that_is_seen_in_the_end_of_the_stream_is_answered_by_it(world: TimedWorld) -> None:
    """All operators end in the same way: none gets `on_drain` behind one that got `on_end`."""
    driver = partly_at_its_end(world)
    world.put(200)
    asked = write_drain_notification(world.objects, PATHS)
    driver.loop.parts.of(Drain).ask()
    while not driver.loop.run_to_the_end():
        pass
    assert {batch.control for batch in HoldNode.batches} == {"none", "end-of-stream"}
    assert world.came() == {number: [] for number in range(9)}, "what came after the start is not read"
    last = world.checkpoints[-1]
    assert (last.ended, last.section(DRAIN).answered) == ("end-of-stream", (str(asked.uuid),))
    assert DrainRequests(world.objects, PATHS).find().notifications == ()
    assert driver.board.told("drain") is not None
    assert all(stage.ended for stage in driver.board.told("drain").stages)


def test_a_drain_that_is_taken_back_in_the_end_of_the_stream(world: TimedWorld) -> None:
    """The run goes back to its last checkpoint, and ends as it would have."""
    driver = partly_at_its_end(world)
    asked = write_drain_notification(world.objects, PATHS)
    DrainRequests(world.objects, PATHS).cancel(asked, "somebody")
    driver.loop.parts.of(Drain).ask()
    while not driver.loop.run_to_the_end():
        pass
    assert {batch.control for batch in HoldNode.batches} == {"none", "end-of-stream"}
    assert set(world.came()) == set(range(9))
    last = world.checkpoints[-1]
    assert (last.ended, last.section(DRAIN).answered) == ("end-of-stream", ())


def test_a_container_that_is_lost_before_a_drain_ends_the_stream(world: TimedWorld) -> None:
    """No checkpoint is of a stream that has ended for some parts only: it all drains."""
    driver = partly_at_its_end(world)
    write_drain_notification(world.objects, PATHS)
    driver.loop.parts.of(Drain).ask()
    driver.fleet.lose(1)
    HoldNode.batches.clear()
    while not driver.loop.run_to_the_end():
        pass
    assert {batch.control for batch in HoldNode.batches} == {"none", "drain"}
    assert world.checkpoints[-1].ended == "drained"


def test_a_run_that_does_not_close_the_stream_reads_what_is_in_flight(world: TimedWorld) -> None:
    world.put(10, 20, 30, 40)
    driver = world.driver(until_latest=True, close=False)
    driver.loop.run()
    assert [each.left() for each in driver.loop.boundary.intermediate.values()] == [0, 0]
    assert world.checkpoints[-1].ended == "stopped"


def test_control_messages_tell_other_readers_of_the_stream(world: TimedWorld) -> None:
    world.put(10, 20, 30, 40)
    driver = world.started()
    steps(driver)
    drain(world, driver)
    ssp = SystemStreamPartition("m", "by-key", 0)
    ends = world.system.admin().offsets("by-key")[0]
    serde = IntermediateMessageSerde(driver.job.topology.graph.operator("by-key").value_serde)
    found = [
        serde.from_bytes(value or b"")
        for chunk in world.system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 100)
        for _, _, _, value, *_ in chunk
    ]
    control = [each for each in found if not isinstance(each, dict)]
    assert control == [
        WatermarkMessage(30),
        WatermarkMessage(END_OF_TIME),
        DrainMessage(driver.job.claim.run_id),
    ]
    assert found[-2:] == control[-2:]


def test_a_restart_reads_what_its_checkpoint_left_unread(world: TimedWorld) -> None:
    world.put(10, 20, 30, 40)
    driver = world.started()
    driver.loop.step()
    driver.loop.commit()
    assert sum(each.left() for each in driver.loop.boundary.intermediate.values()) == 4
    driver.close()
    world.put(90, 90)
    last = world.driver(until_latest=True)
    last.loop.run()
    assert world.came() == {number: [] for number in range(6)}


@pytest.mark.few(2)
@pytest.mark.parametrize("step", ["source", "stage 1", "sink", "reports", "end", "commit"])
def test_a_run_that_breaks_off_at_any_step_neither_loses_nor_doubles(world: TimedWorld, step: str) -> None:
    """Messages of the run that breaks off are in the stream, and are never read."""
    world.config["job.retry.max"] = 100
    world.put(10, 20, 30, 40)
    driver = world.started()
    driver.loop.step()
    driver.fleet.at = driver.runner.at = once(step, lambda: driver.fleet.lose(0))
    world.put(50, 60)
    steps_and_commit(driver)
    driver.close()
    last = world.driver(until_latest=True)
    last.loop.run()
    assert world.came() == {number: [] for number in range(6)}
    kept = world.checkpoints[-1].section(STREAMS).streams.values()
    assert [each.left() for each in kept] == [0, 0]


def test_a_drain_says_how_much_is_unread(world: TimedWorld) -> None:
    world.put(10, 20, 30, 40)
    driver = world.started()
    driver.loop.step()
    write_drain_notification(world.objects, PATHS)
    driver.loop.parts.of(Drain).ask()
    driver.loop.parts.of(Drain).look()
    assert driver.board.told("drain") is not None
    assert [stage.left for stage in driver.board.told("drain").stages if stage.left] == [4]
    assert "4 messages left" in str(driver.board.told("drain"))
    while not driver.loop.step():
        pass
    driver.loop.finish()
    assert [stage.left for stage in driver.board.told("drain").stages if stage.left] == []
