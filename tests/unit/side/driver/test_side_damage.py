"""Damaged files of a side store end one epoch; the driver's log about side inputs that fail while the run continues."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.side.driver import REPEAT_SECONDS, SideTroubles
from penstock.side.wing import SideState
from tests.support.world.side_jobs import SideWorld, leave, planes, settle


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SideWorld]:
    world = SideWorld(tmp_path)
    world.create("planes")
    yield world
    world.close()


def test_a_batch_that_meets_a_damaged_block_is_run_again_with_a_store_that_was_filled_again(
    world: SideWorld, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(3)
    values = {f"N{number:05}": rng.randbytes(50).hex() for number in range(4000)}
    world.put("planes", 0, list(values.items()))
    driver = world.started(planes())
    settle(driver)
    leave(driver)
    table = max(tmp_path.glob("*/planes/side-0/*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    for place in range(20_000, len(data) - 40_000, 20_000):
        data[place : place + 50] = bytes(50)
    table.write_bytes(data)
    asked = sorted(values)[::50]
    world.put("in", 0, [(key, 0) for key in asked])
    assert world.run(planes()) == [[values[key]] for key in asked]
    assert caplog.text.count("it was found to be damaged") == 1
    caplog.clear()
    assert world.run(planes())
    assert "damaged" not in caplog.text


def test_a_trouble_is_logged_when_it_begins_each_minute_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    troubles = SideTroubles(lambda failed: failed)
    logged = []
    for texts, now in [((), 0), (("a",), 1), (("a",), 2), (("a", "b"), 3), (("a", "b"), 1 + REPEAT_SECONDS), ((), 100)]:
        caplog.clear()
        troubles.look([SideState(troubles=texts)], float(now))
        logged.append([(record.levelname, record.getMessage().rpartition(": ")[2]) for record in caplog.records])
    again = [("WARNING", "side inputs fill their stores again")]
    assert logged == [[], [("ERROR", "a")], [], [("ERROR", "b")], [("ERROR", "a")], again]
