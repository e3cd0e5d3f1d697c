"""Jobs with side inputs, on drivers of this process: what attempts read of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock as ps
from tests.support.side_jobs import SideWorld, reading, settle


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SideWorld]:
    world = SideWorld(tmp_path)
    yield world
    world.close()


def test_a_store_has_what_its_stream_held_at_the_start(world: SideWorld) -> None:
    world.create("planes")
    world.put("planes", 0, [("N1", "Airbus"), ("N2", "Boeing"), ("N1", "Cessna"), ("N3", "Embraer"), ("N3", None)])
    world.put("in", 0, [("N1", 0), ("N2", 0), ("N3", 0), ("N4", 0)])
    app = ps.StreamApplication("side")
    app.store("planes", side_inputs=["m.planes"])
    reading(app, "planes")
    assert world.run(app) == [["Cessna"], ["Boeing"], [None], [None]]


def test_the_next_batch_sees_an_update(world: SideWorld) -> None:
    world.create("planes")
    world.put("planes", 0, [("N1", "Airbus")])
    app = ps.StreamApplication("side")
    app.store("planes", side_inputs=["m.planes"])
    reading(app, "planes")
    driver = world.driver(app)
    driver.loop.start()
    world.put("in", 0, [("N1", 0)])
    driver.loop.step()
    assert world.output() == [["Airbus"]]
    world.put("planes", 0, [("N1", "Boeing")])
    settle(driver)
    world.put("in", 0, [("N1", 1)])
    driver.loop.step()
    assert world.output() == [["Airbus"], ["Boeing"]]
