"""`kill -9` of the driver and its JVM at every step of a `foreachBatch`, and of single processes within a batch: the
output of each batch, and the final state, equal a plain computation, though the processor is random."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoint.log import CheckpointLog
from penstock.drain.requests import DRAIN, DrainRequests, write_drain_notification
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from tests.support.faults.plan import Fault
from tests.support.jobs.query_home import QueryHome, Reached
from tests.support.processes.hosts import why_no_hosts
from tests.support.processes.standalone import Standalone, environment, standalone
from tests.support.tools.fixtures import fixture_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]
on_hosts = pytest.mark.skipif(why_no_hosts() is not None, reason=str(why_no_hosts()))

SIGKILLED = -9
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
    "append.start.before",
    "append.start.after",
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
"""Where drivers die whose checkpoint location is set back as well."""
KILLS = 30
AT_ONCE = 5
"""Kills of one test: pytest ends tests that take too long."""


@dataclass(frozen=True)
class Step:
    """A step of a batch: the points in it, and what the files of the query say if a driver died there."""

    points: tuple[tuple[str, int], ...]
    """Each with the number of visits before, in the same driver: its first snapshot is no batch's."""
    left: Callable[[Reached], bool]


def _begun(at: Reached) -> bool:
    """Spark may ask for a batch again that counts already."""
    return at.committed == at.planned - 1 and at.state in {at.planned - 1, at.planned}


def _not_counted(at: Reached) -> bool:
    return at.committed == at.state == at.planned - 1


def _counted(at: Reached) -> bool:
    return at.committed == at.planned - 1 and at.state == at.planned


STEPS = {
    "the start": Step((("open.before", 0), ("open.after", 0)), _begun),
    "before the batch": Step((("batch.before", 1),), _not_counted),
    "the first rows": Step((("source", 0),), _begun),
    "the input": Step((("driver.start_run.before", 0), ("source", 2)), _not_counted),
    "the processor": Step((("processor", 0), ("processor", 15)), _not_counted),
    "the end of the batch": Step((("driver.end.before", 0), ("driver.end.after", 0)), _not_counted),
    "the commit": Step(
        (
            ("driver.snapshot.before", 1),
            ("driver.snapshot.after", 1),
            ("driver.upload.before", 1),
            ("upload.middle", 1),
            ("driver.upload.after", 1),
            ("append.before", 0),
        ),
        _not_counted,
    ),
    "after the record": Step(
        (("append.after", 0), ("frame.before", 0), ("frame.after", 0), ("batch.after", 0)), _counted
    ),
    "the handler": Step((("handler.before", 0), ("sink", 0), ("sink", 1)), _counted),
    "after the handler": Step((("handler.after", 0),), lambda at: _counted(at) and at.written == at.planned),
    "between two batches": Step(
        (("close.before", 0), ("close.after", 0)), lambda at: at.committed == at.state == at.planned
    ),
}


def schedule() -> list[tuple[str, str, int]]:
    """Every point of every step, and then steps at random: step, point, visits before."""
    chance = random.Random(17)
    every = [(step, *point) for step in STEPS for point in STEPS[step].points]
    more = [(step, *chance.choice(STEPS[step].points)) for step in chance.choices(list(STEPS), k=KILLS - len(every))]
    chance.shuffle(every)
    return every + more


@dataclass
class LongRun:
    """A query whose drivers are killed again and again."""

    home: QueryHome
    how: dict[str, Any] = field(default_factory=dict)
    """To start a driver."""
    kills: int = 0

    def kill(self, step: str, point: str, skip: int) -> None:
        """Have a driver be killed in a step, and see that it was."""
        home = self.home
        self.kills += 1
        home.publish_until_left(skip + 2)
        home.faults.plan(Fault(f"{self.kills}-{point}", point, "kill driver", skip=skip))
        assert home.run(**self.how) == SIGKILLED, point
        assert not home.faults.left()
        assert STEPS[step].left(home.reached()), (step, point, home.reached())

    def finish(self) -> None:
        """A driver that is not killed, and what has come out of all."""
        self.home.faults.plan()
        self.home.publish()
        assert self.home.run(**self.how) == 0
        self.home.verify()


def test_the_driver_is_killed_in_a_drain(tmp_path: Path) -> None:
    """Before its record, the next start drains; behind it, the next start hands over its output and goes on."""
    run = LongRun(QueryHome(tmp_path))
    home = run.home
    run.finish()
    objects, paths = open_store(str(home.folder / "root")), JobPaths("visits", "1")
    for point, skip, drains_again in (
        ("driver.start_run.before", 1, True),
        ("append.before", 0, True),
        ("append.after", 0, False),
        ("handler.after", 0, False),
    ):
        asked = write_drain_notification(objects, paths)
        home.publish_until_left(3)
        home.faults.plan(Fault(f"drain-{point}", point, "kill driver", skip=skip))
        assert home.run() == SIGKILLED, point
        assert not home.faults.left()
        home.faults.plan()
        assert home.run() == 0
        drained = [
            record
            for record in CheckpointLog(objects, paths).read().checkpoints
            if str(asked.uuid) in record.section(DRAIN).answered
        ]
        assert len(drained) == 1, point
        assert (drained[0] == CheckpointLog(objects, paths).read().latest) is drains_again, point
        assert not DrainRequests(objects, paths).find().notifications
        run.finish()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LongRun:
    return LongRun(QueryHome(tmp_path_factory.mktemp("local"), seed=17))


cluster = fixture_of(lambda tmp_path_factory: standalone(tmp_path_factory.mktemp("cluster") / "spark"), scope="module")
"""The master, two workers and the drivers are separate processes on three hosts."""


def _on(cluster: Standalone, folder: Path) -> LongRun:
    home = QueryHome(folder, cluster.config, seed=18)
    return LongRun(home, {"prefix": cluster.main.prefix, "environ": environment()})


@pytest.fixture(scope="module")
def clustered(cluster: Standalone, tmp_path_factory: pytest.TempPathFactory) -> LongRun:
    return _on(cluster, tmp_path_factory.mktemp("query"))


@pytest.mark.parametrize("first", range(0, KILLS, AT_ONCE))
def test_the_driver_is_killed_again_and_again(local: LongRun, first: int) -> None:
    """All parts share one query."""
    for kill in schedule()[first : first + AT_ONCE]:
        local.kill(*kill)
    local.finish()


@on_hosts
@pytest.mark.parametrize("first", range(0, KILLS, AT_ONCE))
def test_the_driver_is_killed_again_and_again_on_a_cluster(clustered: LongRun, first: int) -> None:
    """All parts share one query."""
    for kill in schedule()[first : first + AT_ONCE]:
        clustered.kill(*kill)
    clustered.finish()


@on_hosts
def test_executors_workers_and_containers_are_killed_within_batches(cluster: Standalone, tmp_path: Path) -> None:
    run = _on(cluster, tmp_path)
    run.home.publish_until_left(6)
    run.home.faults.plan(
        Fault("worker", "source", "kill"),
        Fault("container", "processor", "kill", skip=20),
        Fault("executor", "source", "kill executor", skip=4),
        Fault("commit", "upload.middle", "kill", skip=5),
        Fault("sink", "sink", "kill", skip=3),
        Fault("executor in the handler", "sink", "kill executor", skip=6),
    )
    assert run.home.run(**run.how) == 0
    assert not run.home.faults.left()
    run.home.verify()


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
        home.faults.plan(Fault(f"{number}-{point}", point, "kill driver", skip=skip))
        killed += home.run(files=chance.choice((1, 2)), from_checkpoint="matching") == SIGKILLED
        location = tmp_path / "checkpoint"
        if (location / "metadata").exists():
            copies.append(Path(shutil.copytree(location, tmp_path / f"copy-{number}")))
        if len(copies) > 1 and chance.random() < 0.5:
            del copies[chance.randrange(max(1, len(copies) - 3), len(copies)) :]
            home.set_back(copies[-1])
            set_back += 1
    assert min(killed, set_back) >= 5
    home.faults.plan()
    home.publish()
    assert home.run(from_checkpoint="matching") == 0
    home.verify_sums()
