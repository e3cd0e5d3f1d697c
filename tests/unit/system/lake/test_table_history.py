"""The history of tables: what can be read when a part of it is gone, or was taken back."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.errors import IncompatibleError, NotFoundError, SystemRefusedError
from penstock.system.base import OffsetRange
from penstock.system.lake.log import ADDED, SNAPSHOT, offset_of, place_of
from penstock.system.lake.system import DeltaSystem, LakeSystem
from tests.support.world.lake_tables import Row, TableJob, WrittenDelta, WrittenIceberg, all_rows, of


def numbers(*all_n: int) -> list[Row]:
    return [{"n": n, "text": None} for n in all_n]


@pytest.fixture
def delta(tmp_path: Path) -> WrittenDelta:
    return WrittenDelta(tmp_path)


@pytest.fixture
def iceberg(tmp_path: Path) -> WrittenIceberg:
    return WrittenIceberg(tmp_path)


def oldest(system: LakeSystem) -> tuple[int, int]:
    with closing(system.admin()) as admin:
        return place_of(admin.offsets("orders")[0].oldest)[:2]


def test_delta_begins_with_the_oldest_state_that_its_log_can_make(delta: WrittenDelta) -> None:
    for n in range(3):
        delta.append(numbers(n))
    DeltaTable(delta.path).create_checkpoint()  # of version 3
    for n in range(3, 6):
        delta.append(numbers(n))
    system = delta.system(partitions="1")
    assert oldest(system) == (0, SNAPSHOT)
    job = TableJob(system)
    job.portion(0, 1)
    for version in range(3):
        os.remove(f"{delta.path}/_delta_log/{version:020}.json")
    assert oldest(system) == (4, SNAPSHOT)
    assert all_rows(system) == numbers(*range(6))
    assert all_rows(system, "version:4") == numbers(3, 4, 5)
    job.restart()
    assert job.positions[0] < job.admin.offsets("orders")[0].oldest
    with pytest.raises(NotFoundError, match="no longer has version 1"):
        list(system.reader().read(OffsetRange(of(0), offset_of(2, ADDED), offset_of(7, ADDED)), 10))
    with pytest.raises(NotFoundError, match="no longer has version 1"):
        list(system.reader().read(OffsetRange(of(0), offset_of(2, SNAPSHOT), offset_of(7, ADDED)), 10))
    with pytest.raises(IncompatibleError, match="the oldest one is 3, and the newest 6"):
        job.admin.named_offset(of(0), "version:1")
    job.close()


def test_delta_begins_behind_files_that_it_no_longer_keeps(delta: WrittenDelta) -> None:
    """A table keeps removed files for a week, or as long as a property says. They may then be deleted any time."""
    delta.append(numbers(0))
    delta.append(numbers(1))
    delta.compact()
    delta.append(numbers(2))
    system = delta.system(partitions="1")
    assert oldest(system) == (0, SNAPSHOT)
    keeps = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    DeltaTable(delta.path).alter.set_table_properties(keeps)
    assert oldest(system) == (4, SNAPSHOT)
    delta.forget()
    assert all_rows(system) == numbers(0, 1, 2)


def test_delta_reads_no_old_commits_while_nothing_is_new(delta: WrittenDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        delta.append(numbers(n))
    admin = delta.system().admin()
    admin.offsets("orders")
    monkeypatch.setattr("penstock.system.lake.delta_log.DeltaTable", None)
    monkeypatch.setattr("penstock.system.lake.delta_log.DeltaLog._parsed", None)
    for _ in range(3):
        assert admin.offsets("orders")[0].upcoming == offset_of(7, ADDED)
    admin.close()


def test_iceberg_begins_with_the_oldest_snapshot_that_is_left(iceberg: WrittenIceberg) -> None:
    for n in range(3):
        iceberg.append(numbers(n))
    iceberg.forget()
    iceberg.append(numbers(3))
    system = iceberg.system(partitions="1")
    assert oldest(system) == (3, SNAPSHOT)
    assert all_rows(system) == numbers(0, 1, 2, 3)
    assert all_rows(system, "version:3") == numbers(2, 3)
    for start in (offset_of(2, ADDED), offset_of(2, SNAPSHOT)):
        with pytest.raises(NotFoundError, match="no longer has snapshot 2"):
            list(system.reader().read(OffsetRange(of(0), start, offset_of(5, ADDED)), 10))


def test_iceberg_rows_that_a_rollback_took_back(iceberg: WrittenIceberg) -> None:
    iceberg.append(numbers(0))
    kept = int(iceberg.version())
    iceberg.append(numbers(1))
    system = iceberg.system(partitions="1", changes="refuse")
    job = TableJob(system)
    assert job.finish() == numbers(0, 1)
    with iceberg.table.manage_snapshots() as snapshots:
        snapshots.rollback_to_snapshot(kept)
    with pytest.raises(AssertionError):  # a position behind the end, which ends a run
        job.portion(0, 1)
    iceberg.append(numbers(2))
    with pytest.raises(IncompatibleError, match="rolled back before it"):
        job.portion(0, 1)
    job.close()
    assert all_rows(system, "snapshot") == numbers(0, 2)


def test_iceberg_rows_that_are_deleted_by_their_position(iceberg: WrittenIceberg) -> None:
    iceberg.append(numbers(0, 1, 2, 3))
    iceberg.append(numbers(4, 5, 6))
    iceberg.delete_by_position(1)
    iceberg.append(numbers(7, 8))
    with pytest.raises(IncompatibleError, match=r"removes or changes rows \(overwrite\)"):
        all_rows(iceberg.system())
    assert all_rows(iceberg.system(changes="skip")) == all_rows(iceberg.system(changes="added")) == numbers(*range(9))
    left = numbers(0, 2, 3, 4, 6, 7, 8)
    system = iceberg.system(partitions="1")
    assert sorted(iceberg.rows(), key=lambda row: row["n"]) == all_rows(system, "snapshot") == left
    begun = system.admin().named_offset(of(0), "snapshot")
    end = system.admin().offsets("orders")[0].upcoming
    whole = [each for chunk in system.reader().read(OffsetRange(of(0), begun, end), 2) for each in chunk]
    for number, message in enumerate(whole):
        (first,) = next(system.reader().read(OffsetRange(of(0), message[0], end), 1))
        assert first == whole[number]


def test_commits_to_another_branch_are_none_of_the_stream(iceberg: WrittenIceberg) -> None:
    iceberg.append(numbers(0))
    job = TableJob(iceberg.system(partitions="1"))
    job.finish()
    with iceberg.table.manage_snapshots() as snapshots:
        snapshots.create_branch(int(iceberg.version()), "draft")
    iceberg.table.append(iceberg.table.scan().to_arrow(), branch="draft")
    iceberg.append(numbers(1))
    assert job.finish() == numbers(0, 1)
    assert place_of(job.read[-1][0]).number == 3
    job.close()


def test_iceberg_tables_whose_commits_have_no_numbers(iceberg: WrittenIceberg) -> None:
    iceberg.drop()
    iceberg.catalog.create_table("default.orders", iceberg.schema, properties={"format-version": "1"})
    iceberg.append(numbers(0))
    with pytest.raises(IncompatibleError, match="format version 1"):
        iceberg.system().admin().offsets("orders")
    with iceberg.table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    iceberg.append(numbers(1))
    assert all_rows(iceberg.system()) == all_rows(iceberg.system(), "snapshot") == numbers(0, 1)
    iceberg.forget()
    assert oldest(iceberg.system()) == (1, SNAPSHOT)
    assert all_rows(iceberg.system()) == numbers(0, 1)


@pytest.fixture
def refusing_store() -> Iterator[str]:
    class Refuse(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(403)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuse)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_store_that_refuses_says_so(refusing_store: str) -> None:
    storage = {
        "AWS_ENDPOINT_URL": refusing_store,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "here",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
    }
    options = {"folder": "s3://bucket/tables", **{f"storage.{key}": text for key, text in storage.items()}}
    with pytest.raises(SystemRefusedError, match=r"`orders` in `s3://bucket/tables` cannot be read"):
        DeltaSystem.configured("lake", options).admin().offsets("orders")
