"""Side stores with `stores.<s>.backup.factories=blob`: another host begins with the copy of the last commit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock as ps
from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError
from penstock.testing.in_process import InProcessDriver
from tests.support.world.side_jobs import SideWorld, asked, content, leave, planes, settle

PLANES = SystemStreamPartition("m", "planes", 0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SideWorld]:
    world = SideWorld(tmp_path)
    world.config["job.logged.store.base.dir"] = str(tmp_path / "host")
    world.config["stores.planes.backup.factories"] = "blob"
    world.create("planes")
    yield world
    world.close()


def _read(world: SideWorld) -> list[object]:
    driver = world.started(planes())
    settle(driver)
    found = asked(world, driver, "N0", "N1", "N2", "N3")
    leave(driver)
    return found


def test_another_host_begins_with_the_copy(world: SideWorld, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The stream no longer has what only the copy can have brought."""
    caplog.set_level("INFO")
    world.put("planes", 0, [(f"N{number}", number) for number in range(3000)])
    assert _read(world) == [[0], [1], [2], [3]]
    world.put("planes", 0, [("N1", "new"), ("N2", None)])
    assert _read(world) == [[0], ["new"], [None], [3]]
    world.system.truncate(PLANES, 3002)
    shutil.rmtree(tmp_path / "host")
    world.put("planes", 0, [("N3", "newer")])
    assert _read(world) == [[0], ["new"], [None], ["newer"]]
    assert "store `planes` of task 0 was restored from its backup" in caplog.text
    caplog.clear()
    for manifest in (tmp_path / "host").glob("*/planes/side-0/MANIFEST-*"):
        manifest.unlink()
    assert _read(world) == [[0], ["new"], [None], ["newer"]]
    assert "on this host" in caplog.text
    assert "was restored from its backup" in caplog.text
    assert not list((tmp_path / "host").glob("*/planes/0/*"))


def test_a_copy_that_cannot_be_continued_is_not_used(world: SideWorld, tmp_path: Path) -> None:
    """The stream was deleted and created again."""
    world.put("planes", 0, [("N1", "old"), ("N2", "old")])
    assert _read(world) == [[None], ["old"], ["old"], [None]]
    shutil.rmtree(tmp_path / "host")
    world.admin.delete_stream("planes")
    world.create("planes")
    world.put("planes", 0, [("N2", "new"), ("N3", "new"), ("N3", "newer")])
    assert _read(world) == [[None], [None], ["new"], ["newer"]]


def test_a_backup_that_is_damaged_is_not_used(world: SideWorld, tmp_path: Path) -> None:
    world.put("planes", 0, [(f"N{number}", number) for number in range(3000)])
    assert _read(world) == [[0], [1], [2], [3]]
    shutil.rmtree(tmp_path / "host")
    driver = world.driver(planes())
    for key in _blobs(driver):
        driver.job.objects.delete(key)
        driver.job.objects.put_if_absent(key, b"damaged")
    driver.close()
    assert _read(world) == [[0], [1], [2], [3]]


def _blobs(driver: InProcessDriver) -> list[str]:
    return [key for key in driver.job.objects.list("") if "/planes/" in key]


def test_a_commit_uploads_what_has_changed_only(world: SideWorld) -> None:
    driver = world.started(planes())
    world.put("planes", 0, [("N1", 1)])
    settle(driver)
    asked(world, driver, "N1")
    driver.loop.commit()
    before = _blobs(driver)
    assert before
    asked(world, driver, "N1")
    driver.loop.commit()
    assert _blobs(driver) == before
    world.put("planes", 0, [("N1", 2)])
    settle(driver)
    assert content(driver, "planes") == {b"N1": b"2"}
    asked(world, driver, "N1")
    driver.loop.commit()
    assert set(_blobs(driver)) - set(before)


def test_what_no_checkpoint_needs_is_deleted(world: SideWorld) -> None:
    """In the course of many commits, and what an epoch left that died before its record."""
    orphan = ""
    for start in range(3):
        driver = world.started(planes())
        if start == 1:
            dead = next(key for key in _blobs(driver) if key.endswith(".index"))
            orphan = f"{dead.rpartition('/')[0]}/1-1700000000000-1-{'0' * 64}"
            driver.job.objects.put_if_absent(orphan, b"never in a record")
        for number in range(12):
            world.put("planes", 0, [(f"N{key}", f"{start} {number}") for key in range(1500)])
            settle(driver)
            assert asked(world, driver, "N7") == [[f"{start} {number}"]]
            driver.loop.commit()
        kept = _blobs(driver)
        leave(driver)
        assert len(kept) < 120, "ten checkpoints are retained"
    assert orphan
    assert orphan not in kept


@pytest.mark.parametrize(
    ("broadcast", "factory", "message"),
    [
        (False, "memory", "store `planes` is in memory, which is not backed up"),
        (True, "rocksdb", "store `planes` has everything in each container, which is not backed up"),
    ],
)
def test_what_cannot_be_backed_up_is_refused(world: SideWorld, broadcast: bool, factory: str, message: str) -> None:
    app = ps.StreamApplication("side")
    app.store("planes", side_inputs=["m.planes"], broadcast=broadcast)
    app.input("m.in").send_to(app.output("m.out"))
    world.config["stores.planes.factory"] = factory
    with pytest.raises(ConfigError, match=message):
        world.driver(app)
