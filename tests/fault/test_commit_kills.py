"""`kill -9` at every step of a commit, of the container or of the driver: each checkpoint equals the oracle at its own
offsets, from every backend that it has markers of."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults.chaos import Chaos, chaos
from tests.support.faults.driver_faults import COMMIT_POINTS
from tests.support.faults.plan import Fault
from tests.support.jobs.fault_jobs import FaultHome, combinations, executor_env

pytestmark = pytest.mark.spark

CONTAINER_POINTS = (
    "init",
    "snapshot.begin",
    "snapshot.end",
    "upload.begin",
    "upload.middle",
    "upload.end",
    "clean_up.begin",
    "clean_up.end",
)
LABELS = {"changelog-files": "files", "blob": "blob", "changelog-stream": "stream"}
MESSAGES = 600
TASKS = 2
SIGKILLED = -9
MAX_STARTS = 40
CONFIG = {
    "task.commit.ms": 1,  # after every batch
    "job.batch.max.messages": 80,
    "task.checkpoint.retained": "100",
    "job.lease.ms": 1500,
    "job.retry.max": 20,
    **executor_env(),
}


def sampled(points: Sequence[Any], *samples: Any) -> list[Any]:
    """The samples are in every run, the others in the long ones."""
    return [pytest.param(p, marks=() if p in samples else pytest.mark.slow) for p in points]


def parameters(combined: Sequence[tuple[str, ...]]) -> list[Any]:
    """One of them is in every run, the others in the long ones."""
    return [
        pytest.param(names, id="+".join(names), marks=() if names == ("changelog-files",) else pytest.mark.slow)
        for names in combined
    ]


BACKENDS = parameters(combinations())


def make_home(folder: Path, backends: tuple[str, ...], messages: int = MESSAGES) -> FaultHome:
    """A job with its input."""
    home = FaultHome(folder, backends, CONFIG)
    home.publish(messages, seed=7)
    return home


def run_until_done(attack: Chaos) -> int:
    """Start the driver again whenever it was killed, and verify what came out; how often it was killed."""
    for killed in range(MAX_STARTS):
        if attack.driver is not None:
            attack.driver.clean_up()
        ended = attack.start(until="latest").ended()
        attack.told.append(f"driver ended with {ended.status}, {ended.error}")
        if ended.status == 0:
            attack.home.verify()
            return killed
        assert ended.status == SIGKILLED, ended.log[-6000:]
    raise AssertionError(f"the driver was killed {MAX_STARTS} times")


@pytest.mark.parametrize(
    ("backends", "point"),
    [(("changelog-files",), "append.after"), *(pytest.param((name,), "", marks=pytest.mark.slow) for name in LABELS)],
)
def test_the_driver_is_killed_at_steps_of_a_commit(tmp_path: Path, backends: tuple[str, ...], point: str) -> None:
    """At one, in the start checkpoint and in a later commit; or at every step, one after the other."""
    home = make_home(tmp_path, backends)
    later = Fault("later", point, "kill", skip=4)
    planned = [Fault("at the start", point, "kill"), later] if point else _at_each(COMMIT_POINTS)
    home.faults.plan(*planned)
    with chaos(home, 2) as attack:
        assert run_until_done(attack) == len(planned)
    assert not home.faults.left()
    assert len(home.log.claims) == len(planned) + 1


def _at_each(points: Sequence[str]) -> list[Fault]:
    """Some in a start checkpoint, others in one of the commits after it."""
    return [Fault(point, point, "kill", skip=number % 3) for number, point in enumerate(points)]


@pytest.mark.slow
@pytest.mark.parametrize("backends", BACKENDS)
def test_a_container_is_killed_at_every_step_of_one_run(tmp_path: Path, backends: tuple[str, ...]) -> None:
    home = make_home(tmp_path, backends, 3 * MESSAGES)
    home.faults.plan(
        *(
            Fault(point, point, "kill", skip=0 if point == "init" else TASKS * (2 + number))
            for number, point in enumerate(CONTAINER_POINTS)
        )
    )
    with chaos(home, 3) as attack:
        run_until_done(attack)
    assert not home.faults.left()


@pytest.mark.parametrize("seed", sampled(range(1, 3)))
@pytest.mark.parametrize("backends", BACKENDS)
def test_a_random_schedule(tmp_path: Path, backends: tuple[str, ...], seed: int) -> None:
    chance = random.Random(seed)
    home = make_home(tmp_path, backends)
    home.config["job.host-affinity.enabled"] = chance.choice(["false", "true"])
    home.config["task.checkpoint.retained"] = chance.choice(["2", "100"])
    home.config["state.snapshot.interval.commits"] = chance.choice([1, 3, 20])
    for store, factory in zip(("totals", "regions"), chance.sample(["rocksdb", "columns"], 2), strict=True):
        home.config[f"stores.{store}.factory"] = factory
    planned = []
    for number in range(3):
        point = chance.choice(CONTAINER_POINTS)
        planned.append(Fault(f"container-{number}", point, "kill", skip=chance.randrange(3 if point == "init" else 16)))
    planned += [
        Fault(f"driver-{number}", chance.choice(COMMIT_POINTS), "kill", skip=chance.randrange(8))
        for number in range(1 if seed == 1 else 3)
    ]
    for number in range(3):
        point = chance.choice(["upload.begin", "upload.middle", "upload.end"])
        planned.append(
            Fault(f"retry-{number}", point, "retryable", skip=chance.randrange(16), times=chance.randint(1, 3))
        )
    planned.append(
        Fault("slow", "upload.begin", "sleep", skip=chance.randrange(8), times=4, seconds=chance.uniform(0.1, 1.0))
    )
    home.faults.plan(*planned)
    with chaos(home, seed) as attack:
        attack.told += [str(home.config), *map(str, planned)]
        run_until_done(attack)
    assert len(home.log.claims) >= 2, attack.told
