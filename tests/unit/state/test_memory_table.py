"""Pushed tables: in memory, and the folders of loaded ones on a host."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.load import load_config
from penstock.errors import CorruptError, RetryableError
from penstock.host.process import HostFolder
from penstock.state.engines.engine import EngineFailedError
from penstock.state.engines.open import open_rocksdb
from penstock.tables.store import MemoryTable, TableFolders, TableView, open_table

keys = st.binary(max_size=3)


@given(st.dictionaries(keys, st.binary(max_size=2)), st.none() | keys, st.none() | keys, keys)
def test_tables_are_sorted_maps(
    content: dict[bytes, bytes], start: bytes | None, end: bytes | None, key: bytes
) -> None:
    table = MemoryTable(sorted(content.items()))
    expected = [
        (each, value)
        for each, value in sorted(content.items())
        if (start is None or start <= each) and (end is None or each < end)
    ]
    assert list(table.scan(start, end)) == expected
    assert table.get(key) == content.get(key)
    assert all(table.get(each) == value for each, value in content.items())
    assert table.statistics() == {"keys": len(content)}
    table.close()
    assert list(table.scan(None, None)) == []


def test_the_filling_of_a_table_can_be_cancelled() -> None:
    def cancel() -> None:
        raise RetryableError("cancelled")

    with pytest.raises(RetryableError):
        MemoryTable([(b"a", b"1")], cancel)


def test_a_view_has_the_version_of_the_table_and_ends_when_it_is_released() -> None:
    damaged: list[str] = []
    view = TableView(MemoryTable([(b"a", b"1")]), "planes", 7, lambda: damaged.append("yes"))
    assert view.version == (7, 0)
    assert view.changed_since((7, 0)) == ()
    assert view.changed_since((6, 0)) is None
    assert view.get(b"a") == b"1"
    view.release()
    view.release()
    with pytest.raises(EngineFailedError, match="after its batch had ended"):
        view.get(b"a")
    with pytest.raises(EngineFailedError):
        view.scan(None, None)
    assert damaged == []


@pytest.mark.parametrize("factory", ["rocksdb", "memory"])
def test_a_table_with_other_rows_than_its_manifest_says_is_not_opened(tmp_path: Path, factory: str) -> None:
    """As after damage of the list of its files."""
    settings = load_config(overrides={"job.name": "j", "stores.planes.factory": factory}, environ={}).store("planes")
    database = open_rocksdb(settings, tmp_path / "db")
    database.load({b"a": b"1", b"b": b"2"})
    database.close()
    for rows in (1, 3):
        with pytest.raises(CorruptError, match=f"has 2 entries, and not {rows} as its manifest says"):
            open_table(settings, tmp_path / "db", rows, lambda: None)
    table = open_table(settings, tmp_path / "db", 2, lambda: None)
    assert dict(table.scan(None, None)) == {b"a": b"1", b"b": b"2"}
    table.close()


def loaded(folders: TableFolders, version: int, unit: str = "0", checksum: str = "c") -> HostFolder:
    folder = folders.make()
    (folder.path / "data").write_text(f"{version} {checksum}")
    return folders.publish(folder, version, unit, checksum)


def names(base: Path) -> list[str]:
    return sorted(path.name for path in base.iterdir())


def test_a_folder_is_found_once_it_is_published_and_by_its_checksum_only(tmp_path: Path) -> None:
    folders = TableFolders(tmp_path / "planes")
    assert folders.take(1, "0", "c") is None
    made = folders.make()
    assert folders.take(1, "0", "c") is None
    published = folders.publish(made, 1, "0", "c")
    published.release()
    found = folders.take(1, "0", "c")
    assert found is not None
    assert found.path == tmp_path / "planes" / "table-1-0"
    assert folders.take(1, "0", "another") is None
    assert folders.take(1, "all", "c") is None


def test_of_two_that_load_the_same_one_is_kept(tmp_path: Path) -> None:
    folders = TableFolders(tmp_path)
    first, second = folders.make(), folders.make()
    assert folders.publish(first, 1, "all", "c").path == folders.publish(second, 1, "all", "c").path
    assert names(tmp_path) == ["table-1-all"]


def test_a_folder_of_another_manifest_gives_way_to_the_right_one(tmp_path: Path) -> None:
    folders = TableFolders(tmp_path)
    old = loaded(folders, 1, checksum="old")
    new = loaded(folders, 1, checksum="new")
    assert (new.path / "data").read_text() == "1 new"
    assert (old.path / "data").exists() or next(tmp_path.glob("dropped-*/data")).read_text() == "1 old"
    old.release()
    folders.clean((1,), 0)
    assert names(tmp_path) == ["table-1-0"]


def test_what_nobody_uses_goes_but_for_the_newest(tmp_path: Path) -> None:
    folders, other = TableFolders(tmp_path), TableFolders(tmp_path)
    held = [loaded(folders, version) for version in (1, 2, 3, 4, 5)]
    loaded(folders, 2, "1").release()
    for folder in held[1:]:
        folder.release()
    other.clean((3,), 1)
    assert names(tmp_path) == ["table-1-0", "table-3-0", "table-5-0"]
    held[0].release()
    other.clean((), 1)
    assert names(tmp_path) == ["table-5-0"]


def test_what_was_left_half_made_goes_once_its_process_is_gone(tmp_path: Path) -> None:
    folders = TableFolders(tmp_path)
    alive, dead = folders.make(), folders.make()
    dead.release()  # as the end of a process does
    (tmp_path / "dropped-1").mkdir()
    folders.clean((), 1)
    assert names(tmp_path) == [alive.path.name]


def test_a_damaged_folder_is_not_taken_and_goes_when_its_readers_have_closed_it(tmp_path: Path) -> None:
    folders = TableFolders(tmp_path)
    loaded(folders, 1).release()
    mine, others = folders.take(1, "0", "c"), folders.take(1, "0", "c")
    assert mine is not None
    assert others is not None
    folders.set_aside(mine)
    assert folders.take(1, "0", "c") is None
    folders.drop(mine)
    assert len(names(tmp_path)) == 1  # others still read it
    others.release()
    again = loaded(folders, 1)
    folders.clean((1,), 1)
    assert names(tmp_path) == [again.path.name]


def test_a_folder_without_its_marker_is_not_taken(tmp_path: Path) -> None:
    folders = TableFolders(tmp_path)
    loaded(folders, 1).release()
    (tmp_path / "table-1-0" / "complete.json").write_bytes(b"{")
    assert folders.take(1, "0", "c") is None
    loaded(folders, 1)
    assert names(tmp_path) == ["table-1-0"]


def test_only_one_loads_a_unit_and_the_wait_can_be_cancelled(tmp_path: Path) -> None:
    folders, cancelled = TableFolders(tmp_path), threading.Event()
    with folders.loading("all", cancelled):
        cancelled.set()
        with pytest.raises(RetryableError, match="cancelled"), TableFolders(tmp_path).loading("all", cancelled):
            pass
    with folders.loading("all", cancelled):
        pass
