"""A checkpoint with the section of a wing that is not here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.sections import Sections, WrittenSection
from penstock.errors import IncompatibleError
from penstock.testing.in_process import InProcessDriver
from tests.support.stores.stopped_job import replaced_sections
from tests.support.world.sums_job import TASKS, SumsWorld, drain, state


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SumsWorld]:
    world = SumsWorld(tmp_path)
    world.put(*range(1, 2 * TASKS + 1))
    run(world)
    yield world
    world.close()


def driver_of(world: SumsWorld, from_checkpoint: str | None = None) -> InProcessDriver:
    return world.make(world.app.graph(), {}, containers=2, from_checkpoint=from_checkpoint)


def run(world: SumsWorld, from_checkpoint: str | None = None) -> dict[str, int]:
    """Process everything and commit. Returns the state."""
    driver = driver_of(world, from_checkpoint)
    driver.loop.start()
    drain(driver)
    driver.loop.commit()
    found = state(driver)
    driver.close()
    return found


def append_with(world: SumsWorld, section: WrittenSection) -> CheckpointRecord:
    """Append the last checkpoint again, with a section `gifts`."""
    return replaced_sections(CheckpointLog(world.objects, world.paths), Sections({"gifts": section}))


def test_a_start_from_a_checkpoint_that_needs_it_is_refused(world: SumsWorld) -> None:
    before = world.checkpoints[-1]
    newest = append_with(world, WrittenSection({"wrapped": 3}, needed=True))
    with pytest.raises(IncompatibleError) as refused:
        run(world)
    assert str(refused.value) == (
        f"checkpoint {newest.id} cannot be restored here: it needs `gifts`, which wrote a section of it, and this "
        "installation of Penstock has nothing of that name. Install the distribution that brings it, or start from an "
        "older checkpoint (`from_checkpoint=...`)"
    )
    assert world.checkpoints[-1] == newest, "nothing was written"
    assert run(world, str(before.id)) == world.sums
    assert world.checkpoints[-1].sections == Sections()


def test_a_section_that_is_not_needed_is_not_read(world: SumsWorld) -> None:
    """The records that follow have the sections of their own run."""
    newest = append_with(world, WrittenSection({"wrapped": 3}))
    world.put(7)
    assert run(world) == world.sums
    following = [each for each in world.checkpoints if each.id > newest.id]
    assert following
    assert {name for each in following for name in each.sections.written} == set()
