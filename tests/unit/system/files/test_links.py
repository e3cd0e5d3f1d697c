"""From the side of somebody who may write an input folder, and wants to see other files of the job's user."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import NotFoundError, PenstockError, SystemRefusedError
from penstock.system.files.folders import Folder
from tests.support.streams.folder import Room

pytestmark = pytest.mark.attack

SECRET = b'{"secret":"of the job\'s user"}\n'


@pytest.fixture
def private(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "key.json").write_bytes(SECRET)
    return folder


def by_way_of_another(room: Room, private: Path) -> None:
    (room.folder / ".hidden").symlink_to(private / "key.json")
    (room.folder / "a.json").symlink_to(room.folder / ".hidden")


def to_a_name_that_begins_alike(room: Room, private: Path) -> None:
    beside = private.rename(room.folder.with_name("rides-private"))
    (room.folder / "more").symlink_to(beside)


ATTACKS: dict[str, Callable[[Room, Path], None]] = {
    "a file": lambda room, private: (room.folder / "a.json").symlink_to(private / "key.json"),
    "a folder": lambda room, private: (room.folder / "day=1").symlink_to(private),
    "a folder of a partition that looks hidden": lambda room, private: (room.folder / "_k=1").symlink_to(private),
    "by way of a folder above": lambda room, private: (room.folder / "up").symlink_to("../../private"),
    "a link to a link": by_way_of_another,
    "a folder whose name begins alike": to_a_name_that_begins_alike,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_link_that_leads_out_is_refused_by_name(room: Room, private: Path, attack: str) -> None:
    room.put("good.json", b'{"n":1}\n')
    ATTACKS[attack](room, private)
    with pytest.raises(SystemRefusedError, match=r"leads out of its folder.*set `systems.<name>.links` to `follow`"):
        room.all()


@pytest.mark.parametrize("when", ["after it was listed", "between two looks of a reader"])
def test_files_turned_links_show_nothing(room: Room, private: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """With the size and the time of the file that it takes the place of."""
    path = room.put("a.json", SECRET.replace(b"of", b"no"))
    stat = path.stat()
    os.utime(private / "key.json", (stat.st_mtime, stat.st_mtime))
    ends = room.ends()

    def attack() -> None:
        path.unlink()
        path.symlink_to(private / "key.json")

    opened = Folder._opened

    def opening(*arguments: Any) -> Any:
        if when != "after it was listed" and not path.is_symlink():
            found = opened(*arguments)
            place = found.__enter__()
            attack()
            assert not os.path.samefile(place[1], path), "it is the file that was looked at"
            found.__exit__(None, None, None)
        return opened(*arguments)

    if when == "after it was listed":
        attack()
    monkeypatch.setattr(Folder, "_opened", opening)
    with pytest.raises(SystemRefusedError, match="leads out of its folder"):
        room.rows(ends)


def test_a_pipe_keeps_nobody_waiting(room: Room) -> None:
    path = room.put("a.json", b'{"n":1}\n')
    ends = room.ends()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(PenstockError, match=r"a.json"):
        room.rows(ends)
    assert room.ends() == ends


def test_links_inside_are_followed_and_dead_ones_are_named(room: Room) -> None:
    room.put("day=1/a.json", b'{"n":1}')
    (room.folder / "day=2").symlink_to("day=1")
    (room.folder / ".old").symlink_to("/etc")
    (room.folder / "_tmp").symlink_to("/etc")
    ends = room.ends()
    assert sorted(map(str, room.all())) == ["{'n': 1, 'day': '1'}", "{'n': 1, 'day': '2'}"]
    (room.folder / "day=1" / "a.json").unlink()
    with pytest.raises(NotFoundError, match=r"a.json"):
        room.rows(ends)
