"""Folders of side stores: they outlive who uses them, one process at a time has one, and damage is not met twice."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import multiprocessing.synchronize
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.config import load_config
from penstock.config.settings import StoreSettings
from penstock.errors import PenstockError
from penstock.side.engine import SidePositions
from penstock.side.folders import (
    OpenedSide,
    ReuseTarget,
    SideFolder,
    SideFolders,
    SideRebuild,
    SideReuse,
    emptied,
    open_side_engine,
    remove_others,
)
from penstock.state.engines.engine import EngineFailedError
from penstock.system.contract.messages import PartitionOffsets

SSP = SystemStreamPartition("local", "planes", 3)
NOW_MS = 10_000_000
WANTED = ReuseTarget("made so", {SSP: PartitionOffsets(0, 100_000)}, {SSP: 0}, {SSP.system_stream: "uid"})


@pytest.fixture
def folders(tmp_path: Path) -> SideFolders:
    return SideFolders(tmp_path / "job", 3, "container-1")


@pytest.fixture
def settings() -> StoreSettings:
    small = {"stores.rocksdb.block.cache.bytes": "1MB", "stores.rocksdb.write.buffer.bytes": "1MB"}
    return load_config(overrides={"job.name": "j", **small}, environ={}).store("planes")


def at(offset: int) -> SidePositions:
    return SidePositions({SSP: offset}, {SSP.system_stream: "uid"}, "made so", True, NOW_MS)


class Opener:
    def __init__(self, settings: StoreSettings, folders: SideFolders) -> None:
        self.settings, self.folders = settings, folders
        self.opened: list[OpenedSide] = []

    def __call__(self, task: int | None = 3, wanted: ReuseTarget = WANTED) -> OpenedSide:
        opened = open_side_engine(
            self.settings, self.folders, task, wanted, now_ms=NOW_MS, max_age_ms=60_000, wait_s=0.1
        )
        self.opened.append(opened)
        return opened


@pytest.fixture
def open_side(settings: StoreSettings, folders: SideFolders) -> Iterator[Opener]:
    opener = Opener(settings, folders)
    yield opener
    for opened in opener.opened:
        opened.close()


def test_content_is_used_again(open_side: Opener, folders: SideFolders) -> None:
    first = open_side()
    assert first.decision == SideRebuild("nothing was kept yet", expected=True)
    first.engine.write({b"a": b"1"}, at(7))
    first.close()
    first.close()
    again = open_side()
    assert again.decision == SideReuse()
    assert (again.engine.positions, again.engine.get(b"a")) == (at(7), b"1")
    assert again.folder is not None
    assert again.folder.path == folders.of_task("planes", 3)


def test_content_that_cannot_be_continued_is_removed(open_side: Opener, caplog: pytest.LogCaptureFixture) -> None:
    first = open_side()
    first.engine.write({b"a": b"1"}, at(7))
    first.close()
    second = open_side(wanted=replace(WANTED, complete_from={SSP: 8}))
    assert (second.engine.positions, list(second.engine.scan(None, None))) == (SidePositions(), [])
    assert "store `planes`" in caplog.text
    assert "offset 7 of `local.planes.3`, and what followed up to 8 was deleted or compacted" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_used_folder_is_left_alone(open_side: Opener, folders: SideFolders, caplog: pytest.LogCaptureFixture) -> None:
    first = open_side()
    first.engine.write({b"a": b"1"}, at(7))
    second = open_side()
    assert "in use by another process" in caplog.text
    assert list(second.engine.scan(None, None)) == []
    second.engine.write({b"b": b"1"}, at(1))
    second.close()
    assert first.engine.get(b"a") == b"1"
    first.close()
    assert open_side().engine.get(b"a") == b"1"
    assert {path.name for path in (folders.base / "planes").iterdir()} == {"side-3", "side-3.lock"}


def test_each_container_has_a_folder_of_what_all_tasks_have(open_side: Opener) -> None:
    opened = [open_side(task=None) for _ in range(3)]
    for number, each in enumerate(opened):
        each.engine.write({b"%d" % number: b""}, at(number + 1))
    opened[1].close()
    again = open_side(task=None)
    assert again.decision == SideReuse()
    assert again.engine.get(b"1") == b""


def _hold(path: Path, ready: multiprocessing.synchronize.Event) -> None:
    folder = SideFolder.lock_beside(path)
    if folder is not None:
        ready.set()
    multiprocessing.Event().wait()


def test_a_process_that_died_holds_nothing(open_side: Opener, folders: SideFolders) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold, args=(folders.of_task("planes", 3), ready), daemon=True)
    process.start()
    assert ready.wait(60)
    assert SideFolder.lock_beside(folders.of_task("planes", 3)) is None
    process.kill()
    process.join(60)
    opened = open_side()
    assert opened.folder is not None
    assert opened.folder.path == folders.of_task("planes", 3)


def test_memory_has_no_folder(settings: StoreSettings, folders: SideFolders) -> None:
    opener = Opener(settings.put(StoreSettings.factory, "memory"), folders)
    opened = opener()
    opened.engine.write({b"a": b"1"}, at(7))
    opened.close()
    again = opener()
    assert isinstance(again.decision, SideRebuild)
    assert again.engine.positions == SidePositions()
    assert not folders.base.exists()
    again.close()


@pytest.mark.parametrize("read", ["get", "scan", "newest", "newest scan"])
def test_a_damaged_block_is_met_once(open_side: Opener, read: str, caplog: pytest.LogCaptureFixture) -> None:
    """Opening does not look at it. The first read that does fails, and the next opening begins with nothing."""
    first = open_side()
    rng = random.Random(1)
    entries = {b"%06d" % number: rng.randbytes(100) for number in range(5000)}
    first.engine.load(entries, at(1))
    first.engine.write({}, at(2))  # where the positions are, nothing is damaged
    first.close()
    assert first.folder is not None
    largest = max(first.folder.path.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[100_000:100_040] = bytes(40)
    largest.write_bytes(data)
    second = open_side()
    assert second.decision == SideReuse()
    view = second.engine.view()
    reads: dict[str, Callable[[], object]] = {
        "get": lambda: [view.get(key) for key in entries],
        "scan": lambda: list(view.scan(None, None)),
        "newest": lambda: [second.engine.get(key) for key in entries],
        "newest scan": lambda: list(second.engine.scan(None, None)),
    }
    with pytest.raises(PenstockError if read.startswith("newest") else EngineFailedError, match="orruption"):
        reads[read]()
    second.close()
    third = open_side()
    assert third.decision == SideRebuild(
        "it was found to be damaged, or to lack messages that its streams no longer have"
    )
    assert list(third.engine.scan(None, None)) == []
    third.engine.write({b"a": b"1"}, at(3))
    third.close()
    assert open_side().decision == SideReuse()


@pytest.mark.parametrize("harm", ["truncated", "missing", "no manifest"])
def test_files_that_do_not_open_are_made_again(open_side: Opener, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    first = open_side()
    first.engine.load({b"%06d" % number: b"v" * 50 for number in range(3000)}, at(1))
    first.close()
    assert first.folder is not None
    table = next(first.folder.path.glob("*.sst"))
    match harm:
        case "truncated":
            table.write_bytes(table.read_bytes()[:1000])
        case "missing":
            table.unlink()
        case _:
            next(first.folder.path.glob("MANIFEST-*")).unlink()
    second = open_side()
    assert isinstance(second.decision, SideRebuild)
    assert "it is damaged" in caplog.text
    second.engine.write({b"a": b"1"}, at(1))
    second.close()
    assert open_side().decision == SideReuse()


def test_a_folder_that_was_being_removed(open_side: Opener) -> None:
    """The process died in between: files that remain do not count as content."""
    first = open_side()
    first.engine.write({b"a": b"1"}, at(1))
    first.close()
    assert first.folder is not None
    first.folder.path.rename(first.folder.path.with_name("side-3.leaving"))
    second = open_side()
    assert list(second.engine.scan(None, None)) == []
    assert not first.folder.path.with_name("side-3.leaving").exists()


def test_folders_of_stores_that_are_gone_are_removed(open_side: Opener, folders: SideFolders) -> None:
    def make(path: Path) -> None:
        folder = SideFolder.lock_beside(path)
        assert folder is not None
        path.mkdir()
        (path / "file").write_bytes(b"")
        folder.release()

    for task in (0, 3, 4):
        make(folders.of_task("planes", task))
        make(folders.of_task("gone", task))
    make(folders.of_all("planes", 0))
    make(folders.of_all("airlines", 1))
    make(folders.of_task("airlines", 1))
    make(replace(folders, epoch=2).private("planes", 3))
    (folders.base / "planes" / "0").mkdir()
    used = open_side(task=9)
    remove_others(folders, {"planes": False, "airlines": True}, 4)
    left = {str(path.relative_to(folders.base)) for path in folders.base.glob("*/*") if path.suffix != ".lock"}
    assert left == {"planes/0", "planes/side-0", "planes/side-3", "planes/side-9", "airlines/side-all-1"}
    assert not (folders.base / "gone").exists()
    assert used.engine.get(b"a") is None


def test_a_folder_is_emptied_whatever_still_holds_its_engine(open_side: Opener, settings: StoreSettings) -> None:
    opened = open_side()
    opened.engine.write({b"a": b"1"}, at(7))
    held: list[Any] = [opened.engine._engine._db.iter()]  # type: ignore[union-attr]
    held.append(held)
    del held  # a cycle, as an error makes one that was handled
    gc.disable()
    try:
        again = emptied(settings, opened)
    finally:
        gc.enable()
    assert list(again.engine.scan(None, None)) == []
    again.close()


def test_a_table_that_was_not_taken_over_goes_with_its_folder(open_side: Opener, folders: SideFolders) -> None:
    path = folders.of_task("planes", 3)
    open_side().close()
    left = path.with_name(f"{path.name}.load")
    left.write_bytes(b"a sorted file")
    open_side(wanted=replace(WANTED, fingerprint="made otherwise")).close()
    assert not left.exists()


def test_what_was_given_up_is_not_continued(open_side: Opener) -> None:
    first = open_side()
    first.engine.write({b"a": b"1"}, at(7))
    first.give_up()
    assert first.engine.get(b"a") == b"1"
    first.close()
    again = open_side()
    assert isinstance(again.decision, SideRebuild)
    assert again.engine.get(b"a") is None
