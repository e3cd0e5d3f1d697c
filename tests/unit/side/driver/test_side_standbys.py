"""Standbys of tasks fill the side stores of these tasks, on containers of this process that are hosts of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.side import copies, inputs, replica
from penstock.side.entries import SidePart
from penstock.side.folders import SideFolders
from penstock.side.group import SideGroup
from penstock.side.inputs import SideInputService
from penstock.testing.in_process import InProcessDriver
from tests.support.jobs.home import wait_until
from tests.support.world.side_jobs import SideWorld, asked, content, planes, service, settle

TASKS = 2


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SideWorld]:
    """Containers have their stores in folders of their own, as on hosts of their own."""
    monkeypatch.setattr(inputs, "SideFolders", lambda base, *more: SideFolders(base / more[-1], *more))
    world = SideWorld(tmp_path, TASKS)
    world.config |= {"job.standbytasks.replication.factor": 2, "stores.planes.factory": "rocksdb"}
    world.create("planes")
    yield world
    world.close()


def put(world: SideWorld, oracle: list[dict[bytes, bytes]], start: int, count: int) -> None:
    for number in range(start, start + count):
        task, key = number % TASKS, f"plane-{number % 40}"
        world.put("planes", task, [(key, number)])
        oracle[task][key.encode()] = str(number).encode()


def begun(world: SideWorld, containers: int = 3, **options: Any) -> InProcessDriver:
    """A driver that has run a batch: then the standbys begin."""
    app = planes(**options)
    driver = world.started(app, containers=containers)
    world.put("in", 0, [("plane-0", 0)])
    driver.loop.step()
    return driver


def standbys(driver: InProcessDriver, task: int) -> SideInputService:
    (name,) = driver.fleet.assignment.standbys[task]
    epoch = driver.fleet._containers[name].current
    assert epoch is not None
    return epoch.wings.of(SideInputService)


def read(driver: InProcessDriver, task: int) -> int:
    """The number of messages read for a task's store since its container opened the epoch."""
    return sum(
        group.counts[part].messages
        for group in service(driver, task).filler.groups
        for part in group.parts
        if part.task == task
    )


def test_a_standby_that_takes_over_reads_the_rest_alone(world: SideWorld) -> None:
    oracle: list[dict[bytes, bytes]] = [{} for _ in range(TASKS)]
    put(world, oracle, 0, 200)
    driver = begun(world)
    assert read(driver, 0) == 100
    for turn in range(2):
        put(world, oracle, 200 + 20 * turn, 20)
        standby = standbys(driver, 0).standbys
        wait_until(standby.filler.caught_up.is_set, "the standby has read the stream")
        assert standby.filler.catch_up(20)
        driver.fleet.lose(0)
        put(world, oracle, 1000 + 2 * turn, 2)
        world.put("in", 0, [("plane-0", 0)])
        while driver.fleet.any_lost:
            driver.loop.step()
        driver.loop.step()
        settle(driver)
        assert [content(driver, "planes", task) for task in range(TASKS)] == oracle
        assert read(driver, 0) <= 1, "the rest alone"


def test_a_store_of_all_tasks_is_filled_where_there_are_only_standbys(world: SideWorld) -> None:
    oracle: list[dict[bytes, bytes]] = [{} for _ in range(TASKS)]
    put(world, oracle, 0, 100)
    driver = begun(world, broadcast=True)
    (alone,) = {c for own in driver.fleet.assignment.standbys.values() for c in own} - {
        *driver.fleet.assignment.homes.values()
    }
    epoch = driver.fleet._containers[alone].current
    assert epoch is not None
    filler = epoch.wings.of(SideInputService).standbys.filler
    wait_until(filler.caught_up.is_set, "the standby has read the stream")
    assert {part.task for group in filler.groups for part in group.parts} == {None}


def test_a_folder_that_is_used_on_the_host_is_left_alone(world: SideWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "SideFolders", SideFolders)
    put(world, [{}, {}], 0, 10)
    driver = begun(world)
    standby = standbys(driver, 0).standbys
    wait_until(standby.filler.caught_up.is_set, "the standby has looked")
    assert standby.filler.groups == ()


def test_a_standby_that_fails_tries_again(world: SideWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the run goes on."""
    monkeypatch.setattr(copies, "_PAUSE_S", 0.01)
    faults = [OSError("the disk is away")] * 2
    is_free = replica.SideHomes.is_free

    def fails(homes: replica.SideHomes, part: SidePart) -> bool:
        if faults:
            raise faults.pop()
        return is_free(homes, part)

    monkeypatch.setattr(replica.SideHomes, "is_free", fails)
    put(world, [{}, {}], 0, 10)
    driver = begun(world)
    service = standbys(driver, 0)
    wait_until(lambda: service.standbys.filler.caught_up.is_set() and not faults, "the standby has read the stream")
    assert asked(world, driver, "plane-0") == [[0]]
    driver.close()
    assert not any(each.name.startswith("side-standbys-") for each in threading.enumerate())


def test_a_task_moves_once_its_side_stores_are_filled(world: SideWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle: list[dict[bytes, bytes]] = [{} for _ in range(TASKS)]
    put(world, oracle, 0, 200)
    driver = begun(world, containers=2)
    fleet = driver.fleet
    wait_until(standbys(driver, 0).standbys.filler.caught_up.is_set, "the standby has read the stream")
    fleet.lose(0)
    while fleet.any_lost:
        driver.loop.step()
    may_fill, fills = threading.Event(), copies.SideStandbys._groups

    def fills_late(standby: copies.SideStandbys) -> list[SideGroup]:
        while not may_fill.wait(0.01):
            if standby._stopping.is_set():
                return []
        return fills(standby)

    monkeypatch.setattr(copies.SideStandbys, "_groups", fills_late)
    fleet.replace()

    def step() -> set[str]:
        world.put("in", 0, [("plane-0", 0)])
        driver.loop.step()
        return set(fleet.assignment.homes.values())

    assert [len(step()) for _ in range(10)] == [1] * 10, "nothing moves before"
    may_fill.set()
    wait_until(lambda: len(step()) == 2, "a task has moved")
    settle(driver)
    assert [content(driver, "planes", task) for task in range(TASKS)] == oracle
    assert [read(driver, task) for task in range(TASKS)] == [0, 0]
