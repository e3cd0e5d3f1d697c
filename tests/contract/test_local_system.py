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
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, CorruptError, IncompatibleError, NotFoundError, PenstockTimeoutError
from penstock.system.base import OffsetRange, PartitionOffsets, RawRecord, System, SystemAdmin
from penstock.system.local import LocalSystem, partition
from penstock.testing.system_contract import (
    COMPACTOR,
    STREAM,
    SystemContract,
    append,
    messages,
    read,
    read_compacted,
    records,
    ssp,
)
from tests.support.tools.profiles import examples
from tests.support.tools.strangers import needs_strangers, open_folder, stranger_locks


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

    @pytest.mark.slow  # quick with the system in memory
    def test_random_compactions_change_no_result(
        self, system: System, admin: SystemAdmin, log: SystemStreamPartition
    ) -> None:
        super().test_random_compactions_change_no_result(system, admin, log)


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


@examples(0.25)
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


def test_a_compaction_that_breaks_off_changes_nothing(system: LocalSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is done when it breaks off, just not committed."""
    here = ssp(system, 0)
    append(system, here, [(0, b"k", b"1"), (1, b"k", None), *records(2, 2)])
    admin = system.admin()
    drop = partition.drop_superseded

    def drop_and_fail(*arguments: Any) -> None:
        drop(*arguments)
        raise OSError("the process ends here")

    monkeypatch.setattr(partition, "drop_superseded", drop_and_fail)
    with pytest.raises(OSError, match="ends here"):
        admin.compact(OffsetRange(here, 1, 4), COMPACTOR)
    assert read(system, here, 0, 4) == read_compacted(system, here, 0, 4)
    assert [message[0] for message in read_compacted(system, here, 0, 2)] == [0, 1]
    monkeypatch.undo()
    assert admin.compact(OffsetRange(here, 1, 4), COMPACTOR) == 2


def test_a_partition_that_is_not_compacted_has_the_same_file(system: LocalSystem) -> None:
    append(system, ssp(system, 0), records(0, 3))
    read_compacted(system, ssp(system, 0), 0, 3)
    system.admin().compact(OffsetRange(ssp(system, 0), 0, 3), COMPACTOR, dry_run=True)
    assert _tables(system) == ["fence", "head", "mark", "message", "peak"]
    system.admin().compact(OffsetRange(ssp(system, 0), 0, 3), COMPACTOR)
    assert _tables(system) == ["compacted", "fence", "head", "mark", "message", "peak"]


def _tables(system: LocalSystem) -> list[str]:
    connection = sqlite3.connect(f"{system.root}/{STREAM}/0.db")
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    connection.close()
    return [name for (name,) in names]


@examples(0.25)
@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=6), max_size=8), st.data())
def test_offset_at_time_after_compactions(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    system = LocalSystem("local", str(tmp_path_factory.mktemp("s")))
    admin, here = system.admin(), ssp(system, 0)
    admin.create_stream(STREAM, 1)
    start = end = upcoming = 0
    for batch in batches:
        rows: list[RawRecord] = [(t, b"%d" % key, b"v" if key else None) for t, key in batch]
        append(system, here, rows)
        upcoming += len(rows)
        start = data.draw(st.integers(start, end))
        end = data.draw(st.integers(end, upcoming))
        admin.compact(OffsetRange(here, start, end), COMPACTOR)
    left = read_compacted(system, here, start, upcoming)
    for wanted in range(-1, 11):
        expected = next((offset for offset, t, _, _, *_ in left if t >= wanted), upcoming)
        assert admin.offset_at_time(here, wanted) == expected
    admin.close()


def test_compactions_keep_the_file_small(system: LocalSystem) -> None:
    """Pages and rows of what went are used again: the file grows with what is there, not with what was written."""
    here, admin, path = ssp(system, 0), system.admin(), Path(system.root, STREAM, "0.db")
    sizes = []
    for number in range(40):
        first = append(system, here, [(number, b"%d" % key, b"x" * 500) for key in range(100)])
        admin.compact(OffsetRange(here, 0, first + 100), COMPACTOR)
        sizes.append(path.stat().st_size)
    assert sizes[-1] <= 3 * sizes[1] + 100_000
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT COUNT(*) FROM peak").fetchone()[0] <= 2
    connection.close()


_LOCKS_OF_WAL = (120, 8)
"""The bytes of the file `<partition>.db-shm` that SQLite locks: its first and their number."""


@needs_strangers
def test_another_user_holds_up_no_writer(caplog: pytest.LogCaptureFixture) -> None:
    """A read lock on the files of SQLite needs the right to read only. Folders of earlier versions can be entered."""
    with open_folder() as folder:
        os.umask(0o022)
        system = LocalSystem("local", str(folder / "streams"), 50)
        system.admin().create_stream(STREAM, 1)
        assert (folder / "streams" / STREAM).stat().st_mode & 0o777 == 0o700
        assert (system.admin().partition_count(STREAM), caplog.messages) == (1, [])
        writer = system.writer(None)
        writer.append(ssp(system, 0), records(0, 1))
        shared = folder / "streams" / STREAM / "0.db-shm"
        with stranger_locks(shared, *_LOCKS_OF_WAL) as answer:
            assert "Permission denied" in answer
        for file in shared.parent.iterdir():
            with stranger_locks(file) as answer:
                assert "Permission denied" in answer
        shared.parent.chmod(0o755)
        with stranger_locks(shared, *_LOCKS_OF_WAL) as answer:
            assert answer == "locked"
            with pytest.raises(PenstockTimeoutError, match="locked"):
                writer.append(ssp(system, 0), records(0, 1))
        for _ in range(2):
            assert system.admin().partition_count(STREAM) == 1
        (warning,) = caplog.messages
        assert f"`chmod -R go= {shared.parent}`" in warning
