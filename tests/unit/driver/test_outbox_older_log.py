"""A job folder that is older than what the job has published: a backup of it was restored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import IncompatibleError
from penstock.testing.in_process import InProcessDriver
from tests.support.once_world import PATHS, OnceWorld
from tests.support.sums_job import drain


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OnceWorld]:
    world = OnceWorld(tmp_path)
    yield world
    world.close()


def contents(world: OnceWorld) -> dict[str, bytes]:
    """Everything under `job.root`."""
    return {key: world.objects.get(key) for key in world.objects.list("")}


def restore(world: OnceWorld, backup: dict[str, bytes]) -> None:
    """Everything under `job.root` is again as it was."""
    for key in world.objects.list(""):
        world.objects.delete(key)
    for key, data in backup.items():
        world.objects.put_if_absent(key, data)


def run(world: OnceWorld, *commits: int) -> None:
    """A run with a commit behind each of these values."""
    driver = world.next()
    driver.loop.start()
    for value in commits:
        world.put(value)
        drain(driver)
        driver.loop.commit()
    driver.loop.finish()
    world.kill(driver)


def test_nothing_is_taken_for_published(world: OnceWorld) -> None:
    """Its records have slots that the output knows already: their messages would be left out."""
    run(world, 1, 2, 3)
    backup = contents(world)
    run(world, 4, 5, 6, 7, 8, 9)
    before = world.output()
    restore(world, backup)
    for _ in range(12):  # a supervisor starts it again and again, which takes slots
        driver = world.next()
        with pytest.raises(IncompatibleError, match=r"older than its output.*Nothing was published"):
            run_on(driver)
        world.kill(driver)
    assert world.output() == before


def test_a_damaged_record_may_have_been_published(world: OnceWorld) -> None:
    """A start that names an older checkpoint goes on, and sends again what it processes again."""
    world.put(1)
    driver = world.next()
    driver.loop.start()
    for values in (range(2, 7), range(7, 12)):  # of all keys
        drain(driver)
        driver.loop.commit()
        world.put(*values)
    origin = world.log.latest
    assert origin is not None
    assert origin.outbox
    drain(driver)
    driver.loop.commit()
    world.kill(driver)
    last = PATHS.checkpoint(world.log.end - 1)
    world.store.replace(last, world.objects.get(last)[:-5])
    driver = world.next(from_checkpoint=str(origin.id))
    run_on(driver)
    world.check(driver, exactly_once=False)
    assert len(world.output()) == 16  # the last five messages twice
    world.kill(driver)
    run(world, 12, 13)
    assert len(world.output()) == 18


def run_on(driver: InProcessDriver) -> None:
    """To the end of the input."""
    driver.loop.start()
    drain(driver)
    driver.loop.finish()
