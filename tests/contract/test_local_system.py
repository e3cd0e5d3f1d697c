"""The local system keeps the contract of every system, across threads, processes, forks and pickling."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, CorruptError, IncompatibleError, NotFoundError
from penstock.system.base import OffsetRange, PartitionOffsets, System
from penstock.system.local import LocalSystem
from penstock.testing.system_contract import STREAM, SystemContract, append, messages, read, records, ssp


class TestLocalSystem(SystemContract):
    @pytest.fixture
    def system(self, tmp_path: Path) -> System:
        return LocalSystem("local", str(tmp_path / "deep" / "root"))

    def truncate(self, system: System, ssp: SystemStreamPartition, before: int) -> None:
        assert isinstance(system, LocalSystem)
        connection = sqlite3.connect(f"{system.root}/{ssp.stream}/{ssp.partition}.db")
        connection.execute("DELETE FROM message WHERE offset < ?", (before,))
        connection.commit()
        connection.close()


@pytest.fixture
def system(tmp_path: Path) -> LocalSystem:
    made = LocalSystem("local", str(tmp_path))
    made.admin().create_stream(STREAM, 2)
    return made


def test_it_is_plain_data(system: LocalSystem) -> None:
    copy = pickle.loads(pickle.dumps(system))
    assert copy == system
    assert hash(copy) == hash(system)
    assert copy.admin().partition_count(STREAM) == 2


def test_the_root_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert LocalSystem("local", "streams").root == str(tmp_path / "streams")
    assert LocalSystem("local", "~/streams").root == "/home/somebody/streams"


@pytest.mark.parametrize(("name", "root", "timeout"), [("", "/r", 1), ("a.b", "/r", 1), ("a", "", 1), ("a", "/r", -1)])
def test_bad_settings(name: str, root: str, timeout: int) -> None:
    with pytest.raises(ConfigError):
        LocalSystem(name, root, timeout)


def test_a_missing_root_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"nor does the folder .*nowhere`; create it with `penstock stream create"):
        LocalSystem("local", str(tmp_path / "nowhere")).admin().offsets("flights")


def test_what_is_on_disk(system: LocalSystem) -> None:
    folder = Path(system.root)
    assert [entry.name for entry in folder.iterdir()] == [STREAM]
    assert sorted(entry.name for entry in (folder / STREAM).iterdir()) == ["0.db", "1.db", "stream.json"]
    described = json.loads((folder / STREAM / "stream.json").read_text())
    assert described == {"format": 1, "partitions": 2, "uid": described["uid"]}
    connection = sqlite3.connect(folder / STREAM / "0.db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_many_create_at_once_and_one_makes_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        admins = [LocalSystem("local", str(tmp_path)).admin() for _ in range(8)]
        made = list(pool.map(lambda admin: admin.create_stream("s", 4), admins))
    assert sorted(made) == [False] * 7 + [True]
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_a_place_taken_by_something_else(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "notes.txt").write_text("mine")
    with pytest.raises(CorruptError, match=r"holds no `stream\.json`"):
        LocalSystem("local", str(tmp_path)).admin().create_stream("s", 1)
    assert (tmp_path / "s" / "notes.txt").read_text() == "mine"
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_a_newer_format_is_refused(system: LocalSystem) -> None:
    path = Path(system.root, STREAM, "stream.json")
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(IncompatibleError, match="format 2"):
        system.admin().offsets(STREAM)


def test_a_stream_made_anew_under_open_connections(system: LocalSystem) -> None:
    writer, admin = system.writer(None), system.admin()
    writer.append(ssp(system, 0), records(0, 5))
    assert admin.offsets(STREAM)[0].upcoming == 5
    shutil.rmtree(Path(system.root, STREAM))
    with pytest.raises(NotFoundError):
        writer.append(ssp(system, 0), records(0, 1))
    admin.create_stream(STREAM, 2)
    assert writer.append(ssp(system, 0), records(0, 1)) == 0
    assert admin.offsets(STREAM)[0] == PartitionOffsets(0, 1)


def test_one_admin_for_many_threads(system: LocalSystem) -> None:
    admin = system.admin()
    done = threading.Event()

    def look() -> int:
        last = looks = 0
        while not done.is_set() or looks == 0:
            upcoming = admin.offsets(STREAM)[0].upcoming
            assert upcoming >= last
            assert upcoming % 5 == 0
            last, looks = upcoming, looks + 1
        return looks

    with ThreadPoolExecutor(3) as pool:
        looking = [pool.submit(look) for _ in range(3)]
        try:
            for i in range(30):
                append(system, ssp(system, 0), records(5 * i, 5))
        finally:
            done.set()
        assert all(future.result() > 0 for future in looking)
    assert read(system, ssp(system, 0), 0, 150) == messages(0, 150)


def test_connections_do_not_cross_a_fork(system: LocalSystem) -> None:
    """A child forked while everything is open uses the same objects, and so does the parent afterwards."""
    admin, reader, writer = system.admin(), system.reader(), system.writer(None)
    writer.append(ssp(system, 0), records(0, 4))
    admin.offsets(STREAM)
    chunks = reader.read(OffsetRange(ssp(system, 0), 0, 4), 2)
    assert next(chunks) == messages(0, 2)

    def in_child() -> None:
        held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)]
        assert not [path for path in held if path.startswith(system.root)]
        assert next(chunks) == messages(2, 4)
        assert writer.append(ssp(system, 0), records(4, 2)) == 4
        assert admin.offsets(STREAM)[0].upcoming == 6

    child = multiprocessing.get_context("fork").Process(target=in_child)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert next(chunks) == messages(2, 4)
    assert writer.append(ssp(system, 0), records(6, 1)) == 6
    assert read(system, ssp(system, 0), 0, 7) == messages(0, 7)


def _is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(-5, 25), max_size=6), max_size=8), st.integers(0, 20))
def test_offset_at_time_as_a_scan(tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], cut: int) -> None:
    """Whatever the order of the timestamps, and also when the oldest messages are gone."""
    system = LocalSystem("local", str(tmp_path_factory.mktemp("s")))
    system.admin().create_stream(STREAM, 1)
    for batch in batches:
        append(system, ssp(system, 0), [(t, None, None) for t in batch])
    TestLocalSystem().truncate(system, ssp(system, 0), cut)
    flat = [t for batch in batches for t in batch]
    admin = system.admin()
    for wanted in range(-6, 27):
        expected = next((o for o, t in enumerate(flat) if o >= cut and t >= wanted), len(flat))
        assert admin.offset_at_time(ssp(system, 0), wanted) == expected
    admin.close()
