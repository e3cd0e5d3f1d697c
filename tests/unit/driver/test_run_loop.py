"""The run loop on containers of this process: whatever happens, state and outputs are those of an independent sum."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.load import load_config
from penstock.driver.ports import RunBrokenError
from penstock.errors import FencedError, PenstockError, RetryableError, UserCodeError
from penstock.metadata.open import forget_memory_store, open_store
from penstock.metadata.paths import JobPaths
from penstock.system.base import OffsetRange
from penstock.system.memory import MemorySystem
from penstock.testing.in_process import InProcessDriver

TASKS = 3
KEYS = ("a", "b", "c", "d", "e")


class Sum(ps.StreamTask):
    """Adds up the values of each key; asks for a commit or a shutdown where the value is 100 or 200."""

    def init(self, context: Any) -> None:
        self.store = context.store("sums")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        if envelope.value < 0:
            raise ValueError("negative")
        if envelope.value == 100:
            coordinator.commit()
        if envelope.value == 200:
            coordinator.shutdown()
        total = (self.store.get(envelope.key) or 0) + envelope.value
        self.store.put(envelope.key, total)
        collector.emit(key=envelope.key, value=total)


class World:
    """What outlives a driver: the object store, the streams. And what was put into them."""

    def __init__(self, folder: Path) -> None:
        self.app = ps.StreamApplication("sums")
        self.app.store("sums", key=ps.String(), value=ps.Integer())
        source = self.app.input("m.events", key=ps.String(), value=ps.Integer())
        source.partition_by(lambda envelope: envelope.key, envelope=True).process(
            Sum, stores=["sums"], id="sum"
        ).send_to(self.app.output("m.sums", key=ps.String(), value=ps.Integer()))
        self.root = f"memory://{uuid.uuid4().hex}"
        self.objects = open_store(self.root)
        self.system = MemorySystem("m")
        for stream in ("events", "sums"):
            self.system.admin().create_stream(stream, TASKS)
        self.folder = folder
        self.given: list[tuple[str, int]] = []
        self.drivers: list[InProcessDriver] = []

    def driver(self, **config: object) -> InProcessDriver:
        """Another driver of the job."""
        overrides = {
            "job.name": "sums",
            "job.root": self.root,
            "job.logged.store.base.dir": str(self.folder),
            "job.batch.max.messages": 4,
            "job.batch.target.ms": 0,
            "job.batch.interval.ms": 1,
            "task.commit.ms": 0,
            "stores.sums.factory": "memory",
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        systems = {"m": self.system, "local": MemorySystem("local")}
        settings = load_config(overrides=overrides, environ={})
        driver = InProcessDriver(self.app.graph(), settings, self.objects, systems, until_latest=False)
        self.drivers.append(driver)
        return driver

    def put(self, *values: int) -> None:
        """Append a message for each value, its key one after the other."""
        writer = self.system.writer(None)
        for value in values:
            key = KEYS[len(self.given) % len(KEYS)]
            ssp = ps.SystemStreamPartition("m", "events", len(self.given) % TASKS)
            writer.append(ssp, [(0, ps.String().to_bytes(key), ps.Integer().to_bytes(value))])
            self.given.append((key, value))

    @property
    def sums(self) -> dict[str, int]:
        """The oracle."""
        totals: Counter[str] = Counter()
        for key, value in self.given:
            totals[key] += value
        return dict(totals)

    def output(self) -> list[tuple[str, int]]:
        """Everything in the output."""
        found = []
        for partition, ends in self.system.admin().offsets("sums").items():
            ssp = ps.SystemStreamPartition("m", "sums", partition)
            for chunk in self.system.reader().read(OffsetRange(ssp, ends.oldest, ends.upcoming), 100):
                found += [(ps.String().from_bytes(k or b""), ps.Integer().from_bytes(v or b"")) for _, _, k, v in chunk]
        return found

    @property
    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        return CheckpointLog(self.objects, JobPaths("sums", "1")).read().checkpoints

    def check(self, driver: InProcessDriver, *, exactly_once: bool = True) -> None:
        """State and output are those of the oracle."""
        assert state(driver) == self.sums
        running: Counter[str] = Counter()
        expected = []
        for key, value in self.given:
            running[key] += value
            expected.append((key, running[key]))
        if exactly_once:
            assert Counter(self.output()) == Counter(expected)
        else:
            assert set(self.output()) >= set(expected)
            assert dict(sorted(self.output(), key=lambda pair: pair[1])) == self.sums


def state(driver: InProcessDriver) -> dict[str, int]:
    """What the stores of all tasks hold."""
    found: dict[str, int] = {}
    for task in range(TASKS):
        engine = driver.fleet.container_of(task).tasks[task].engine("sums")
        found |= {ps.String().from_bytes(k): ps.Integer().from_bytes(v) for k, v in engine.scan(None, None)}
    return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for driver in world.drivers:
        driver.close()
    forget_memory_store(world.root)


def drain(driver: InProcessDriver) -> None:
    """Steps until everything is read."""
    while any(at_end(driver)):
        driver.loop.step()


def at_end(driver: InProcessDriver) -> list[bool]:
    ends = driver.job.ends()
    return [ends[at.ssp].upcoming > offset for at, offset in driver.loop.boundary.positions.items()]


def once(step: str, fault: Callable[[], None]) -> Callable[[str], None]:
    """A fault the first time that the step comes."""
    left = [1]

    def at(name: str) -> None:
        if name == step and left:
            left.clear()
            fault()

    return at


def raising(error: Exception) -> Callable[[], None]:
    def fault() -> None:
        raise error

    return fault


def test_batches_a_commit_and_a_restart(world: World) -> None:
    world.put(*range(10))
    first = world.driver()
    first.loop.start()
    drain(first)
    world.check(first)
    first.loop.commit()
    first.close()
    world.put(*range(10, 20))
    second = world.driver()
    second.loop.start()
    drain(second)
    world.check(second)
    assert [record.kind_detail for record in world.checkpoints] == ["start", "commit", "start"]
    assert world.checkpoints[-1].batch == world.checkpoints[1].batch


def test_the_application_asks_for_a_commit(world: World) -> None:
    world.put(1, 2, 100)
    driver = world.driver()
    driver.loop.start()
    drain(driver)
    driver.loop.commit()  # waits for the one in flight
    assert len(world.checkpoints) == 3
    world.check(driver)


@pytest.mark.parametrize("step", ["start-run", "source", "stage 1", "reports", "end"])
def test_a_lost_container_leads_back_to_the_last_checkpoint(world: World, step: str) -> None:
    world.put(*range(6))
    driver = world.driver()
    driver.loop.start()
    drain(driver)
    driver.loop.commit()
    world.put(*range(6, 12))
    lost = once(step, lambda: driver.fleet.lose(1))
    driver.fleet.at = driver.runner.at = lost
    epoch = driver.loop.epoch
    drain(driver)
    assert driver.loop.epoch == epoch + 1
    world.check(driver, exactly_once=step in {"start-run", "source", "stage 1"})


@pytest.mark.parametrize("step", ["source", "stage 1", "sink", "reports"])
def test_a_run_that_broke_off_is_repeated_as_the_same_batch(world: World, step: str) -> None:
    world.put(*range(12))
    driver = world.driver()
    driver.loop.start()
    driver.runner.at = once(step, raising(RunBrokenError("broken")))
    drain(driver)
    assert driver.loop.boundary.batch == 3
    assert driver.loop.epoch == driver.job.claim.epoch
    world.check(driver, exactly_once=step != "reports")


def test_too_many_failures_end_the_run(world: World) -> None:
    world.put(1)
    driver = world.driver(job_retry_max=2)
    driver.loop.start()
    driver.runner.at = lambda _: raising(RunBrokenError("broken again"))()
    with pytest.raises(PenstockError, match=r"3 failures since the last checkpoint.*broken again"):
        drain(driver)


def test_a_failing_application_ends_the_run_and_its_batch_is_not_applied(world: World) -> None:
    world.put(1, 2, 3)
    driver = world.driver()
    driver.loop.start()
    drain(driver)
    before = state(driver)
    world.put(-1)
    with pytest.raises(UserCodeError, match="negative"):
        drain(driver)
    assert state(driver) == before


def test_of_two_drivers_the_older_one_is_fenced(world: World) -> None:
    world.put(*range(8))
    old = world.driver()
    old.loop.start()
    drain(old)
    old.loop.commit()
    world.put(*range(8, 12))
    new = world.driver()
    new.loop.start()
    with pytest.raises(FencedError):
        drain(old)
    with pytest.raises(FencedError):
        old.loop.commit()
    drain(new)
    world.check(new)
    new.loop.commit()
    assert world.checkpoints[-1].epoch == new.loop.epoch


def test_a_driver_that_is_fenced_while_it_uploads_writes_no_record(world: World) -> None:
    world.put(*range(8))
    old = world.driver()
    old.loop.start()
    drain(old)
    new = world.driver()
    old.fleet.at = once("upload", lambda: new.loop.start())
    with pytest.raises(FencedError):
        old.loop.commit()
    drain(new)
    world.check(new, exactly_once=False)
    assert [record.epoch for record in world.checkpoints] == [old.job.claim.epoch, new.job.claim.epoch]


@pytest.mark.parametrize("recorded", [False, True])
def test_a_crash_around_the_record(world: World, recorded: bool) -> None:
    world.put(*range(8))
    first = world.driver()
    first.loop.start()
    drain(first)
    step = "clean-up" if recorded else "upload"
    first.fleet.at = once(step, raising(PenstockError("the process died")))
    if recorded:
        first.loop.commit()  # what fails behind the record costs space only
    else:
        with pytest.raises(PenstockError, match="the process died"):
            first.loop.commit()
    first.close()
    second = world.driver()
    second.loop.start()
    begins = second.loop.boundary.batch
    assert begins == (first.loop.boundary.batch if recorded else 0)
    world.put(*range(8, 16))
    drain(second)
    world.check(second, exactly_once=recorded)


def test_an_epoch_that_does_not_open_is_tried_again_and_its_start_checkpoint_is_one(world: World) -> None:
    world.put(*range(8))
    driver = world.driver()
    driver.fleet.at = once("open", raising(RetryableError("the store does not answer")))
    driver.loop.start()
    assert driver.loop.epoch == driver.job.claim.epoch + 1
    driver.fleet.at = lambda _: None
    drain(driver)
    world.check(driver)
    assert [record.kind_detail for record in world.checkpoints] == ["start"]


def test_a_graceful_stop_ends_with_a_commit(world: World) -> None:
    world.put(*range(8))
    driver = world.driver()
    driver.runner.at = once("reports", driver.stop.request)
    driver.loop.run()
    assert world.checkpoints[-1].ended == "stopped"
    assert world.checkpoints[-1].batch == 1
    successor = world.driver()
    successor.loop.start()
    assert successor.job.claim.run_id != driver.job.claim.run_id
    drain(successor)
    world.check(successor)


def test_an_immediate_stop_commits_nothing(world: World) -> None:
    world.put(*range(8))
    driver = world.driver()

    def stop_twice() -> None:
        driver.stop.request()
        driver.stop.request()
        driver.runner.cancel()

    driver.runner.at = once("stage 1", stop_twice)
    driver.loop.run()
    assert [record.batch for record in world.checkpoints] == [0]
    successor = world.driver()
    successor.loop.start()
    drain(successor)
    world.check(successor)


def test_the_application_shuts_the_job_down(world: World) -> None:
    world.put(200, *range(20))
    driver = world.driver()
    driver.loop.run()
    assert world.checkpoints[-1].batch == 1


def test_a_container_lost_in_the_last_commit_is_answered_before_the_end(world: World) -> None:
    world.put(*range(4))
    driver = world.driver()
    driver.runner.at = once("reports", driver.stop.request)
    driver.fleet.at = once("end", lambda: setattr(driver.fleet, "at", once("snapshot", lambda: driver.fleet.lose(0))))
    driver.loop.run()
    assert world.checkpoints[-1].ended == "stopped"
    successor = world.driver()
    successor.loop.start()
    drain(successor)
    world.check(successor, exactly_once=False)
