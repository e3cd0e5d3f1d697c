"""A position that is moved while the state stays: the checkpoints from then on say so, and `nearest` begins at none of
them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import to_positions
from penstock.checkpoint.edit import CheckpointContent, successor
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import Origin
from penstock.config.load import load_config
from penstock.errors import ConfigError, IncompatibleError
from penstock.start.positions import moved_inputs
from penstock.start.startpoints.manager import StartpointManager
from penstock.start.startpoints.request import RequestKey, StartpointRequest, WithState
from tests.support.stores.stopped_job import saved, ssp
from tests.support.world.sums_job import TASKS, SumsWorld, drain, state

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
    driver = world.driver(task_checkpoint_retained="4")
    driver.loop.start()
    drain(driver)
    driver.loop.commit()
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
