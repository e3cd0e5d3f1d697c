"""An exactly-once output is deleted and created again between two runs."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest

from tests.support.world.once_world import OnceWorld
from tests.support.world.sums_job import TASKS, drain
from tests.support.world.world import fixture_of

world = fixture_of(OnceWorld)


def run(world: OnceWorld, *numbers: int) -> None:
    """A run that ends well, with the output of these numbers in one commit."""
    world.put(*numbers)
    driver = world.next()
    driver.loop.start()
    drain(driver)
    driver.loop.finish()
    world.kill(driver)


def test_the_new_stream_gets_the_last_commit_and_what_follows(
    world: OnceWorld, caplog: pytest.LogCaptureFixture
) -> None:
    run(world, 1, 2)
    run(world, 3, 4)
    before = len(world.output())
    with closing(world.system.admin()) as admin:
        admin.delete_stream("sums")
        admin.create_stream("sums", TASKS)
    run(world)
    assert "the output `m.sums` was deleted and created again since the last checkpoint" in caplog.text
    published = len(world.output())
    assert 0 < published < before, "what the last record has, and nothing of earlier ones"
    run(world, 5, 6)
    found = Counter(world.output())
    assert max(found.values()) == 1, "each message is in the stream once"
    assert len(world.output()) == published + 2
    assert caplog.text.count("was deleted and created again") == 1
