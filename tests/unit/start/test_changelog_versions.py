"""Version 1 of a checkpoint has positions in changelogs, and does not say of which streams. In one that was deleted and
created again, such a position would make a store of whatever is there."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.checkpoint.streams import CHANGELOG_STREAM
from penstock.checkpoint.task_versions import versions_of
from penstock.errors import CorruptError
from tests.support.tools.fixtures import fixture_of
from tests.support.world.sums_job import TASKS, SumsWorld, drain_and_commit

world = fixture_of(SumsWorld)


def run(world: SumsWorld, **config: Any) -> None:
    """Start, process what there is, commit, and check the state."""
    own: dict[str, Any] = {
        "stores_sums_backup_factories": CHANGELOG_STREAM,
        "stores_sums_changelog": "m.log",
        "systems_m_samza_factory": "memory",
        "task_checkpoint_read_versions": "1",
    }
    driver = world.started(**{**own, **config})
    drain_and_commit(driver)
    world.check(driver)
    driver.close()


def create_again(world: SumsWorld) -> None:
    """Another stream of the changelog's name and owner, as long as it was, with somebody else's messages."""
    admin = world.system.admin()
    owner, ends = admin.owner("log"), admin.offsets("log")
    assert owner is not None
    admin.delete_stream("log")
    admin.create_stream("log", TASKS)
    admin.own("log", owner)
    for partition, end in ends.items():
        ssp = SystemStreamPartition("m", "log", partition)
        world.system.writer(None).append(ssp, [(0, b"a", b"\0\0\0\4")] * end.upcoming)


@pytest.mark.parametrize("write", ["1", "1,2"])
def test_a_changelog_that_was_created_again_is_no_state(world: SumsWorld, write: str) -> None:
    world.put(1, 2, 3, 4, 5)
    run(world, task_checkpoint_write_versions=write)
    world.put(6, 7)
    run(world, task_checkpoint_write_versions=write)  # it is the same stream
    create_again(world)
    with pytest.raises(CorruptError, match="is not the stream that the checkpoint was written to"):
        run(world, task_checkpoint_write_versions=write)


def test_a_lost_changelog_names_what_version_2_can_restore(world: SumsWorld) -> None:
    both: dict[str, Any] = {
        "stores_sums_backup_factories": f"{CHANGELOG_STREAM},blob",
        "task_checkpoint_write_versions": "1,2",
    }
    world.put(1, 2, 3, 4, 5)
    run(world, **both)
    assert versions_of(world.checkpoints[-1]) == {1, 2}
    create_again(world)
    with pytest.raises(CorruptError, match=r"markers of `blob`: .* set task\.checkpoint\.read\.versions to 2,1"):
        run(world, **both)
    world.put(6, 7)
    run(world, **both, task_checkpoint_read_versions="2,1")
