"""From rows to sorted files: every key once, in its task, in order; and what is refused."""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import secrets
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rocksdict

import penstock as ps
from penstock.errors import RetryableError
from penstock.graph.stores import StoreSpec
from penstock.job.paths import JobPaths
from penstock.objects.open import forget_memory_store, open_store
from penstock.system.partitioner import partition_of
from penstock.tables.build import BuildRequest, SourceVersion, TableRefusedError
from penstock.tables.manifest import TableFile
from penstock.testing.runner.sides import ArrowTableBuilder

PATHS = JobPaths("j", "1")
URL = "memory://table-files"


class Built:
    """A build, and the entries that its files have, read by RocksDB."""

    def __init__(
        self, folder: Path, rows: list[dict[str, Any]] | pa.Table, spec: StoreSpec, tasks: int = 3, **options: int
    ):
        forget_memory_store(URL)
        self.objects = open_store(URL)
        self.folder = folder
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
        half = table.num_rows // 2
        pq.write_table(table.slice(0, half), folder / "a.parquet")
        pq.write_table(table.slice(half), folder / "b.parquet")
        source = SourceVersion(str(folder), "v1", (f"{folder}/a.parquet", f"{folder}/b.parquet"))
        builder = ArrowTableBuilder(self.objects, PATHS, **options)
        self.files = builder.build(BuildRequest(spec, tasks, source, "1-a", alone=True))

    def entries(self, task: int) -> dict[bytes, bytes]:
        options = rocksdict.Options(raw_mode=True)
        path = self.folder / f"db-{task}"
        db = rocksdict.Rdict(str(path), options)
        for number, file in enumerate(each for each in self.files if each.task == task):
            data = self.objects.get(PATHS.table_file("planes", "1-a", file.name))
            assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size_bytes, file.sha256)
            sst = self.folder / f"{task}-{number}.sst"
            sst.write_bytes(data)
            db.ingest_external_file([str(sst)], rocksdict.IngestExternalFileOptions())
        found: dict[bytes, bytes] = dict(cast("Any", db).items())
        db.close()
        return found


def planes(side: ps.PushedTable, key: ps.Serde[Any] | None = None, value: ps.Serde[Any] | None = None) -> StoreSpec:
    app = ps.StreamApplication("app")
    app.input("local.in")
    app.store("planes", key=key, value=value, pushed=side)
    return next(store for store in app.graph().stores if store.name == "planes")


def test_every_row_is_in_its_task_and_files_are_bounded(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"tail": f"N{number}", "year": number % 50, "model": secrets.token_hex(40)} for number in range(5000)
    ]
    spec = planes(ps.PushedTable(str(tmp_path), key="tail", value=("year", "model")))
    built = Built(tmp_path, rows, spec, file_bytes=20_000)
    assert sum(file.rows for file in built.files) == 5000
    assert len(built.files) > 6
    for task in range(3):
        own = [file for file in built.files if file.task == task]
        assert all(a.last < b.first for a, b in pairwise(own))
        expected = {
            row["tail"].encode(): orjson.dumps({"year": row["year"], "model": row["model"]})
            for row in rows
            if partition_of(row["tail"].encode(), 3) == task
        }
        assert built.entries(task) == expected


def test_keys_go_to_the_task_of_their_streams_whatever_their_bytes_in_stores(tmp_path: Path) -> None:
    spec = planes(ps.PushedTable(str(tmp_path), key="id", value="name"), ps.Long(), ps.String())
    built = Built(tmp_path, [{"id": number, "name": str(number)} for number in range(-50, 50)], spec)
    streamed, stored = ps.Long().for_keys(), ps.Long().for_store_keys()
    assert streamed.to_bytes(7) != stored.to_bytes(7)
    for task in range(3):
        expected = {
            stored.to_bytes(number): str(number).encode()
            for number in range(-50, 50)
            if partition_of(streamed.to_bytes(number), 3) == task
        }
        assert built.entries(task) == expected


def test_a_broadcast_table_has_everything_once(tmp_path: Path) -> None:
    key = ps.Tuple(ps.String(), ps.Long())
    spec = planes(ps.PushedTable(str(tmp_path), key=("a", "b"), broadcast=True), key)
    built = Built(tmp_path, [{"a": "x", "b": number, "c": None} for number in range(9)], spec)
    assert {file.task for file in built.files} == {0}
    entries = built.entries(0)
    assert [key.from_bytes(each) for each in entries] == [("x", number) for number in range(9)]
    assert orjson.loads(entries[key.to_bytes(("x", 3))]) == {"a": "x", "b": 3, "c": None}


def test_types_that_json_has(tmp_path: Path) -> None:
    row = {
        "k": "a",
        "day": dt.date(2013, 1, 2),
        "at": dt.datetime(2013, 1, 2, 3, 4, 5, 600, tzinfo=dt.UTC),
        "nested": {"list": [1, None], "deep": [{"x": 1.5}]},
        "none": None,
        "flag": True,
    }
    built = Built(tmp_path, [row], planes(ps.PushedTable(str(tmp_path), key="k")), 1)
    assert orjson.loads(built.entries(0)[b"a"]) == {
        "k": "a",
        "day": "2013-01-02",
        "at": "2013-01-02T03:04:05.000600+00:00",
        "nested": {"list": [1, None], "deep": [{"x": 1.5}]},
        "none": None,
        "flag": True,
    }


def test_maps_are_dicts(tmp_path: Path) -> None:
    column = pa.array([[("a", 1), ("b", 2)]], pa.map_(pa.string(), pa.int64()))
    rows = pa.table({"k": ["x"], "m": column})
    built = Built(tmp_path, rows, planes(ps.PushedTable(str(tmp_path), key="k", value="m")), 1)
    assert built.entries(0) == {b"x": b'{"a":1,"b":2}'}


@pytest.mark.parametrize(
    ("rows", "options", "reason"),
    [
        ([{"k": "a", "v": 1}, {"k": "b", "v": 1}, {"k": "a", "v": 2}], {}, r"two rows have the key 'a' \(column `k`\)"),
        ([{"k": "a"}, {"k": None}, {"k": None}], {}, "2 rows have no key: column `k` is null"),
        ([{"k": "a"}], {"key": "tail"}, "has no column `tail`; it has `k`.*`key=`"),
        ([{"k": "a"}], {"value": ("x", "k")}, "has no column `x`"),
        (
            [{"k": "a", "good": 1, "price": decimal.Decimal("1.5")}],
            {},
            r"the row with the key 'a': column `price` \(Decimal\) does not fit the serde `json`.*Cast the column",
        ),
        ([{"k": "a", "x": float("nan")}], {}, "column `x` .float. does not fit the serde `json`: JSON has no nan"),
        ([{"k": "a", "v": None}], {"value": "v"}, "key 'a': column `v` does not fit .* it is null"),
        ([{"k": 1}], {}, "the key 1, from column `k`, does not fit the serde `string`"),
    ],
)
def test_rows_that_are_no_table_are_refused(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any], reason: str
) -> None:
    spec = planes(ps.PushedTable(str(tmp_path), **{"key": "k", **options}))
    with pytest.raises(TableRefusedError, match=reason):
        Built(tmp_path, rows, spec)


def test_a_duplicate_is_found_where_a_file_ends(tmp_path: Path) -> None:
    """A file is looked at every 256 rows: the first row of the next one has the last key again."""
    rows = [{"tail": f"N{number:04}", "model": secrets.token_hex(40)} for number in [*range(300), 255]]
    spec = planes(ps.PushedTable(str(tmp_path), key="tail", value="model"))
    with pytest.raises(TableRefusedError, match=r"two rows have the key 'N0255'"):
        Built(tmp_path, rows, spec, tasks=1, file_bytes=1)
    other = tmp_path / "other"
    other.mkdir()
    files = Built(
        other,
        rows[:-1],
        replace(spec, side=ps.PushedTable(str(other), key="tail", value="model")),
        tasks=1,
        file_bytes=1,
    ).files
    assert [file.rows for file in files] == [256, 44]


def test_keys_that_the_store_reserves_are_refused(tmp_path: Path) -> None:
    spec = planes(ps.PushedTable(str(tmp_path), key="k", value="v"), ps.Bytes(), ps.String())
    with pytest.raises(TableRefusedError, match="begins with 16 bytes 0xff"):
        Built(tmp_path, [{"k": b"\xff" * 17, "v": "x"}], spec)


def test_a_table_may_be_empty(tmp_path: Path) -> None:
    rows = pa.table({"k": pa.array([], pa.string())})
    assert Built(tmp_path, rows, planes(ps.PushedTable(str(tmp_path), key="k"))).files == ()


def test_a_cancelled_build_ends(tmp_path: Path) -> None:
    builder = ArrowTableBuilder(open_store(URL), PATHS)
    builder.cancel()
    source = SourceVersion(str(tmp_path), "v", (f"{tmp_path}/a.parquet",))
    spec = planes(ps.PushedTable(str(tmp_path), key="k"))
    with pytest.raises(RetryableError, match="was cancelled"):
        builder.build(BuildRequest(spec, 1, source, "1-a", alone=True))


def test_csv(tmp_path: Path) -> None:
    (tmp_path / "planes.csv").write_text("tail,year\nN1,2001\nN2,2002\n")
    objects = open_store(URL)
    spec = planes(ps.PushedTable(str(tmp_path), key="tail", value="year", format="csv", options={"header": "true"}))
    source = SourceVersion(str(tmp_path), "v", (f"{tmp_path}/planes.csv",))
    files = ArrowTableBuilder(objects, PATHS).build(BuildRequest(spec, 1, source, "1-csv", alone=True))
    assert [type(file) for file in files] == [TableFile]
    assert (files[0].rows, files[0].first, files[0].last) == (2, b"N1", b"N2")
