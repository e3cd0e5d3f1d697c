"""The context that backends get of their task."""

from __future__ import annotations

from penstock.api.ssp import SystemStreamPartition
from penstock.state.backends.base import BackendContext, TaskBackupManager, TaskRestoreManager
from tests.support.stores.plain_backend import PlainFactory
from tests.support.world.sums_job import TASKS, SumsWorld, drain
from tests.support.world.world import fixture_of

SEEN: list[BackendContext] = []


class NotedFactory(PlainFactory):
    """Keeps what it is given."""

    def backup_manager(self, context: BackendContext) -> TaskBackupManager:
        SEEN.append(context)
        return super().backup_manager(context)

    def restore_manager(self, context: BackendContext) -> TaskRestoreManager:
        SEEN.append(context)
        return super().restore_manager(context)


world = fixture_of(SumsWorld)


def test_a_backend_knows_its_container_its_partitions_its_job_and_its_clock(world: SumsWorld) -> None:
    for _ in range(2):  # backups, and then restores, too
        SEEN.clear()
        world.put(1, 2, 3)
        driver = world.driver(stores_sums_backup_factories=f"{__name__}:NotedFactory")
        driver.loop.start()
        drain(driver)
        driver.loop.commit()
        assert {context.task for context in SEEN} == set(range(TASKS))
        for context in SEEN:
            assert context.container == driver.fleet.assignment.homes[context.task]
            assert context.partitions == (SystemStreamPartition("m", "events", context.task),)
            assert context.uid == driver.job.uid
            assert context.clock is world.clock
        driver.close()
