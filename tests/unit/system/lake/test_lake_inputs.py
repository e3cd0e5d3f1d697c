"""Tables as inputs: each row once, whatever else happens to the table."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.api.requests import StartpointSpecific, StartpointTimestamp
from penstock.errors import ConfigError, CorruptError, IncompatibleError, NotFoundError
from penstock.system.base import ColumnChunk, OffsetRange, RawMessage
from penstock.system.lake.log import ADDED, SNAPSHOT, offset_of, place_of
from penstock.system.lake.system import LakeSystem
from tests.support.world.lake_tables import Row, TableJob, WrittenTable, all_rows, of, written
from tests.support.world.lake_world import Kind


@pytest.fixture(params=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def table(kind: Kind, tmp_path: Path) -> WrittenTable:
    return written(kind, tmp_path / "lake")


def numbered(first: int, count: int) -> list[Row]:
    return [{"n": n, "text": None if n % 3 == 0 else f"text {n}"} for n in range(first, first + count)]


def read(system: LakeSystem, partition: int, start: int, end: int, portion: int = 100) -> list[RawMessage]:
    with closing(system.reader()) as reader:
        chunks = list(reader.read(OffsetRange(of(partition), start, end), portion))
    assert all(0 < len(chunk) <= portion for chunk in chunks)
    return [message for chunk in chunks for message in chunk]


def sorted_rows(table: WrittenTable) -> list[Row]:
    return sorted(table.rows(), key=lambda row: row["n"])


@pytest.mark.parametrize("seed", range(2))
def test_each_row_once_between_appends_compactions_new_columns_and_restarts(table: WrittenTable, seed: int) -> None:
    rng = random.Random(seed)
    job, expected = TableJob(table.system()), list[Row]()
    for step in range(20):
        match rng.choice(["append", "append", "append", "compact", "column", "read", "read", "restart"]):
            case "append":
                rows = numbered(len(expected), rng.randrange(1, 9))
                for name in table.schema.names[2:]:
                    rows = [{**row, name: f"{name} {row['n']}"} for row in rows]
                table.append(rows)
                expected += rows
            case "compact" if expected:
                table.compact()
            case "column" if len(table.schema) < 4:
                table.add_column(f"c{step}")
            case "read":
                job.portion(rng.randrange(2), rng.choice([1, 2, 5, 50]))
            case "restart":
                job.restart()
    assert [{**dict.fromkeys(table.schema.names), **row} for row in expected] == [
        {**dict.fromkeys(table.schema.names), **row} for row in job.finish()
    ]
    assert sorted_rows(table) == [{**dict.fromkeys(table.schema.names), **row} for row in expected]
    offsets = [(message[0], message[3]) for message in job.read]
    assert len(set(offsets)) == len(offsets)
    job.close()


def test_every_offset_means_the_same_message_to_every_reader(table: WrittenTable) -> None:
    for count in (5, 1, 8):
        table.append(numbered(0, count))
    system, rng = table.system(partitions="1"), random.Random(1)
    with closing(system.admin()) as admin:
        ends = admin.offsets("orders")[0]
        begun = admin.named_offset(of(0), "snapshot")
    for start in (ends.oldest, begun):
        whole = read(system, 0, start, ends.upcoming)
        assert [place_of(message[0]).part for message in whole] == [SNAPSHOT if start == begun else ADDED] * 14
        for _ in range(10):
            first = rng.choice(whole)[0]
            rest = [message for message in whole if message[0] >= first]
            assert read(system, 0, first, ends.upcoming, rng.choice([1, 3, 100])) == rest
            assert read(system, 0, first, first + 1) == rest[:1]
    assert read(system, 0, ends.upcoming, ends.upcoming) == []
    with pytest.raises(NotFoundError, match="the upcoming one is"):
        read(system, 0, ends.oldest, ends.upcoming + 1)
    with pytest.raises(NotFoundError, match="has 1 partition"):
        read(system, 1, 0, ends.upcoming)
    with pytest.raises(ConfigError):
        system.reader().read(OffsetRange(of(0), 2, 1), 5)


def test_lists_have_at_most_so_many_bytes(table: WrittenTable) -> None:
    table.append([{"n": n, "text": "x" * 100} for n in range(10)])
    system = table.system(partitions="1")
    end = system.admin().offsets("orders")[0].upcoming
    chunks = [*system.reader().read(OffsetRange(of(0), 0, end), 100, 250)]
    assert [len(chunk) for chunk in chunks] == [3, 3, 3, 1]


def test_columns_are_those_that_are_asked_for(table: WrittenTable) -> None:
    table.append(numbered(0, 10))
    table.add_column("later")
    table.append([{**row, "later": "yes"} for row in numbered(10, 3)])
    system = table.system(partitions="1")
    end = system.admin().offsets("orders")[0].upcoming
    schema = pa.schema({"later": pa.string(), "n": pa.int32(), "absent": pa.float64()})
    read_columns = system.reader().read_columns
    chunks = [each for each in read_columns(OffsetRange(of(0), 0, end), schema, 4) if isinstance(each, ColumnChunk)]
    assert [len(chunk) for chunk in chunks] == [4, 4, 2, 3]
    found = [row for chunk in chunks for row in chunk.values.to_pylist()]
    assert found == [{"later": "yes" if n > 9 else None, "n": n, "absent": None} for n in range(13)]
    offsets = [int(offset) for chunk in chunks for offset in chunk.offsets]
    assert offsets == [message[0] for message in read(system, 0, 0, end)]
    only = [*system.reader().read_columns(OffsetRange(of(0), offsets[3], end), pa.schema({"absent": pa.int8()}), 100)]
    assert [len(chunk) for chunk in only] == [7, 3]
    with pytest.raises(IncompatibleError, match="column `text` of"):
        list(system.reader().read_columns(OffsetRange(of(0), 0, end), pa.schema({"text": pa.int64()}), 100))
    assert system.admin().missing_columns("orders", ["n", "later", "absent"]) == ["absent"]


def test_a_start_at_a_version_at_a_time_or_with_all_rows_of_now(table: WrittenTable) -> None:
    table.append(numbered(0, 4))
    first = table.version()
    table.append(numbered(4, 4))
    second = table.version()
    table.compact()
    table.append(numbered(8, 2))
    system = table.system(partitions="1")
    assert all_rows(system) == all_rows(system, "snapshot") == all_rows(system, f"snapshot:{first}") == numbered(0, 10)
    assert all_rows(system, f"version:{first}") == numbered(0, 10)
    assert all_rows(system, f"version:{second}") == numbered(4, 6)
    assert all_rows(system, f"version:{table.version()}") == numbered(8, 2)
    with closing(TableJob(system)) as job:
        job.finish()
        times = sorted({message[1] for message in job.read})
        assert len(times) == 3
        for number, at in enumerate([0, *times[1:], times[-1] + 1]):
            offset = job.admin.resolve_startpoint_to_offset(of(0), StartpointTimestamp(at))
            job.read, job.positions = [], {0: offset}
            assert [row["n"] for row in job.finish()] == [*range((0, 4, 8, 10)[number], 10)]
    with closing(system.admin()) as admin:
        for wrong in ("version", "version:x", "version:77", "snapshot:", "snapshot:-1", "text"):
            with pytest.raises(IncompatibleError, match=r"version:N|to begin with: the oldest one is"):
                admin.resolve_startpoint_to_offset(of(0), StartpointSpecific(wrong))
        assert admin.named_offset(of(0), "17") == 17


def test_all_partitions_begin_with_the_same_state(table: WrittenTable) -> None:
    """A compaction between two questions moves rows from files of one partition to files of the other."""
    for first in range(0, 12, 3):
        table.append(numbered(first, 3))
    system = table.system()
    with closing(system.admin()) as admin:
        begin = {0: admin.named_offset(of(0), "snapshot")}
        table.compact()
        table.append(numbered(12, 3))
        begin[1] = admin.named_offset(of(1), "snapshot")
    job = TableJob(system)
    job.positions = begin
    assert job.finish() == numbered(0, 15)
    job.close()


@pytest.mark.few(2)
@pytest.mark.parametrize("changes", ["refuse", "skip", "added"])
def test_commits_that_remove_rows(table: WrittenTable, changes: str) -> None:
    table.append(numbered(0, 2))
    table.append(numbered(2, 3))
    system = table.system(changes=changes, partitions="1")
    job = TableJob(system)
    job.portion(0, 2)
    table.delete(2)  # of a file that is read already, or not
    removing = table.version()
    table.append(numbered(5, 2))
    if changes == "refuse":
        with pytest.raises(IncompatibleError) as error:
            job.finish()
        for said in ("`orders`" if table.kind == "delta" else "default.orders", removing, "systems.<name>.changes"):
            assert said in str(error.value)
        assert f"snapshot:{removing}" in str(error.value)
    else:
        again = [] if changes == "skip" else numbered(3, 2)  # the file was rewritten, without the deleted row
        found = [row["n"] for row in job.finish()]
        assert found == sorted(row["n"] for row in numbered(0, 7) + again)
    job.close()
    left = [row for row in numbered(0, 7) if row["n"] != 2]
    assert all_rows(system, f"snapshot:{removing}") == all_rows(system, "snapshot") == left == sorted_rows(table)


def test_files_that_were_deleted_before_they_were_read(table: WrittenTable) -> None:
    for first in (0, 3, 6):
        table.append(numbered(first, 3))
    job = TableJob(table.system(partitions="1"))
    job.portion(0, 2)
    table.compact()
    table.forget()
    job.restart()
    if table.kind == "iceberg":  # the snapshots are gone as well
        assert job.positions[0] < job.admin.offsets("orders")[0].oldest
    with pytest.raises(NotFoundError, match=r"is gone|no longer has snapshot"):
        [*job.reader.read(OffsetRange(of(0), job.positions[0], job.admin.offsets("orders")[0].upcoming), 100)]
    job.close()
    assert all_rows(job.system, "snapshot") == numbered(0, 9) == sorted_rows(table)


def test_a_table_that_was_made_again_is_another_one(table: WrittenTable) -> None:
    table.append(numbered(0, 3))
    system = table.system(partitions="1")
    job = TableJob(system)
    assert job.finish() == numbered(0, 3)
    identity = job.admin.stream_identity("orders")
    assert system.admin().stream_identity("orders") == identity
    table.append(numbered(3, 3))
    assert job.admin.stream_identity("orders") == identity
    table.drop()
    with suppress(NotFoundError):
        job.admin.offsets("orders")
        pytest.fail("the table is not missed")
    table.create()
    table.append(numbered(50, 2))
    assert job.admin.stream_identity("orders") != identity
    job.positions = {0: job.admin.offsets("orders")[0].oldest}
    job.read = []
    assert job.finish() == numbered(50, 2)
    job.close()


def test_a_data_file_that_is_cut_off_or_another_one(table: WrittenTable, tmp_path: Path) -> None:
    table.append(numbered(0, 500))
    system = table.system(partitions="1")
    end = system.admin().offsets("orders")[0].upcoming
    (file,) = (path for path in tmp_path.rglob("*.parquet") if "_log" not in str(path))
    whole = file.read_bytes()
    os.truncate(file, len(whole) // 2)
    with pytest.raises(CorruptError, match="is damaged"):
        read(system, 0, 0, end)
    pa.parquet.write_table(pa.Table.from_pylist(numbered(0, 499), table.schema), file)
    with pytest.raises(CorruptError, match="it has 499 rows, and the table says 500"):
        read(system, 0, 0, end)
    file.write_bytes(whole)
    assert len(read(system, 0, 0, end)) == 500


def test_a_table_that_is_not_there(kind: Kind, tmp_path: Path) -> None:
    home = tmp_path / "lake"
    system = written(kind, home).system()
    for call in (system.admin().offsets, system.admin().partition_count, system.admin().stream_identity):
        with pytest.raises(NotFoundError, match="create it, or correct"):
            call("others")


def test_the_number_of_partitions(table: WrittenTable) -> None:
    """The number of a table that no job has written is configured. To look at it writes nothing."""
    table.append(numbered(0, 3))
    before = table.version()
    system = table.system(partitions="3")
    assert system.admin().partition_count("orders") == len(system.admin().offsets("orders")) == 3
    assert table.version() == before
    system.writer(None).append(of(0), [(0, None, b'{"n": 3}')])
    assert table.system(partitions="7").admin().partition_count("orders") == 3
    assert all_rows(table.system(partitions="7")) == [*numbered(0, 3), {"n": 3, "text": None}]


def test_the_lag_counts_commits(table: WrittenTable) -> None:
    system = table.system()
    assert (system.lag(offset_of(5, ADDED, 9), offset_of(7, ADDED)), system.lag_unit) == (2, "commit")
    assert system.messages_in(system.admin().offsets("orders").values()) is None
    with pytest.raises(IncompatibleError, match="has no offset"):
        offset_of(1 << 27, ADDED)


@pytest.fixture
def job_of_ten(table: WrittenTable) -> Iterator[TableJob]:
    table.append(numbered(0, 10))
    job = TableJob(table.system(partitions="1"))
    yield job
    job.close()


def test_a_portion_continues_where_the_last_one_ended(job_of_ten: TableJob, table: WrittenTable) -> None:
    assert [job_of_ten.portion(0, 4) for _ in range(4)] == [4, 4, 2, 0]
    table.append(numbered(10, 1))
    assert job_of_ten.finish() == numbered(0, 11)
