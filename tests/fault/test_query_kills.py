"""`kill -9` of the driver and its JVM at every step of a `foreachBatch`: the output of each batch, and the final state,
equal a plain computation, though the processor is random."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.faults import Fault
from tests.support.query_home import QueryHome

pytestmark = pytest.mark.spark

POINTS = (
    "open.before",
    "open.after",
    "batch.before",
    "driver.start_run.before",
    "source",
    "processor",
    "driver.end.before",
    "driver.end.after",
    "driver.snapshot.before",
    "driver.snapshot.after",
    "driver.upload.before",
    "driver.upload.after",
    "append.before",
    "append.after",
    "frame.before",
    "frame.after",
    "batch.after",
    "handler.before",
    "handler.after",
    "close.before",
    "close.after",
)
SIGKILLED = -9
KILLS = 50


def kill_at(home: QueryHome, number: int, point: str, skip: int) -> bool:
    """Have a driver be killed at a point, in or after the batch of another file. Whether it came there."""
    home.publish()
    home.killer.plan(Fault(f"{number}-{point}", point, "kill", skip=skip))
    return home.run() == SIGKILLED


def finish(home: QueryHome) -> None:
    """A driver that is not killed, and what has come out."""
    home.killer.plan()
    home.publish()
    assert home.run() == 0
    home.verify()


def test_the_driver_is_killed_at_some_steps(tmp_path: Path) -> None:
    home = QueryHome(tmp_path)
    steps = (("processor", 0), ("append.before", 1), ("frame.before", 0), ("handler.after", 0))
    for number, (point, skip) in enumerate(steps):  # the first record of a driver says where it begins
        assert kill_at(home, number, point, skip), point
    finish(home)


@pytest.mark.slow
def test_the_driver_is_killed_fifty_times(tmp_path: Path) -> None:
    """At every step in the first batch of a driver, and at random ones later."""
    chance = random.Random(17)
    home = QueryHome(tmp_path, seed=17)
    points = [(point, 0) for point in POINTS]
    killed = 0
    for number in range(2 * KILLS):
        point, skip = points[number] if number < len(points) else (chance.choice(POINTS), chance.randrange(3))
        if skip:
            home.publish()
        killed += kill_at(home, number, point, skip)
        if killed == KILLS:
            break
    assert killed == KILLS
    finish(home)
