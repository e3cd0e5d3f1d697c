"""Positions that move while the state stays, and event times that a start keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.api.time.firing import END_OF_TIME
from penstock.batch.batch import TaskSsp, to_positions
from penstock.batch.watermarks import TIME, TimeSection
from penstock.checkpoint.edit import CheckpointContent, successor
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord, Claim, Origin
from penstock.checkpoint.sections import Sections
from penstock.config.load import load_config
from penstock.errors import ConfigError, IncompatibleError
from penstock.start.positions import StartTimes, moved_inputs, start_times
from penstock.start.startpoint_manager import StartpointManager
from penstock.start.startpoint_request import RequestKey, StartpointRequest, WithState
from penstock.system.base import PartitionOffsets
from tests.support.stores.checkpoints import checkpoint
from tests.support.stores.stopped_job import saved, ssp
from tests.support.world.sums_job import TASKS, SumsWorld, drain_and_commit, state

FIRST = SystemStreamPartition("m", "events", 0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SumsWorld]:
    """It ran twice, to a checkpoint at two messages of each partition and to one at four."""
    world = SumsWorld(tmp_path)
    for _ in range(2):
        world.put(*range(1, 2 * TASKS + 1))
        run(world)
    yield world
    world.close()


def run(world: SumsWorld) -> dict[str, int]:
    """Process everything and commit. Returns the state."""
    driver = world.started(task_checkpoint_retained="4")
    drain_and_commit(driver)
    found = state(driver)
    driver.close()
    return found


def move(world: SumsWorld, offset: int, with_state: WithState | None, *, accept: bool = False) -> None:
    manager = StartpointManager(world.objects, world.paths)
    startpoint = ps.StartpointSpecific(str(offset))
    manager.write_startpoint(FIRST, startpoint, with_state=with_state, accept_state=accept)


@pytest.mark.parametrize("offset", [0, 3])
def test_nearest_passes_over_state_that_was_kept(world: SumsWorld, offset: int) -> None:
    clean = world.checkpoints[-1].id
    move(world, offset, "keep")
    assert run(world) != world.sums
    run(world)  # later runs go on from that state
    assert {each.moved for each in world.checkpoints if each.id > clean} == {(FIRST,)}

    move(world, 4, "nearest")
    assert run(world) == world.sums
    assert world.checkpoints[-1].moved == ()


def test_a_start_says_what_it_passes_over(world: SumsWorld, caplog: pytest.LogCaptureFixture) -> None:
    move(world, 3, "keep")
    run(world)
    newest = world.checkpoints[-1].id
    move(world, 4, "nearest")
    run(world)
    (note,) = [record.message for record in caplog.records if "passed over" in record.message]
    assert str(newest) in note
    assert "`m.events.0` was moved while the state stayed" in note


@pytest.mark.parametrize("offset", [0, 3])
def test_a_state_that_is_accepted_counts_as_right(world: SumsWorld, offset: int) -> None:
    """`nearest` begins at the newest checkpoint, and those that follow are right as well."""
    move(world, offset, "keep")
    kept = run(world)
    newest = world.checkpoints[-1]
    assert newest.moved == (FIRST,)
    move(world, 4, "nearest", accept=True)
    assert run(world) == kept
    starts = [each for each in world.checkpoints if each.parent == newest.id]
    assert [each.moved for each in starts] == [()]
    assert world.checkpoints[-1].moved == ()
    newest = world.checkpoints[-1]
    move(world, 4, "nearest")
    assert run(world) == kept
    assert newest.id in {each.parent for each in world.checkpoints}


def test_a_kept_state_that_is_accepted_is_not_marked(world: SumsWorld) -> None:
    move(world, 3, "keep", accept=True)
    kept = run(world)
    assert kept != world.sums
    assert world.checkpoints[-1].moved == ()
    move(world, 4, "nearest")
    assert run(world) == kept


def test_an_empty_state_is_not_accepted() -> None:
    with pytest.raises(ConfigError, match="accept_state"):
        StartpointRequest(RequestKey(FIRST), "uuid", ps.StartpointOldest(), "clear", accept_state=True)


def test_without_an_older_checkpoint_nearest_is_refused(world: SumsWorld) -> None:
    move(world, 0, None)
    for _ in range(3):
        run(world)
    newest = world.checkpoints[-1].id
    move(world, 4, "nearest")
    with pytest.raises(IncompatibleError, match=f"{newest}.*`m.events.0` was moved while the state stayed"):
        run(world)
    assert world.checkpoints[-1].id == newest


def test_a_start_without_the_old_state_agrees_again(world: SumsWorld) -> None:
    move(world, 3, "keep")
    run(world)
    manager = StartpointManager(world.objects, world.paths)
    for partition in range(TASKS):
        manager.write_startpoint(
            SystemStreamPartition("m", "events", partition), ps.StartpointOldest(), with_state="clear"
        )
    assert run(world) == world.sums
    assert world.checkpoints[-1].moved == ()


def test_a_startpoint_at_the_position_itself_moves_nothing(world: SumsWorld) -> None:
    move(world, 4, "keep")
    assert run(world) == world.sums
    assert world.checkpoints[-1].moved == ()


def test_only_state_that_is_restored_can_disagree() -> None:
    record = saved(1, (4, 7))
    positions = to_positions(record.next_offsets)
    there = {at: 0 if at.ssp == ssp(1) else offset for at, offset in positions.items()}
    assert moved_inputs(Origin(record), positions) == frozenset()
    assert moved_inputs(Origin(record), there) == {ssp(1)}
    assert moved_inputs(Origin(replace(record, moved=(ssp(0),))), there) == {ssp(0), ssp(1)}
    for without in (Origin(), Origin(record, cleared=True), Origin(record, emptied=frozenset(record.stores))):
        assert moved_inputs(without, there) == frozenset()


def test_checkpoints_that_are_written_by_hand_keep_the_mark(world: SumsWorld) -> None:
    log = CheckpointLog(world.objects, world.paths)
    base = log.read().checkpoints[-1]
    claim = log.claim("run")
    config = load_config(overrides={"job.name": "sums"}, environ={})
    content = CheckpointContent(base.next_offsets, {}, moved=frozenset([FIRST]))
    assert successor(base, content, log.known(), claim, config.task, 0, 0, base.sections).moved == (FIRST,)


def test_checkpoints_that_are_written_by_hand_keep_a_run_quiet_unless_they_move_positions(world: SumsWorld) -> None:
    """For every command that makes a checkpoint: edits, imports and forks."""
    log = CheckpointLog(world.objects, world.paths)
    found = log.read().checkpoints[-1]
    quiet = {task: {ssp: offset + 5 for ssp, offset in own.items()} for task, own in found.next_offsets.items()}
    base, claim = replace(found, quiet_until=quiet), log.claim("run")
    config = load_config(overrides={"job.name": "sums"}, environ={})
    moved = {task: {ssp: offset - 1 for ssp, offset in own.items()} for task, own in found.next_offsets.items()}
    for positions, expected in ((found.next_offsets, quiet), (moved, {})):
        content = CheckpointContent(positions, {})
        made = successor(base, content, log.known(), claim, config.task, 0, 0, base.sections)
        assert made.quiet_until == expected


A, B = (SystemStreamPartition("m", stream, 0) for stream in "ab")
AT_A, AT_B = TaskSsp(0, A), TaskSsp(0, B)
RECORD: CheckpointRecord = replace(
    checkpoint(Claim(1, "r", "w"), 5),
    next_offsets={0: {A: 10, B: 20}},
    sections=Sections.of({TIME: TimeSection({0: {A: 100, B: 200}}, {"a": 100, "windows": 90})}),
)
ENDS = {A: PartitionOffsets(0, 10), B: PartitionOffsets(0, 20)}
SAME = {AT_A: 10, AT_B: 20}
KEPT = StartTimes({AT_A: 100, AT_B: 200}, {"a": 100, "windows": 90})


def test_the_first_start_has_none() -> None:
    assert start_times(None, clears_state=False, positions=SAME, ends=ENDS) == StartTimes()


def test_a_start_goes_on_with_those_of_the_checkpoint() -> None:
    assert start_times(RECORD, clears_state=False, positions=SAME, ends=ENDS) == KEPT


def test_everything_is_read_again_after_clear() -> None:
    assert start_times(RECORD, clears_state=True, positions={AT_A: 0, AT_B: 0}, ends=ENDS) == StartTimes()


def test_everything_is_read_again_with_keep() -> None:
    """The messages that were moved back are late."""
    found = start_times(RECORD, clears_state=False, positions={AT_A: 0, AT_B: 20}, ends=ENDS)
    assert found == replace(KEPT, late=(AT_A,))


def test_after_the_end_of_a_stream_none_is_left() -> None:
    for ended in ("end-of-stream", "drained"):
        record = replace(RECORD, ended=ended, ended_inputs=(A, B))
        grown = ENDS | {B: PartitionOffsets(0, 25)}
        assert start_times(record, clears_state=False, positions=SAME, ends=ENDS) == StartTimes()
        assert start_times(record, clears_state=False, positions=SAME, ends=grown) == StartTimes(grown=(B,))


def test_an_input_that_was_added_or_removed() -> None:
    new = TaskSsp(0, SystemStreamPartition("m", "new", 0))
    ends = {A: ENDS[A], new.ssp: PartitionOffsets(0, 3)}
    found = start_times(RECORD, clears_state=False, positions={AT_A: 10, new: 0}, ends=ends)
    assert found == StartTimes({AT_A: 100}, KEPT.watermarks)


def test_an_input_that_had_ended_and_has_grown_begins_again() -> None:
    """So do operators that it alone led to: everything would be late there."""
    marks = {"a": END_OF_TIME, "of-a": END_OF_TIME, "windows": 200}
    time = replace(RECORD.section(TIME), watermarks=marks)
    record = replace(RECORD, ended_inputs=(A,)).having(TIME, time)
    kept = start_times(record, clears_state=False, positions=SAME, ends=ENDS)
    assert kept == StartTimes({AT_A: 100, AT_B: 200}, marks, frozenset({A}))
    grown = start_times(record, clears_state=False, positions=SAME, ends=ENDS | {A: PartitionOffsets(0, 11)})
    assert grown == StartTimes({AT_B: 200}, {"windows": 200}, grown=(A,))


def test_a_checkpoint_whose_positions_were_set_back_by_hand() -> None:
    """It is of the same batch as the one before."""
    edited = replace(RECORD, next_offsets={0: {A: 4, B: 20}})
    positions = {AT_A: 4, AT_B: 20}
    found = start_times(edited, clears_state=False, positions=positions, ends=ENDS, parent=RECORD)
    assert found == replace(KEPT, late=(AT_A,))
    later = replace(edited, batch=edited.batch + 1)
    assert start_times(later, clears_state=False, positions=positions, ends=ENDS, parent=RECORD) == KEPT
