"""Retention of local streams: what goes, what stays, and what it costs."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from penstock.api.retention import LEAST_RETENTION_BYTES, StreamRetention
from penstock.api.ssp import SystemStreamPartition
from penstock.batch.batch import TaskSsp
from penstock.batch.portions import BatchPace, Portion, plan_ranges
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.system.base import OffsetRange, PartitionOffsets, RawRecord, WriterIdentity
from penstock.system.local import LocalAdmin, LocalSystem, LocalWriter
from penstock.system.local import admin as local_admin
from penstock.system.local import partition as partition_module
from penstock.system.local.files import LocalFiles
from penstock.system.local.partition import Piece, mark_time
from penstock.testing.system_contract import STREAM, read, ssp

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
MB = 1 << 20
DEADLINE_S = 60.0


class Stream:
    """A local stream whose clock is set by the test."""

    def __init__(self, root: Path, partitions: int = 1) -> None:
        self.now = 1_700_000_000_000
        self.system = LocalSystem("local", str(root))
        files = LocalFiles("local", str(root), 30_000)
        self.admin = LocalAdmin(files, lambda: self.now)
        self.writer = LocalWriter(files, None, lambda: self.now)
        self.admin.create_stream(STREAM, partitions)

    def append(self, count: int = 1, size: int = 10, timestamp: int = 0, partition: int = 0) -> int:
        rows: list[RawRecord] = [(timestamp, None, bytes(size))] * count
        return self.writer.append(ssp(self.system, partition), rows)

    def keep(self, age: int | None = None, size: int | None = None) -> int:
        return self.admin.set_retention(STREAM, StreamRetention(age, size))

    @property
    def ends(self) -> tuple[int, int]:
        found = self.admin.offsets(STREAM)[0]
        return found.oldest, found.upcoming

    def query(self, sql: str, partition: int = 0) -> list[tuple[int, ...]]:
        connection = sqlite3.connect(self.path(partition))
        try:
            rows: list[tuple[int, ...]] = connection.execute(sql).fetchall()
            connection.commit()
            return rows
        finally:
            connection.close()

    def path(self, partition: int = 0) -> Path:
        return Path(self.system.root, STREAM, f"{partition}.db")


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path)


def test_headers_go_with_their_messages(stream: Stream) -> None:
    where = ssp(stream.system, 0)
    stream.append()
    assert stream.query("SELECT COUNT(*) FROM sqlite_master WHERE name = 'header'") == [(0,)]
    for _ in range(20):
        stream.writer.append(where, [(0, b"k", bytes(10_000), (("h", bytes(50_000)),)), (0, b"k", b"plain")])
    stream.keep(size=LEAST_RETENTION_BYTES)
    stream.append()
    oldest, upcoming = stream.ends
    assert 0 < oldest < upcoming - 10
    found = read(stream.system, where, oldest, upcoming)
    headed = [message[0] for message in found if len(message) == 5]
    assert headed == [(row[0]) for row in stream.query("SELECT offset FROM header")]
    assert headed == [offset for offset in range(oldest, upcoming - 1) if offset % 2]


def test_without_a_limit_nothing_goes(stream: Stream) -> None:
    for _ in range(5):
        stream.append(10)
        stream.now += 1000 * DAY
    assert stream.ends == (0, 50)
    assert stream.admin.retention(STREAM) == StreamRetention()


def test_age_counts_from_the_append_and_not_from_the_timestamp(stream: Stream) -> None:
    stream.keep(DAY)
    stream.append(10, timestamp=0)  # an event of 1970
    stream.now += DAY
    stream.append(10, timestamp=stream.now + 1000 * DAY)
    assert stream.ends == (0, 20)
    stream.now += 2 * MINUTE
    stream.append()
    assert stream.ends == (10, 21)


def test_a_message_goes_soon_after_its_time_also_after_a_pause(stream: Stream) -> None:
    stream.keep(DAY)
    stream.append()
    stream.now += 9 * DAY
    stream.append()
    assert stream.ends == (1, 2)
    stream.now += DAY + 10 * DAY // 1000
    stream.append()
    assert stream.ends == (2, 3)
    stream.now += DAY + 2 * MINUTE
    stream.append()
    assert stream.ends == (3, 4)


def test_the_age_of_messages_from_before_the_limit_is_known(stream: Stream) -> None:
    for _ in range(10):
        stream.append()
        stream.now += DAY
    assert stream.keep(3 * DAY) == 7
    assert stream.ends == (7, 10)


def test_a_clock_that_goes_back_deletes_nothing_early(stream: Stream) -> None:
    stream.keep(DAY)
    stream.append()
    stream.now -= 10 * DAY
    stream.append()  # by the wrong clock ten days older than it is
    stream.now += 10 * DAY + MINUTE
    stream.append()
    assert stream.ends == (0, 3)
    stream.now += DAY + MINUTE
    stream.append()
    assert stream.ends == (3, 4)


def test_everything_may_be_too_old_and_no_offset_is_used_again(stream: Stream) -> None:
    stream.append(5)
    stream.now += 10 * DAY
    assert stream.keep(DAY) == 5
    assert stream.ends == (5, 5)
    assert stream.append() == 5


def test_a_reader_that_was_passed_gets_an_error(stream: Stream) -> None:
    stream.append(5)
    stream.now += 10 * DAY
    chunks = stream.system.reader().read(OffsetRange(ssp(stream.system, 0), 0, 5), 2)
    assert [message[0] for message in next(chunks)] == [0, 1]
    stream.keep(DAY)
    with pytest.raises(NotFoundError, match=r"expected offset 2 .* there are \[5, 5\)"):
        next(chunks)
    stream.append()
    with pytest.raises(NotFoundError, match=r"expected offset 4 .* the oldest one is 5"):
        read(stream.system, ssp(stream.system, 0), 4, 6)
    with pytest.raises(NotFoundError, match="expected offset 4"):
        next(stream.system.reader().read_compacted(OffsetRange(ssp(stream.system, 0), 4, 6), 10))
    assert [message[0] for message in read(stream.system, ssp(stream.system, 0), 5, 6)] == [5]


def test_a_job_that_was_passed_does_not_skip(stream: Stream) -> None:
    stream.keep(size=MB)
    stream.append(3, size=300_000)
    positions = {TaskSsp(0, ssp(stream.system, 0)): 1}

    def plan() -> list[Portion]:
        ends = {ssp(stream.system, 0): stream.admin.offsets(STREAM)[0]}
        return list(plan_ranges(positions, ends, BatchPace(100, 100 * MB), None).values())

    assert plan() == [Portion(OffsetRange(ssp(stream.system, 0), 1, 3), 2)]
    stream.append(2, size=300_000)
    message = (
        r"offset 1 of stream .* was deleted before the job had read it: .* the oldest message is 2\. .*`penstock "
        r"startpoint set JOB"
    )
    with pytest.raises(NotFoundError, match=message):
        plan()


def test_marks_are_few() -> None:
    """Ten years of an append every half an hour."""
    with closing(sqlite3.connect(":memory:")) as connection:
        minutes = 10 * 365 * DAY // MINUTE
        for minute in range(0, minutes, 30):
            mark_time(connection, "here", minute, minute * MINUTE)
        marks = connection.execute("SELECT until FROM mark ORDER BY offset").fetchall()
        assert len(marks) < 12_000
        assert marks == sorted(set(marks))


def test_a_backlog_goes_in_pieces(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append deletes a piece, which is more than it appends."""
    stream.append(1000)
    stream.now += 10 * DAY
    stream.query("CREATE TABLE retention (id INTEGER PRIMARY KEY, max_age_ms INTEGER, max_bytes INTEGER)")
    stream.query(f"INSERT INTO retention VALUES (0, {DAY}, NULL)")
    monkeypatch.setattr(Piece, "after_append", lambda messages, grown: Piece(300, MB))
    found = []
    for _ in range(5):
        stream.append()
        found.append(stream.ends)
    assert found == [(300, 1001), (600, 1002), (900, 1003), (1000, 1004), (1000, 1005)]


def test_pieces_are_bounded_by_bytes(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.append(100, size=10_000)
    stream.now += 10 * DAY
    monkeypatch.setattr(partition_module, "Piece", lambda: Piece(1000, 95_000))
    transactions: list[int] = []
    trim = partition_module.trim

    def counted(*arguments: object) -> int:
        transactions.append(trim(*arguments))  # type: ignore[arg-type]
        return transactions[-1]

    monkeypatch.setattr(partition_module, "trim", counted)
    assert stream.keep(DAY) == 100
    assert transactions == [10] * 10 + [0]


def test_the_file_stops_growing(stream: Stream) -> None:
    """Thousands of appends whose timestamps rise, each of which makes a peak."""
    stream.keep(size=MB)
    sizes = []
    for number in range(2000):
        stream.now += 1000
        stream.append(10, size=100 + number % 50, timestamp=stream.now)
        if number % 400 == 399:
            sizes.append(stream.path().stat().st_size)
    oldest, upcoming = stream.ends
    assert upcoming == 20_000
    assert 5_000 < upcoming - oldest < 10_000
    assert max(sizes) <= MB + 16 * 4096
    assert sizes[-1] <= sizes[2] + 4096
    [(peaks,)] = stream.query("SELECT COUNT(*) FROM peak")
    assert peaks <= (upcoming - oldest) / 10 + 2
    middle = stream.query(f"SELECT timestamp FROM message WHERE offset = {oldest + 2000}")[0][0]
    found = stream.admin.offset_at_time(ssp(stream.system, 0), middle)
    assert stream.query(f"SELECT MIN(offset) FROM message WHERE timestamp >= {middle}") == [(found,)]


def test_an_append_that_is_larger_than_the_limit_stays_whole(stream: Stream) -> None:
    stream.keep(size=MB)
    stream.append(3, size=MB)
    assert stream.ends == (0, 3)
    stream.append(1, size=3 * MB)
    assert stream.ends == (3, 4)
    assert stream.keep(size=2 * MB) == 0  # the newest message stays
    assert stream.ends == (3, 4)


def test_a_limit_of_every_partition_by_itself(tmp_path: Path) -> None:
    stream = Stream(tmp_path, 3)
    for partition in range(3):
        stream.append(4, size=MB, partition=partition)
    assert stream.keep(size=3 * MB) == 6
    assert {ends.oldest for ends in stream.admin.offsets(STREAM).values()} == {2}
    assert stream.keep() == 0
    stream.append(4, size=MB, partition=1)
    assert stream.admin.offsets(STREAM)[1] == PartitionOffsets(2, 8)


def test_a_stream_is_created_with_its_limits(tmp_path: Path) -> None:
    system = LocalSystem("local", str(tmp_path))
    admin, wanted = system.admin(), StreamRetention(max_bytes=MB)
    assert admin.create_stream("s", 2, wanted)
    assert not admin.create_stream("s", 2, wanted)
    assert not admin.create_stream("s", 2)
    assert admin.retention("s") == wanted
    with pytest.raises(IncompatibleError, match=r"keeps its messages: 1MB per partition; asked for: 2MB"):
        admin.create_stream("s", 2, StreamRetention(max_bytes=2 * MB))
    with pytest.raises(NotFoundError):
        admin.retention("no")
    with pytest.raises(NotFoundError):
        admin.set_retention("no", wanted)


def test_a_changelog_has_no_retention(tmp_path: Path) -> None:
    stream = Stream(tmp_path, 2)
    stream.keep(DAY)
    with pytest.raises(ConfigError, match=r"deletes old messages \(retention: 1d\).*the job, needs all of them"):
        stream.admin.own(STREAM, "the job")
    assert stream.admin.owner(STREAM) is None
    stream.keep()
    assert stream.admin.own(STREAM, "the job") == "the job"
    with pytest.raises(ConfigError, match="is a changelog: its owner, the job, needs all its messages"):
        stream.keep(DAY)
    for partition in range(2):
        assert stream.query("SELECT * FROM retention", partition) == []


def test_a_broken_change_leaves_the_limit_of_partition_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No partition has a limit that an owner would not see."""
    stream = Stream(tmp_path, 3)

    def fail(*_: object) -> None:
        raise OSError("the process ends here")

    monkeypatch.setattr(local_admin, "in_parallel", fail)
    with pytest.raises(OSError, match="ends here"):
        stream.keep(DAY)
    assert stream.admin.retention(STREAM) == StreamRetention(DAY)
    monkeypatch.undo()
    stream.keep(DAY)
    assert [stream.query("SELECT max_age_ms FROM retention", each) for each in range(3)] == [[(DAY,)]] * 3
    monkeypatch.setattr(local_admin, "in_parallel", fail)
    with pytest.raises(OSError, match="ends here"):
        stream.keep()
    assert stream.admin.retention(STREAM) == StreamRetention(DAY)


def test_retention_after_a_compaction(stream: Stream) -> None:
    here, compactor = ssp(stream.system, 0), WriterIdentity("job", 1)
    stream.writer.append(here, [(0, b"%d" % (number % 3), b"v") for number in range(9)])
    assert stream.admin.compact(OffsetRange(here, 0, 9), compactor) == 6
    stream.now += 2 * DAY
    stream.writer.append(here, [(0, b"a", b"v")])
    assert stream.keep(DAY) == 3
    assert stream.ends == (9, 10)
    assert stream.admin.compact(OffsetRange(here, 9, 10), compactor) == 0
    left = stream.system.reader().read_compacted(OffsetRange(here, 9, 10), 10)
    assert [message[0] for chunk in left for message in chunk] == [9]


@pytest.mark.parametrize(("age", "size"), [(0, None), (-1, None), (None, 0), (None, LEAST_RETENTION_BYTES - 1)])
def test_limits_that_make_no_sense(age: int | None, size: int | None) -> None:
    with pytest.raises(ConfigError):
        StreamRetention(age, size)


_APPEND_FOREVER = """
import sys
from penstock.api.ssp import SystemStreamPartition
from penstock.system.local import LocalSystem
system = LocalSystem("local", sys.argv[1])
writer, number = system.writer(None), int(sys.argv[2])
while True:
    rows = [(number + i, None, b"%d" % (number + i) + bytes(2000)) for i in range(50)]
    number = writer.append(SystemStreamPartition("local", "flights", 0), rows) + 50
"""


def test_a_kill_while_messages_go_leaves_a_whole_stream(tmp_path: Path) -> None:
    system = LocalSystem("local", str(tmp_path))
    admin = system.admin()
    admin.create_stream("flights", 1, StreamRetention(max_bytes=MB))
    here = SystemStreamPartition("local", "flights", 0)
    for _ in range(4):
        start = admin.offsets("flights")[0]
        command = [sys.executable, "-c", _APPEND_FOREVER, system.root, str(start.upcoming)]
        with subprocess.Popen(command) as process:
            deadline = time.monotonic() + DEADLINE_S
            while admin.offsets("flights")[0].oldest < start.oldest + 1000:
                assert process.poll() is None
                assert time.monotonic() < deadline
                os.sched_yield()
            process.send_signal(signal.SIGKILL)
        found = admin.offsets("flights")[0]
        assert 0 < found.upcoming - found.oldest <= 600
        assert found.upcoming % 50 == 0
        messages = read(system, here, found.oldest, found.upcoming)
        assert [message[:2] for message in messages] == [(o, o) for o in range(found.oldest, found.upcoming)]
        assert admin.offset_at_time(here, found.oldest + 7) == found.oldest + 7
        connection = sqlite3.connect(tmp_path / "flights" / "0.db")
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()


def test_limits_that_are_set_again_and_again_beside_appends(stream: Stream) -> None:
    for _ in range(3):
        stream.append()
        for _ in range(3):
            stream.now += HOUR
            stream.keep(DAY)
    assert stream.ends == (0, 3)


def test_no_message_goes_early_because_an_older_one_has_the_same_mark(stream: Stream) -> None:
    stream.keep(DAY)
    stream.append()
    stream.now += MINUTE - 1000
    stream.append()
    stream.now += DAY - MINUTE // 2
    stream.append()
    assert stream.ends == (0, 3)
    stream.now += MINUTE // 2 + 1001
    stream.append()
    assert stream.ends == (2, 4)
