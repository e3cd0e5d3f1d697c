"""Containers and drivers that end while a pushed table changes: outputs are of one version, and the new one comes."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.errors import PenstockError, RetryableError
from penstock.state.engines.rocksdb import RocksDbEngine
from penstock.tables.driver import Tables
from penstock.tables.loaded import PushedTables, TableLoad
from penstock.tables.store import MemoryTable, TableView
from penstock.testing.in_process import InProcessDriver
from tests.support.jobs.home import wait_until
from tests.support.world.pushed_job import KEYS, PushedWorld, in_use, keep_busy, lag, until


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PushedWorld]:
    monkeypatch.setattr("penstock.tables.driver._LOOK_SECONDS", 0.0)
    world = PushedWorld(tmp_path)
    yield world
    world.close()


class Gate:
    """Downloads wait here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.closed = threading.Event()
        self.waiting = threading.Event()
        download = TableLoad._download_once

        def slowly(load: TableLoad, *more: Any) -> None:
            while self.closed.is_set():
                self.waiting.set()
                load._check()
                load._stopped.wait(0.01)
            download(load, *more)

        monkeypatch.setattr(TableLoad, "_download_once", slowly)


def started(world: PushedWorld) -> InProcessDriver:
    """A driver that has processed a message of each key, with the first versions, and committed."""
    world.push(1)
    driver = world.started(job__retry__max=10)
    world.put()
    until(driver, lambda: not lag(driver))
    driver.loop.commit()
    return driver


def check(world: PushedWorld, messages: int) -> None:
    """No output shows two versions of a table, and every message has one."""
    found = world.output()
    assert {tuple(each) for each in found} <= {(p, n, p) * 2 for p in (1, 2) for n in (1, 2)}
    assert len(found) >= messages


def finish(world: PushedWorld, driver: InProcessDriver) -> None:
    """The new versions come into use, and all of what was put is in the output."""
    keep_busy(driver, world, {"planes": 2, "names": 2})
    until(driver, lambda: not lag(driver))
    world.put()
    before = len(world.output())
    until(driver, lambda: not lag(driver))
    assert sorted(map(tuple, world.output()))[before:] == [(2,) * 6] * len(KEYS)
    check(world, world.messages)


def test_a_container_ends_while_it_loads(world: PushedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, gate = started(world), Gate(monkeypatch)
    gate.closed.set()
    world.push(2)
    until(driver, gate.waiting.is_set)
    driver.fleet.lose(1)
    until(driver, lambda: driver.loop.epoch > driver.job.claim.epoch)
    assert in_use(driver) == {"planes": 1, "names": 1}
    gate.closed.clear()
    finish(world, driver)


def test_a_driver_ends_while_containers_load(world: PushedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, gate = started(world), Gate(monkeypatch)
    gate.closed.set()
    world.push(2)
    until(driver, gate.waiting.is_set)
    driver.close()
    gate.closed.clear()
    second = world.started()
    assert in_use(second) == {"planes": 2, "names": 2}
    finish(world, second)


def is_loaded(driver: InProcessDriver) -> bool:
    """True if every container has the second version of both tables."""
    for task in range(3):
        epoch = driver.fleet.container_of(task).current
        assert epoch is not None
        states = {(each.table, each.version): each.state for each in epoch.wings.of(PushedTables).progress()}
        if states.get(("planes", 2)) != "loaded" or states.get(("names", 2)) != "loaded":
            return False
    return True


def at(driver: InProcessDriver, step: str, act: Any) -> None:
    """Act once: when the versions are loaded and not in use, or at this step of the first batch that reads them."""
    done = threading.Event()

    def hook(name: str) -> None:
        if done.is_set():
            return
        swapped = in_use(driver) == {"planes": 2, "names": 2}
        if (step == "loaded" and name == "tables" and is_loaded(driver)) or (name == step and swapped):
            done.set()
            act()

    driver.fleet.at = driver.runner.at = hook


@pytest.mark.few(2)
@pytest.mark.parametrize("step", ["loaded", "start-run", "stage 1", "sink", "end"])
def test_a_container_ends_around_the_swap(world: PushedWorld, step: str) -> None:
    driver = started(world)
    world.push(2)
    at(driver, step, lambda: driver.fleet.lose(1))
    finish(world, driver)
    assert driver.loop.epoch > driver.job.claim.epoch


def test_a_repeated_batch_reads_the_versions_it_had(world: PushedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other versions are loaded when its first run fails at the end."""
    driver, gate = started(world), Gate(monkeypatch)
    assert driver.loop.parts.of(Tables).needed("planes") == {1}
    gate.closed.set()
    world.push(2)
    until(driver, gate.waiting.is_set)
    assert driver.loop.parts.of(Tables).needed("planes") == {1, 2}, "retention keeps both"
    failed = threading.Event()

    def fail_once(name: str) -> None:
        if name == "end" and not failed.is_set():
            failed.set()
            gate.closed.clear()
            wait_until(lambda: is_loaded(driver), "the loads", 20)
            raise RetryableError("the containers do not answer")

    driver.fleet.at = fail_once
    before = len(world.output())
    world.put()
    until(driver, lambda: not lag(driver))
    assert failed.is_set()
    assert [*map(tuple, world.output())][before:] == [(1,) * 6] * 2 * len(KEYS)
    finish(world, driver)
    assert driver.loop.parts.of(Tables).needed("planes") == {2}


class KilledError(PenstockError):
    """The driver's process ended."""


@pytest.mark.few(1)
@pytest.mark.parametrize("step", ["loaded", "stage 2", "end"])
def test_a_driver_ends_around_the_swap(world: PushedWorld, step: str) -> None:
    driver = started(world)
    world.push(2)

    def kill() -> None:
        raise KilledError("killed")

    at(driver, step, kill)
    with pytest.raises(KilledError):
        finish(world, driver)
    driver.close()
    second = world.started()
    assert in_use(second) == {"planes": 2, "names": 2}
    finish(world, second)


def test_damage_that_a_read_meets_leads_to_another_load(world: PushedWorld) -> None:
    world.push(1)
    driver = world.started()
    for table in world.folder.glob("*/planes/table-1-*/db/*.sst"):
        data = table.read_bytes()
        with table.open("r+b") as file:  # the file that is open
            file.write(bytes(len(data)))
    world.put()
    until(driver, lambda: not lag(driver))
    assert driver.loop.epoch > driver.job.claim.epoch
    assert world.output() == [[1] * 6] * 12
    assert world.folders("planes") == [f"table-1-{task}" for task in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "swaps"),
    [("rocksdb", 12), *(pytest.param(each, 200, marks=pytest.mark.slow) for each in ("rocksdb", "memory"))],
)
def test_nothing_grows_with_the_number_of_swaps(world: PushedWorld, factory: str, swaps: int) -> None:
    world.push(1)
    driver = world.started(stores__planes__factory=factory, stores__names__factory=factory)
    first = dict[str, int]()
    for version in range(2, swaps + 2):
        world.push(version)
        driver.loop.parts.of(Tables).settle()
        world.put()
        until(driver, lambda: not lag(driver))
        if version == swaps // 2:
            first = resources(world)
    assert world.output()[-1] == [swaps + 1] * 6
    # Old files are deleted in the background.
    wait_until(lambda: not grown(first, resources(world)), f"an end of growth; half-way there were {first}", 20)


def grown(first: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    return [what for what, most in first.items() if now[what] > most + 8]


def resources(world: PushedWorld) -> dict[str, int]:
    """The resources that a process may run out of."""
    gc.collect()
    views = sum(isinstance(each, TableView | TableLoad | RocksDbEngine | MemoryTable) for each in gc.get_objects())
    return {
        "threads": threading.active_count(),
        "files": psutil.Process().num_fds(),
        "on disk": sum(len(folders) + len(files) for _, folders, files in os.walk(world.folder)),
        "objects": views,
    }
