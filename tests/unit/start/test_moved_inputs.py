"""A position that is moved while the state stays: the checkpoints from then on say so, and `nearest` begins at none of
them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.positions import to_positions
from penstock.checkpoint.edit import Content, successor
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.origin import Origin
from penstock.config.load import load_config
from penstock.errors import IncompatibleError
from penstock.start.positions import moved_inputs
from penstock.start.startpoints.manager import StartpointManager
from penstock.start.startpoints.request import WithState
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


def move(world: SumsWorld, offset: int, with_state: WithState | None) -> None:
    manager = StartpointManager(world.objects, world.paths)
    manager.write_startpoint(FIRST, ps.StartpointSpecific(str(offset)), with_state=with_state)


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
    content = Content(base.next_offsets, {}, moved=frozenset([FIRST]))
    assert successor(base, content, log.known(), claim, config.task, 0, 0).moved == (FIRST,)
