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
ALONE = parameters([names for names in combinations() if len(names) == 1])
"""Several together are killed at every step of one run, and by the random schedules."""


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


@pytest.mark.parametrize("point", sampled(CONTAINER_POINTS, "upload.middle"))
@pytest.mark.parametrize("backends", ALONE)
def test_a_container_is_killed_at_a_step_of_a_commit(tmp_path: Path, backends: tuple[str, ...], point: str) -> None:
    """Twice: somewhere in the middle of the job, and soon again in the epoch after that."""
    home = make_home(tmp_path, backends)
    skip = 0 if point == "init" else 3 * TASKS
    first = LABELS[backends[0]]  # of several backends one counts, so that a commit has one visit for each task
    home.faults.plan(
        Fault("first", point, "kill", skip=skip, backend=first),
        Fault("again", point, "kill", skip=skip + TASKS + 1, backend=first),
    )
    with chaos(home, 1) as attack:
        assert run_until_done(attack) == 0, "only containers were to be killed"
    assert not home.faults.left()
    assert len(home.log.claims) == 3


@pytest.mark.parametrize("point", sampled(COMMIT_POINTS))
@pytest.mark.parametrize("backends", ALONE)
def test_the_driver_is_killed_at_a_step_of_a_commit(tmp_path: Path, backends: tuple[str, ...], point: str) -> None:
    """In the start checkpoint, and in a later commit."""
    home = make_home(tmp_path, backends)
    home.faults.plan(Fault("at the start", point, "kill"), Fault("later", point, "kill", skip=4))
    with chaos(home, 2) as attack:
        assert run_until_done(attack) == 2
    assert not home.faults.left()
    assert len(home.log.claims) == 3


@pytest.mark.parametrize("point", sampled(("snapshot.file", "snapshot.zip", "snapshot.done"), "snapshot.zip"))
@pytest.mark.slow
def test_a_container_is_killed_while_a_snapshot_is_made(tmp_path: Path, point: str) -> None:
    """Twice, with a snapshot at every commit, while the commits go on."""
    home = make_home(tmp_path, ("changelog-files",))
    home.config["state.snapshot.interval.commits"] = 1
    home.faults.plan(Fault("first", point, "kill", skip=6), Fault("again", point, "kill", skip=9))
    with chaos(home, 5) as attack:
        assert run_until_done(attack) == 0, "only containers were to be killed"
    assert not home.faults.left()
    assert len(home.log.claims) in {2, 3}  # one that is killed after the last commit only leaves no snapshot


@pytest.mark.slow
@pytest.mark.parametrize("skip", [0, 1, 5, 17])
def test_the_driver_is_killed_in_a_collection(tmp_path: Path, skip: int) -> None:
    """Deltas and snapshots go as their checkpoints leave; what an interrupted collection left, the next start takes."""
    home = make_home(tmp_path, ("changelog-files",))
    home.config |= {"state.snapshot.interval.commits": 2, "task.checkpoint.retained": "2"}
    home.faults.plan(
        Fault("first", "collect.delete", "kill", skip=skip), Fault("again", "collect.delete", "kill", skip=skip + 20)
    )
    with chaos(home, 6) as attack:
        assert run_until_done(attack) == 2
    assert not home.faults.left()


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


@pytest.mark.slow
@pytest.mark.parametrize("backends", BACKENDS)
def test_uploads_fail_for_a_while_and_a_container_is_killed_between(tmp_path: Path, backends: tuple[str, ...]) -> None:
    home = make_home(tmp_path, backends)
    home.faults.plan(
        Fault("before", "upload.begin", "retryable", skip=4, times=3),
        Fault("half", "upload.middle", "retryable", skip=5, times=3),
        Fault("reply", "upload.end", "retryable", skip=6, times=3),
        Fault("kill", "upload.middle", "kill", skip=10),
        Fault("clean-up", "clean_up.begin", "retryable", skip=2, times=2),
        Fault("clean-up fails", "clean_up.end", "fail", skip=6, times=1),
    )
    with chaos(home, 4) as attack:
        assert run_until_done(attack) == 0
    assert not home.faults.left()
    assert len(home.log.claims) == 2


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
