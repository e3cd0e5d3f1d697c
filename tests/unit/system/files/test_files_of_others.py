"""Penstock writes to no folder that others write: their files would be hidden behind its manifests."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import ConfigError, IncompatibleError
from penstock.system.base import Progress, WriterIdentity
from penstock.system.files.system import FilesSystem
from tests.support.streams.folder import STREAM, Room, jsonl, of

JOB = WriterIdentity("job", 1)
AT = of(0, 0, 0).ssp
RECORD = (0, None, b'{"n":7}')
SCHEMA = {"schema": "n BIGINT"}


def append(system: FilesSystem) -> None:
    with closing(system.writer(None)) as writer:
        writer.append(AT, [RECORD])


def mark(system: FilesSystem) -> None:
    with closing(system.writer(JOB)) as writer, writer.begin() as transaction:
        transaction.append(AT, [RECORD])
        transaction.mark(AT, Progress(1, 0))


def progress(system: FilesSystem) -> None:
    with closing(system.writer(JOB)) as writer:
        writer.progress([AT])


def fence(system: FilesSystem) -> None:
    with closing(system.admin()) as admin:
        admin.fence(STREAM, JOB)


def show(system: FilesSystem) -> None:
    with closing(system.admin()) as admin:
        admin.published(STREAM, "job", 3)


def check(system: FilesSystem) -> None:
    with closing(system.admin()) as admin:
        admin.check_writable(STREAM)


def create(system: FilesSystem) -> None:
    with closing(system.admin()) as admin:
        admin.create_stream(STREAM, 2)


WRITES = [append, mark, progress, fence, show, check]
FOREIGN = ["hour-0.csv", "part-0.json", "a-b-7", "day=1/hour.jsonl", "_hidden=1/x.parquet", "README", "empty.csv"]


def paths(home: Path) -> set[str]:
    return {os.path.relpath(each, home) for each in home.rglob("*")}


@pytest.mark.parametrize("write", [*WRITES, create])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_of_others_is_not_written(room: Room, write: Callable[[FilesSystem], None], name: str) -> None:
    room.put(name, b"" if name.startswith("empty") else jsonl([{"n": 1}]))
    before = paths(room.home)
    with pytest.raises(ConfigError, match="that Penstock has not written") as refused:
        write(room.system(**SCHEMA))
    assert name in str(refused.value)
    assert "Name another stream" in str(refused.value)
    assert paths(room.home) == before


@pytest.mark.parametrize("write", WRITES)
def test_nor_one_whose_files_were_moved_once_listed(room: Room, write: Callable[[FilesSystem], None]) -> None:
    file = room.put("a.json", jsonl([{"n": 1}]))
    room.ends()
    file.rename(room.home / "archived")
    before = paths(room.home)
    with pytest.raises(ConfigError, match=r"held 1 file that Penstock has not written \(`a.json`\)"):
        write(room.system(**SCHEMA))
    assert paths(room.home) == before


@pytest.mark.parametrize("write", [append, mark, progress, fence, check])
@pytest.mark.parametrize("options", [{}, {"order": "name", **SCHEMA}, {"format": "csv", **SCHEMA}])
def test_what_the_configuration_cannot_write_is_refused_before_anything_is_written(
    room: Room, write: Callable[[FilesSystem], None], options: dict[str, str]
) -> None:
    before = paths(room.home)
    with pytest.raises(ConfigError, match=r"need a schema|outputs"):
        write(room.system(**options))
    assert paths(room.home) == before


@pytest.mark.parametrize("write", WRITES)
def test_a_folder_that_penstock_has_begun_goes_on(room: Room, write: Callable[[FilesSystem], None]) -> None:
    """Files that a commit that died has left are no files of others, nor are those that nobody reads."""
    system = room.system(**SCHEMA)
    create(system)
    (room.folder / "_SUCCESS").write_bytes(b"")
    (room.folder / ".note.csv").write_bytes(b"n\n1\n")
    fence(system)
    room.put(f"part-00000-{0:020d}-0123456789ab.parquet", b"orphan")
    write(system)
    append(system)
    with closing(system.admin()) as admin:
        admin.published(STREAM, "job", 1)
    assert {"n": 7} in room.all(**SCHEMA)
    assert {"n": 7} in room.all(**SCHEMA, listing=room.home / "others"), "the orphan is no file of others"


def test_a_listed_folder_of_others_may_be_created_again(room: Room) -> None:
    room.put("a.json", jsonl([{"n": 1}]))
    room.ends(partitions=2)
    with closing(room.system(partitions=2).admin()) as admin:
        assert not admin.create_stream(STREAM, 2), "it exists"
    assert room.all() == [{"n": 1}]


@pytest.mark.parametrize("order", [{}, {"order": "name"}])
def test_a_folder_with_both_is_refused_to_readers(room: Room, order: dict[str, str]) -> None:
    """As earlier versions of Penstock have made some."""
    append(room.system(**SCHEMA))
    room.put("day=1/hour-0.csv", b"n\n1\n")
    new = {"listing": room.home / "others", **order}
    with pytest.raises(IncompatibleError, match="holds 1 file of others as well") as refused:
        room.ends(**new)
    assert "`day=1/hour-0.csv`" in str(refused.value)
    assert "Move these to another folder" in str(refused.value)
    assert not (room.home / "others").exists() or not list((room.home / "others").rglob("log/*"))
    (room.folder / "day=1" / "hour-0.csv").unlink()
    if not order:
        assert room.all(**new) == [{"n": 7}]


def test_a_folder_that_was_listed_with_files_of_others_says_so(room: Room) -> None:
    file = room.put("hour-0.csv", b"n\n1\n")
    room.ends()
    hidden = file.rename(room.home / "archived")
    append(room.system(**SCHEMA, listing=room.home / "others"))
    with pytest.raises(IncompatibleError, match=r"Name another `systems\.files\.listing`"):
        room.ends()
    hidden.rename(file)
    with pytest.raises(IncompatibleError, match="holds 1 file of others as well"):
        room.ends()
