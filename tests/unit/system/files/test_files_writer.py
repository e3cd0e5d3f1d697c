"""Folders that Penstock writes: rows, progress and epochs become valid in one step, the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import ConfigError, FencedError, IncompatibleError, RetryableError
from penstock.objects.file import FileObjectStore
from penstock.system.base import OffsetRange, Progress, RawRecord, SystemWriter, WriterIdentity
from penstock.system.files.formats import file_of
from penstock.system.files.listing import FoundFile, Listing
from penstock.system.files.manifests import PartitionLog, WrittenFile
from penstock.system.files.system import FilesSystem
from penstock.system.rows.schema import row_form

STREAM = "sums"
PARTITIONS = 2


@pytest.fixture
def system(tmp_path: Path) -> FilesSystem:
    return open_system(tmp_path, tmp_path / "jobs")


def open_system(home: Path, jobs: Path) -> FilesSystem:
    options = {"folder": str(home / "out"), "listing": str(jobs), "schema": "n BIGINT, text STRING", "poll.ms": "1"}
    return FilesSystem.configured("out", options)


@pytest.fixture
def made(system: FilesSystem) -> None:
    with closing(system.admin()) as admin:
        admin.create_stream(STREAM, PARTITIONS)


@pytest.fixture
def writers(system: FilesSystem, made: None) -> Iterator[dict[int, SystemWriter]]:
    """Writers of the job, by epoch."""
    found = {epoch: system.writer(WriterIdentity("job", epoch)) for epoch in (1, 2, 3)}
    yield found
    for writer in found.values():
        writer.close()


def at(partition: int) -> SystemStreamPartition:
    return SystemStreamPartition("out", STREAM, partition)


def rows(*numbers: int) -> list[RawRecord]:
    return [(1000 + n, b"key", orjson.dumps({"n": n, "text": f"{n}", "other": [n]})) for n in numbers]


def publish(writer: SystemWriter, progress: Progress, parts: dict[int, list[RawRecord]]) -> None:
    with writer.begin() as transaction:
        for partition, records in parts.items():
            transaction.append(at(partition), records)
            transaction.mark(at(partition), progress)


def show(system: FilesSystem, *slots: int, name: str = "job") -> None:
    """All of these slots is published."""
    with closing(system.admin()) as admin:
        for slot in slots:
            admin.published(STREAM, name, slot)


def read(system: FilesSystem) -> list[list[int]]:
    """The numbers of each partition, as a job would read them."""
    found = []
    with closing(system.admin()) as admin, closing(system.reader()) as reader:
        for partition, ends in sorted(admin.offsets(STREAM).items()):
            chunks = reader.read(OffsetRange(at(partition), 0, ends.upcoming), 3)
            found.append([json.loads(message[3] or b"")["n"] for chunk in chunks for message in chunk])
    return found


def test_rows_come_in_order_of_commits(system: FilesSystem, writers: dict[int, SystemWriter], tmp_path: Path) -> None:
    for slot in range(1, 6):
        publish(writers[1], Progress(slot, 0), {0: rows(slot, slot + 10), 1: rows(*range(slot))})
        show(system, slot)
        if slot == 3:
            assert read(system)[0] == [1, 11, 2, 12, 3, 13]
    expected = [[n + d for n in range(1, 6) for d in (0, 10)], [n for slot in range(1, 6) for n in range(slot)]]
    assert read(system) == expected
    assert read(open_system(tmp_path, tmp_path / "other jobs")) == expected
    table = pa.parquet.ParquetDataset(tmp_path / "out" / STREAM).read()
    assert sorted(table["n"].to_pylist()) == sorted(n for own in expected for n in own)
    assert table.schema.names == ["n", "text"]


def test_a_commit_is_seen_as_a_whole(system: FilesSystem, writers: dict[int, SystemWriter], tmp_path: Path) -> None:
    """However many transactions it takes, in however many partitions, and though others wrote in between."""
    publish(writers[1], Progress(4, 0), {0: rows(1)})
    with closing(system.writer(None)) as plain:
        plain.append(at(0), rows(10))
        plain.append(at(1), rows(11))
    assert read(system) == [[], [11]], "what is behind a commit waits for it"
    publish(writers[1], Progress(4, 1), {0: rows(2), 1: rows(3)})
    publish(writers[1], Progress(5, 0), {1: rows(4)})
    assert read(system) == [[], [11]]
    show(system, 4)
    show(system, 4)
    assert read(system) == [[1, 10, 2], [11, 3]]
    publish(writers[2], Progress(5, 1), {1: rows(5)})
    assert read(open_system(tmp_path, tmp_path / "other jobs")) == [[1, 10, 2], [11, 3]]
    show(system, 5)
    assert read(system) == [[1, 10, 2], [11, 3, 4, 5]]
    assert read(open_system(tmp_path, tmp_path / "third jobs")) == [[1, 10, 2], [11, 3, 4, 5]]


def test_progress_and_epochs(system: FilesSystem, writers: dict[int, SystemWriter]) -> None:
    assert writers[1].progress([at(0), at(1)]) == {}
    publish(writers[1], Progress(7, 0), {0: rows(1)})
    publish(writers[1], Progress(7, 3), {0: rows(2), 1: []})
    assert writers[1].progress([at(0), at(1)]) == {at(0): Progress(7, 3), at(1): Progress(7, 3)}
    for wrong in (Progress(7, 3), Progress(7, 2), Progress(6, 9)):
        with pytest.raises(IncompatibleError, match="already published"):
            publish(writers[1], wrong, {0: rows(9)})
    begun = writers[1].begin()
    begun.append(at(0), rows(9))
    begun.mark(at(0), Progress(8, 0))
    assert writers[2].progress([at(0)]) == {at(0): Progress(7, 3)}
    with pytest.raises(FencedError, match=r"`job` of epoch 1 .*epoch 2 has taken over"):
        begun.commit()
    with closing(system.admin()) as admin:
        admin.fence(STREAM, WriterIdentity("job", 3))
        with pytest.raises(FencedError):
            admin.fence(STREAM, WriterIdentity("job", 2))
    for epoch in (1, 2):
        with pytest.raises(FencedError):
            writers[epoch].append(at(1), rows(9))
    with closing(system.writer(WriterIdentity("other", 1))) as other:
        publish(other, Progress(1, 0), {1: rows(5)})
    publish(writers[3], Progress(8, 0), {0: rows(3)})
    show(system, 7, 8)
    show(system, 1, name="other")
    assert read(system) == [[1, 2, 3], [5]]


@pytest.mark.parametrize("step", ["part", "_penstock", "has part", "has _penstock"])
def test_a_commit_that_dies_is_whole_or_not_there(
    system: FilesSystem, writers: dict[int, SystemWriter], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
) -> None:
    """Before or behind the put of the file or of the manifest. Who continues finds out from the progress."""
    publish(writers[1], Progress(1, 0), {0: rows(1)})
    put = FileObjectStore.put_if_absent

    def dying(self: FileObjectStore, key: str, data: bytes) -> bool:
        what = "part" if key.startswith("part") else key.partition("/")[0]
        if what == step:
            raise RetryableError("dead")
        done = put(self, key, data)
        if f"has {what}" == step:
            raise RetryableError("dead")
        return done

    with monkeypatch.context() as patch:
        patch.setattr(FileObjectStore, "put_if_absent", dying)
        with pytest.raises(RetryableError):
            publish(writers[1], Progress(2, 0), {0: rows(2, 3)})
    progress = writers[2].progress([at(0)])[at(0)]
    assert progress == (Progress(2, 0) if step == "has _penstock" else Progress(1, 0))
    if progress < Progress(2, 0):
        publish(writers[2], Progress(2, 0), {0: rows(2, 3)})
    show(system, 1)
    assert read(system) == [[1], []]
    show(system, 2)
    assert read(system) == [[1, 2, 3], []]
    files = len(list((tmp_path / "out" / STREAM).glob("part-*")))
    assert files == (3 if step in {"_penstock", "has part"} else 2), "a file that no manifest names"


def test_two_writers_at_once(system: FilesSystem, made: None) -> None:
    """Writers of several names append under different numbers."""
    both = [system.writer(WriterIdentity(name, 1)) for name in ("a", "b")]
    for slot in range(1, 5):
        for writer in both:
            publish(writer, Progress(slot, 0), {0: rows(slot)})
    show(system, *range(1, 5), name="a")
    assert read(system)[0] == [1]
    show(system, *range(1, 5), name="b")
    for writer in both:
        writer.close()
    assert read(system)[0] == [n for n in range(1, 5) for _ in both]


def test_what_is_no_row_is_refused(system: FilesSystem, writers: dict[int, SystemWriter]) -> None:
    with closing(system.admin()) as admin:
        limits = admin.record_limits(STREAM)
    assert limits.refused(b"key", b'{"n": 1, "text": null}') is None
    assert limits.refused(b"key", b"{}") is None
    assert "has no value" in (limits.refused(b"key", None) or "")
    for wrong in (b'{"n": "1"}', b'{"n": 9223372036854775808}', b"[1]", b"no json", b'{"text": 1}'):
        assert "does not fit the schema" in (limits.refused(b"key", wrong) or "")
        with pytest.raises(ConfigError, match="cannot be written to a file: its value does not fit"):
            writers[1].append(at(0), [*rows(1), (0, None, wrong)])
    assert read(system) == [[], []]


def test_types() -> None:
    text = (
        "`a b` INT, l ARRAY<BIGINT>, m MAP<STRING, DOUBLE>, s STRUCT<x: INT, y: STRING>, at TIMESTAMP, "
        "ms TIMESTAMP, local TIMESTAMP_NTZ, day DATE, exact DECIMAL(6, 2), data BINARY, yes BOOLEAN, none STRING"
    )
    form = row_form(text)
    local = datetime(2024, 5, 1, 12, 30)  # noqa: DTZ001 - Spark has such times
    at_ = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
    given: dict[str, Any] = {
        "a b": 5,
        "l": [1, None],
        "m": {"k": 0.5},
        "s": {"x": 1},
        "at": at_,
        "ms": int(at_.timestamp() * 1000),
        "local": local,
        "day": date(2024, 5, 1),
        "exact": "12.50",
        "data": "AP8=",
        "yes": True,
    }
    table = pa.parquet.read_table(pa.BufferReader(file_of(form.batch([orjson.dumps(given)]), "parquet")))
    assert table.to_pylist() == [
        {
            **given,
            "m": [("k", 0.5)],
            "s": {"x": 1, "y": None},
            "ms": at_,
            "exact": Decimal("12.50"),
            "data": b"\x00\xff",
            "none": None,
        }
    ]
    lines = [json.loads(line) for line in file_of(form.batch([orjson.dumps(given), b"{}"]), "json").splitlines()]
    written = {"at": "2024-05-01T12:30:00Z", "local": "2024-05-01T12:30:00", "day": "2024-05-01", "none": None}
    assert lines[0] == {**given, **written, "ms": written["at"], "s": {"x": 1, "y": None}}
    assert lines[1] == dict.fromkeys(lines[0])
    assert form.problem(orjson.dumps(lines[0])) is None, "what was written can be written again"
    assert "does not fit" in (form.problem(b'{"exact": "123456.78"}') or "")
    assert "does not fit" in (form.problem(b'{"at": "2024-05-01T12:30:00"}') or "")
    assert "declare a time without one as TIMESTAMP_NTZ" in (form.problem(b'{"at": "2024-05-01T12:30:00"}') or "")
    assert "declare the column as TIMESTAMP" in (form.problem(b'{"local": "2024-05-01T12:30:00Z"}') or "")


def test_an_output_without_a_schema(tmp_path: Path) -> None:
    system = FilesSystem.configured(
        "out", {"folder": str(tmp_path), "listing": str(tmp_path / "l"), "schema.a": "n INT"}
    )
    with closing(system.admin()) as admin:
        admin.create_stream("a", 1)
        admin.create_stream("b", 1)
        assert admin.record_limits("a").refused(None, b"{}") is None
        with pytest.raises(ConfigError, match=r"set `systems.out.schema` or `systems.out.schema.b` for this stream"):
            admin.record_limits("b")


def test_lines_of_json(tmp_path: Path) -> None:
    folders = {"folder": str(tmp_path / "out"), "listing": str(tmp_path / "l"), "schema": "n BIGINT, text STRING"}
    system = FilesSystem.configured("out", {**folders, "format": "json"})
    with closing(system.admin()) as admin, closing(system.writer(None)) as writer:
        admin.create_stream(STREAM, PARTITIONS)
        writer.append(at(1), rows(1, 2))
    assert read(system) == [[], [1, 2]]
    (file,) = (tmp_path / "out" / STREAM).glob("part-*.json")
    assert file.read_bytes() == b'{"n":1,"text":"1"}\n{"n":2,"text":"2"}\n'
    csv = FilesSystem.configured("out", {**folders, "format": "csv"})
    with closing(csv.admin()) as admin, pytest.raises(ConfigError, match="outputs are Parquet or lines of JSON"):
        admin.fence(STREAM, WriterIdentity("job", 1))


def test_stored_forms_are_read_as_they_were_written(tmp_path: Path) -> None:
    """The bytes of format 1: later versions read them."""
    objects = FileObjectStore(tmp_path / "listing")
    place = "lake/rides/x"
    for number, data in enumerate(
        [
            b'{"format":1,"identity":"f70cda24","folder":"/lake/rides","partitions":2}',
            b'{"files":[["a.json",10,1700000000000,0],["b.json",5,1700000000001,1]]}',
        ]
    ):
        objects.put_if_absent(f"{place}/log/{number:020d}", data)
    listing = Listing(objects, place, "/lake/rides")
    listing.read()
    assert (listing.identity, listing.partitions) == ("f70cda24", 2)
    assert listing.files == [
        [FoundFile("a.json", 10, 1_700_000_000_000)],
        [FoundFile("b.json", 5, 1_700_000_000_001)],
    ]
    folder = FileObjectStore(tmp_path / "folder")
    folder.put_if_absent(
        f"_penstock/00001/{0:020d}",
        b'{"format":1,"token":"t","epochs":{"job":4},"marks":{"job":[7,3]},"files":1,'
        b'"file":{"name":"part-00001-00000000000000000000-t.parquet","size_bytes":9,"rows":2}}',
    )
    last = PartitionLog(folder, at(1)).read()
    assert (last.epochs, last.marks, last.files) == ({"job": 4}, {"job": (7, 3)}, 1)
    assert last.file == WrittenFile("part-00001-00000000000000000000-t.parquet", 9, 2)
    folder.put_if_absent(f"_penstock/00000/{0:020d}", b'{"format":2}')
    with pytest.raises(IncompatibleError, match="has format 2; this Penstock reads formats up to 1"):
        PartitionLog(folder, at(0)).read()
    objects.put_if_absent(f"later/log/{0:020d}", b'{"format":3}')
    with pytest.raises(IncompatibleError, match="has format 3; this Penstock reads formats up to 2"):
        Listing(objects, "later", "/lake/rides").read()
