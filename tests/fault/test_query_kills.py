"""`kill -9` of the driver and its JVM at every step of a `foreachBatch`: the output of each batch, and the final state,
equal a plain computation, though the processor is random."""

from __future__ import annotations

import random
import shutil
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


@pytest.mark.slow
def test_the_checkpoint_location_is_set_back_again_and_again(tmp_path: Path) -> None:
    """To copies that were taken when a driver had ended or been killed, anywhere in a batch. Batches of one number have
    one file or two, so that the state of another line of checkpoints would show."""
    chance = random.Random(23)
    home = QueryHome(tmp_path, seed=23, config={"task.checkpoint.retained": "100"})
    copies: list[Path] = []
    killed, set_back = 0, 0
    for number in range(16):
        home.publish()
        point, skip = chance.choice(POINTS), chance.randrange(3)
        home.killer.plan(Fault(f"{number}-{point}", point, "kill", skip=skip))
        killed += home.run(files=chance.choice((1, 2)), from_checkpoint="matching") == SIGKILLED
        location = tmp_path / "checkpoint"
        if (location / "metadata").exists():
            copies.append(Path(shutil.copytree(location, tmp_path / f"copy-{number}")))
        if len(copies) > 1 and chance.random() < 0.5:
            del copies[chance.randrange(max(1, len(copies) - 3), len(copies)) :]
            home.set_back(copies[-1])
            set_back += 1
    assert min(killed, set_back) >= 5
    home.killer.plan()
    home.publish()
    assert home.run(from_checkpoint="matching") == 0
    home.verify_sums()
