"""A job is configured with a changelog that has messages and no owner."""

from __future__ import annotations

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.streams import CHANGELOG_STREAM
from penstock.errors import ConfigError
from penstock.system.base import PartitionOffsets
from penstock.system.memory import MemorySystem
from tests.support.world.timed_job import TASKS, TimedWorld, steps_and_commit

CHANGELOG = SystemStreamPartition("m", "shared-log", 1)


@pytest.fixture
def world(timed_world: TimedWorld) -> TimedWorld:
    timed_world.second = False
    (store,) = timed_world.app().graph().stores
    timed_world.config |= {
        "stores.backup.factories": CHANGELOG_STREAM,
        f"stores.{store.name}.changelog": "m.shared-log",
    }
    timed_world.system.admin().create_stream("shared-log", TASKS)
    return timed_world


def test_a_start_refuses_messages_of_somebody_else_and_keeps_them(world: TimedWorld) -> None:
    world.system.writer(None).append(CHANGELOG, [(0, b"k", b"of another program")] * 2)
    world.put(10, 20)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"`m\.shared-log` of store `one\..*` has messages .* \(partition 1\)"):
            world.started()
    assert world.system.admin().offsets("shared-log")[1] == PartitionOffsets(0, 2)
    assert world.checkpoints == ()


def test_a_start_continues_the_changelog_that_a_checkpoint_of_the_job_names(world: TimedWorld) -> None:
    """As after an import: the checkpoint is in the job's log, and the stream has no owner."""
    world.put(10, 20, 30, 40)
    driver = world.started()
    steps_and_commit(driver)
    driver.close()
    assert isinstance(world.system, MemorySystem)
    assert world.system.owners.pop("shared-log")
    driver = world.started(until_latest=True)
    while not driver.loop.step():
        pass
    driver.loop.finish()
    assert sorted(world.came()) == [0, 1, 2, 3]
    assert "store one." in (world.system.admin().owner("shared-log") or "")
