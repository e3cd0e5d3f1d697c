"""Versions of pushed tables: which one the next batch reads, in all tasks and stages at once."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby, product
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockTimeoutError
from penstock.tables.driver import LoadState, Swap, SwapFacts, Tables, decide_swap
from penstock.tables.store import TableFolders
from penstock.testing.in_process import InProcessDriver
from penstock.wire.protocol import EndBatch
from tests.support.jobs.home import wait_until
from tests.support.world.pushed_job import PushedWorld, in_use, keep_busy, lag, until


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PushedWorld]:
    monkeypatch.setattr("penstock.tables.driver._RETRY_SECONDS", 0.2)
    monkeypatch.setattr("penstock.tables.driver._LOOK_SECONDS", 0.0)
    world = PushedWorld(tmp_path)
    yield world
    world.close()


class Watched:
    """At each end of a batch, its outputs are of the versions that the batch names: an oracle apart from all that
    chooses and loads them."""

    def __init__(self, world: PushedWorld, driver: InProcessDriver) -> None:
        self.tables: list[Mapping[str, int]] = []
        """One for each batch that has ended."""
        self._world = world
        self._seen = Counter(map(tuple, world.output()))
        self._ask, driver.fleet.ask = driver.fleet.ask, self._watch  # type: ignore[method-assign]

    def _watch(self, call: Any, epoch: int, request: Any, **more: Any) -> Any:
        if isinstance(request, EndBatch):
            tables = request.batch.tables
            now = Counter(map(tuple, self._world.output()))
            assert set(now - self._seen) == {(tables["planes"], tables["names"], tables["planes"]) * 2}
            self._seen = now
            self.tables.append(tables)
        return self._ask(call, epoch, request, **more)


def downloaded(driver: InProcessDriver) -> float:
    found = driver.fleet.metrics()
    return sum(found.total("tables-bytes-downloaded", group=f"store.{table}") for table in ("planes", "names"))


def raising(error: BaseException) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise error

    return call


def test_the_first_version_is_loaded_before_the_first_batch(world: PushedWorld) -> None:
    world.push(1)
    driver = world.started()
    assert [str(table) for table in driver.board.wings["tables"]] == ["version 1", "version 1"]
    assert world.folders("planes") == ["table-1-0", "table-1-1", "table-1-2"]
    assert world.folders("names") == ["table-1-all"]


def test_a_start_without_a_version_waits_and_then_names_the_table(world: PushedWorld) -> None:
    world.push_names(1)
    driver = world.driver(side__inputs__bootstrap__timeout__ms=100)
    with pytest.raises(PenstockTimeoutError, match=r"`planes` \(none was published\).*bootstrap\.timeout\.ms=100"):
        driver.loop.start()
    later, shown = world.driver(), []

    def push() -> None:
        wait_until(lambda: later.board.phase == "bootstrapping", "the start waits for the table")
        shown.append((later.board.phase, later.board.told(later.board.phase_of)))
        world.push_planes(1)

    threading.Thread(target=push).start()
    later.loop.start()
    assert shown == [("bootstrapping", None)], "what is loaded has a table, and is no progress of the phase"
    assert later.board.wings["tables"][0].in_use == 1


def test_a_version_is_swapped_in_beside_and_the_one_before_stays_on_the_host(world: PushedWorld) -> None:
    world.push(1)
    driver = world.started()
    world.push_planes(2)
    until(driver, lambda: in_use(driver) == {"planes": 2, "names": 1})
    assert world.folders("planes") == [f"table-{version}-{task}" for version in (1, 2) for task in range(3)]
    world.tables.pin("planes", 1)
    until(driver, lambda: in_use(driver)["planes"] == 1)
    world.tables.pin("planes", None)
    until(driver, lambda: in_use(driver)["planes"] == 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["missing", "truncated", "damaged"])
def test_a_version_that_cannot_be_loaded_is_not_used_and_is_tried_again(
    world: PushedWorld, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    world.push(1)
    driver = world.started()
    world.push_planes(2)
    key = world.file_of("planes", 2, task=1)
    data = world.objects.get(key)
    world.objects.delete(key)
    if how != "missing":
        world.objects.put_if_absent(key, data[:-1] if how == "truncated" else bytes(len(data)))
    until(driver, lambda: driver.board.wings["tables"][0].failure)
    expected = {"missing": "is missing", "truncated": f"has {len(data) - 1} bytes", "damaged": "its hash differs"}[how]
    assert expected in driver.board.wings["tables"][0].failure
    assert "version 1, loading version 2" in str(driver.board.wings["tables"][0])
    assert "batches continue with version 1" in caplog.text
    assert in_use(driver) == {"planes": 1, "names": 1}
    until(driver, lambda: not any(name.startswith("making") for name in world.folders("planes")))
    world.objects.delete(key)
    world.objects.put_if_absent(key, data)
    until(driver, lambda: in_use(driver)["planes"] == 2)


def test_a_version_that_failed_gives_way_to_a_newer_one_at_once(world: PushedWorld) -> None:
    world.push(1)
    driver = world.started()
    world.push_planes(2)
    world.objects.delete(world.file_of("planes", 2, task=0))
    until(driver, lambda: driver.board.wings["tables"][0].failure)
    world.push_planes(3)
    driver.loop.parts.of(Tables).settle()
    assert in_use(driver)["planes"] == 3


def test_a_full_disk_is_a_clear_failure(world: PushedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.push(1)
    driver = world.started()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(TableFolders, "make", raising(full))
    world.push_planes(2)
    until(driver, lambda: driver.board.wings["tables"][0].failure)
    assert "No space left on device. Free space there" in driver.board.wings["tables"][0].failure
    assert in_use(driver)["planes"] == 1


def test_a_restart_and_a_rewind_open_what_is_on_the_host(world: PushedWorld) -> None:
    world.push(1)
    first = world.started()
    read = downloaded(first)
    assert read > 0
    first.fleet.lose(1)
    until(first, lambda: first.loop.epoch > first.job.claim.epoch)
    assert in_use(first) == {"planes": 1, "names": 1}
    assert downloaded(first) == read
    first.close()
    second = world.started()
    assert downloaded(second) == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["truncated", "zeroed", "emptied"])
def test_a_damaged_folder_is_loaded_again(world: PushedWorld, how: str) -> None:
    world.push(1)
    first = world.started()
    first.close()
    (folder,) = world.folder.glob("*/planes/table-1-0")
    if how == "emptied":
        for path in (folder / "db").iterdir():
            path.unlink()
    else:
        (table,) = (folder / "db").glob("*.sst")
        data = table.read_bytes()
        table.write_bytes(data[:-10] if how == "truncated" else bytes(len(data)))
    second = world.started()
    assert 0 < downloaded(second) < downloaded(first)
    assert in_use(second) == {"planes": 1, "names": 1}


def test_after_a_rewind_a_later_version_is_used_if_the_one_before_is_gone(world: PushedWorld) -> None:
    world.push(1)
    driver = world.started()
    world.push_planes(2)
    world.objects.delete(world.file_of("planes", 1, task=0))
    for path in world.folder.glob("*/planes/table-1-*"):
        shutil.rmtree(path)
    driver.fleet.lose(0)
    until(driver, lambda: driver.loop.epoch > driver.job.claim.epoch)
    assert in_use(driver) == {"planes": 2, "names": 1}


def test_the_output_of_a_batch_is_of_one_version_of_each_table_in_every_task_and_stage(world: PushedWorld) -> None:
    world.push(1)
    driver = world.started()
    world.put(2)
    until(driver, lambda: len(world.output()) == 24)
    assert world.output() == [[1] * 6] * 24
    world.push(2)
    until(driver, lambda: in_use(driver) == {"planes": 2, "names": 2})
    world.put()
    until(driver, lambda: len(world.output()) == 36)
    assert sorted(world.output()) == [[1] * 6] * 24 + [[2] * 6] * 12


def test_batches_run_while_versions_come_and_go(world: PushedWorld) -> None:
    """Every message is looked up in both tables, in two stages and three tasks."""
    world.push(1)
    driver = world.started()
    watched = Watched(world, driver)
    for version in range(2, 7):
        world.push(version)
        keep_busy(driver, world, {"planes": version, "names": version})
    world.tables.pin("planes", 3)
    keep_busy(driver, world, {"planes": 3, "names": 6})
    world.put()
    until(driver, lambda: watched.tables[-1] == {"planes": 3, "names": 6} and not lag(driver))
    planes = [each["planes"] for each in watched.tables]
    assert [version for version, _ in groupby(planes)] == [1, 2, 3, 4, 5, 6, 3]
    assert len(world.output()) == 12 * len(watched.tables)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_a_random_life(world: PushedWorld, seed: int) -> None:
    """Versions come, are chosen and given up, containers are lost and drivers end: every batch is of what it names."""
    chance = random.Random(seed)
    world.push(1)
    newest = 1
    driver = world.started(job__retry__max=100)
    watched = Watched(world, driver)
    for _ in range(16):
        match chance.choice(["push", "push", "choose", "newest", "lose", "restart", "commit"]):
            case "push":
                newest += 1
                world.push(newest)
            case "choose":
                versions = world.versions("planes")
                world.tables.pin("planes", chance.choice(versions))
            case "newest":
                world.tables.pin("planes", None)
            case "lose":
                driver.fleet.lose(chance.randrange(3))
            case "restart":
                driver.close()
                driver = world.started(job__retry__max=100)
                watched = Watched(world, driver)
            case "commit" if not driver.fleet.any_lost:
                driver.loop.commit()
        world.put()
        for _ in range(chance.randrange(1, 4)):
            driver.loop.step()
    world.tables.pin("planes", None)
    keep_busy(driver, world, {"planes": newest, "names": newest})
    world.put()
    until(driver, lambda: not lag(driver))
    assert watched.tables[-1] == {"planes": newest, "names": newest}


@pytest.mark.parametrize(
    ("facts", "swap"),
    [
        pytest.param(SwapFacts(None), Swap(None), id="nothing is published"),
        pytest.param(SwapFacts(None, current=3, asked=3, state="loaded"), Swap(3), id="what there is stays"),
        pytest.param(SwapFacts(4), Swap(None, 4), id="the first one"),
        pytest.param(SwapFacts(4, asked=4), Swap(None), id="the first one is loading"),
        pytest.param(SwapFacts(4, asked=4, state="loaded"), Swap(4), id="the first one is loaded"),
        pytest.param(SwapFacts(4, current=4, asked=4, state="loaded"), Swap(4), id="nothing new"),
        pytest.param(SwapFacts(5, current=4, asked=4, state="loaded"), Swap(4, 5), id="a new one"),
        pytest.param(SwapFacts(5, current=4, asked=5), Swap(4), id="it is loading"),
        pytest.param(SwapFacts(5, current=4, asked=5, state="loaded"), Swap(5), id="it is loaded"),
        pytest.param(SwapFacts(6, current=4, asked=5), Swap(4), id="a newer one waits for it"),
        pytest.param(SwapFacts(6, current=4, asked=5, state="loaded"), Swap(5), id="it is used first"),
        pytest.param(SwapFacts(6, pinned=True, current=4, asked=5), Swap(4, 6), id="a chosen one does not wait"),
        pytest.param(SwapFacts(3, pinned=True, current=4, asked=5), Swap(4, 3), id="back to an older one"),
        pytest.param(SwapFacts(4, pinned=True, current=4, asked=5), Swap(4, 4), id="the other one is not wanted"),
        pytest.param(SwapFacts(3, current=4, asked=4, state="loaded"), Swap(4), id="the one in use has vanished"),
        pytest.param(SwapFacts(3, pinned=True, current=4, asked=4, state="loaded"), Swap(4, 3), id="chosen, older"),
        pytest.param(SwapFacts(5, current=4, asked=5, state="failed"), Swap(4), id="failed"),
        pytest.param(SwapFacts(5, current=4, asked=5, state="failed", may_retry=True), Swap(4, 5), id="tried again"),
        pytest.param(SwapFacts(6, current=4, asked=5, state="failed"), Swap(4, 6), id="failed, and a newer one"),
        pytest.param(SwapFacts(5, asked=4, state="failed"), Swap(None, 5), id="the first one failed, and a newer one"),
    ],
)
def test_the_next_step(facts: SwapFacts, swap: Swap) -> None:
    assert decide_swap(facts) == swap


def test_no_version_is_asked_for_twice() -> None:
    """One that failed is, once its pause is over. All facts of three versions are tried."""
    versions = (None, 1, 2, 3)
    states: tuple[LoadState, ...] = ("loading", "loaded", "failed")
    asked_for = 0
    for wanted, pinned, current, asked, state, may_retry in product(
        versions, (False, True), versions, versions, states, (False, True)
    ):
        facts = SwapFacts(wanted, pinned, current, asked, state, may_retry)
        swap = decide_swap(facts)
        assert swap.load in (None, wanted), facts
        assert swap.use in (current, asked if state == "loaded" else current), facts
        if swap.load is not None and swap.load == asked:
            assert (state, may_retry) == ("failed", True), facts
        asked_for += swap.load is not None
    assert asked_for > 100
