"""Pushed tables on Spark: a job that takes new versions while it runs; large tables, against a read with pyarrow."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import rocksdict
from pyspark.sql import SparkSession

import penstock as ps
from penstock.api.side_inputs import PushedTable
from penstock.base.secrets import RootKeys
from penstock.errors import ConfigError, NotFoundError, RetryableError
from penstock.graph.stores import StoreSpec
from penstock.job.paths import JobPaths
from penstock.objects.file import FileObjectStore
from penstock.spark.containers.directory import ContainerDirectory
from penstock.system.partitioner import partition_of
from penstock.tables.build import BuildRequest, TableRefusedError, find_place, read_version
from penstock.tables.manifest import TableFile
from penstock.tables.spark import SparkTableBuilder
from penstock.testing.runner.sides import ArrowTableBuilder
from tests.support.apps import pushed_app
from tests.support.jobs.home import DEADLINE_S, wait_until
from tests.support.jobs.spark_home import SparkHome

pytestmark = pytest.mark.spark
TASKS = 2
TAILS = [f"N{n}" for n in range(20)]
PATHS = JobPaths("pushed", "1")


class Airport(SparkHome):
    """Flights, and the tables that are pushed."""

    flown = 0

    def push_planes(self, version: int, *, complete: bool = True) -> Path:
        place = self.folder / "planes" / f"v{version}"
        place.mkdir(parents=True)
        table = pa.table({"tailnum": TAILS[:-1], "year": range(2000, 2000 + len(TAILS) - 1)})
        pq.write_table(table.append_column("version", pa.array([version] * table.num_rows)), place / "part-0.parquet")
        if complete:
            (place / "_SUCCESS").touch()
        return place

    def push_carriers(self, name: str) -> None:
        place = self.folder / "carriers"
        place.mkdir(exist_ok=True)
        (place / f"{name}.csv").write_text(f"carrier,name\nAA,{name}\n")
        (place / "_manifest.new").write_text(json.dumps({"files": [f"{name}.csv"], "rows": 1}))
        (place / "_manifest.new").rename(place / "_manifest.json")

    def fly(self) -> range:
        """A flight of each plane."""
        first = self.flown
        for tail in TAILS:
            self.publish("flights", tail, json.dumps({"carrier": "AA", "n": self.flown}).encode())
            self.flown += 1
        return range(first, self.flown)

    def enriched(self) -> dict[int, tuple[Any, str | None]]:
        return {value["n"]: (value["plane"], value["name"]) for _, value, _ in self.read("enriched")}


def plane(number: int, version: int) -> dict[str, Any] | None:
    """The expected row for a flight: the row of its plane; the last plane is in no version."""
    at = number % len(TAILS)
    return None if at == len(TAILS) - 1 else {"tailnum": TAILS[at], "year": 2000 + at, "version": version}


@pytest.fixture
def built_early(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were looked at before every container had its tasks."""
    found: list[str] = []
    opened = threading.Event()
    open_all, markers = ContainerDirectory.open, SparkTableBuilder.markers

    def watched_open(directory: ContainerDirectory, *args: Any) -> Any:
        due = open_all(directory, *args)
        opened.set()
        return due

    def watched_markers(builder: SparkTableBuilder, url: str) -> Any:
        if not opened.is_set():
            found.append(url)
        return markers(builder, url)

    monkeypatch.setattr(ContainerDirectory, "open", watched_open)
    monkeypatch.setattr(SparkTableBuilder, "markers", watched_markers)
    return found


def test_versions_that_are_pushed_in_a_run(spark: SparkSession, tmp_path: Path, built_early: list[str]) -> None:
    config = {"job.batch.interval.ms": 50, "tables.poll.ms": 100}
    airport = Airport(tmp_path, spark, {"flights": TASKS, "enriched": TASKS}, config)
    airport.push_planes(1)
    airport.push_carriers("American")
    first = airport.fly()
    with airport.start(pushed_app.enriched(tmp_path)) as job:
        wait_until(lambda: len(airport.enriched()) == len(first) or not job.is_active, "the first flights")
        assert airport.enriched() == {n: (plane(n, 1), "American") for n in first}
        assert not built_early, "a first build takes every slot of Spark, and containers start in these"
        half = airport.push_planes(2, complete=False)
        (half / "_manifest.json").write_text(json.dumps({"files": ["part-0.parquet", "part-1.parquet"]}))
        airport.push_carriers("Envoy")

        def shown(version: int, name: str) -> bool:
            """True if flights that take off now show everything, and nothing shows a mixture."""
            numbers = airport.fly()
            wait_until(lambda: numbers[-1] in airport.enriched() or not job.is_active, "a flight")
            wait_until(lambda: set(numbers) <= airport.enriched().keys() or not job.is_active, "all flights")
            found = airport.enriched()
            assert all(found[n][0] in (plane(n, 1), plane(n, version)) for n in numbers)
            return {n: found[n] for n in numbers} == {n: (plane(n, version), name) for n in numbers}

        wait_until(lambda: shown(1, "Envoy"), "another name", DEADLINE_S)
        (half / "part-1.parquet").write_bytes((half / "part-0.parquet").read_bytes())
        (half / "_manifest.json").write_text(json.dumps({"files": ["part-0.parquet"], "rows": len(TAILS) - 1}))
        wait_until(lambda: shown(2, "Envoy"), "the second version", DEADLINE_S)
    wait_until(
        lambda: not [each for each in threading.enumerate() if each.name == "penstock-tables"], "its thread ends"
    )
    before = len(airport.enriched())
    numbers = airport.fly()
    with airport.start(pushed_app.enriched(tmp_path), until="latest") as job:
        assert job.await_termination(DEADLINE_S)
    assert len(airport.enriched()) == before + len(numbers)
    assert {n: airport.enriched()[n] for n in numbers} == {n: (plane(n, 2), "Envoy") for n in numbers}


class Build:
    """A table in a folder, and its builds with Spark."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.source.mkdir()
        self.objects = FileObjectStore(folder / "root")
        self.builder = SparkTableBuilder(spark.sparkContext, str(folder / "root"), RootKeys(), PATHS)

    def push(self, table: pa.Table, files: int = 1) -> None:
        size = -(-table.num_rows // files)
        for number in range(files):
            pq.write_table(table.slice(number * size, size), self.source / f"part-{number}.parquet")
        (self.source / "_SUCCESS").touch()

    def side(self, **options: Any) -> PushedTable:
        return ps.PushedTable(self.source.as_uri(), **{"key": "k", **options})

    def build(
        self, spec: StoreSpec | PushedTable, tasks: int = 3, build: str = "1-a", *, alone: bool = True
    ) -> tuple[TableFile, ...]:
        spec = spec if isinstance(spec, StoreSpec) else store(spec)
        side = cast("PushedTable", spec.side)
        place = find_place(self.builder, side)
        assert place is not None
        source = read_version(self.builder, side, place)
        return self.builder.build(BuildRequest(spec, tasks, source, build, alone))

    def entries(self, files: tuple[TableFile, ...], task: int) -> dict[bytes, bytes]:
        db = cast("Any", rocksdict.Rdict(str(self.folder / f"db-{task}"), rocksdict.Options(raw_mode=True)))
        for file in (each for each in files if each.task == task):
            sst = self.folder / file.name
            sst.write_bytes(self.objects.get(PATHS.table_file("planes", "1-a", file.name)))
            db.ingest_external_file([str(sst)], rocksdict.IngestExternalFileOptions())
        found: dict[bytes, bytes] = dict(db.items())
        db.close()
        return found


def store(side: PushedTable, key: ps.Serde[Any] | None = None, value: ps.Serde[Any] | None = None) -> StoreSpec:
    app = ps.StreamApplication("app")
    app.input("local.in")
    app.store("planes", key=key, value=value, pushed=side)
    return app.graph().stores[0]


@pytest.fixture
def build(spark: SparkSession, tmp_path: Path) -> Build:
    return Build(spark, tmp_path)


@pytest.mark.slow
def test_a_large_table_is_what_pyarrow_reads(build: Build) -> None:
    count = 60_000
    numbers = np.random.default_rng(7).permutation(count)
    at = pa.array(numbers * 1_000_003, pa.timestamp("us", "UTC"))
    day = pa.array((numbers % 20_000).astype(np.int32), pa.date32())
    build.push(pa.table({"k": numbers, "seats": numbers % 400, "at": at, "day": day}), files=5)
    spec = store(build.side(), ps.Long())
    files = build.build(spec, alone=False)
    assert [(file.task, file.first) for file in files] == sorted((file.task, file.first) for file in files)
    assert sum(file.rows for file in files) == count
    expected: dict[int, dict[bytes, Any]] = {task: {} for task in range(3)}
    streamed, stored = ps.Long().for_keys(), ps.Long().for_store_keys()
    for row in pads.dataset(build.source, format="parquet").to_table().to_pylist():
        value = {**row, "at": row["at"].isoformat().removesuffix("+00:00"), "day": row["day"].isoformat()}
        expected[partition_of(streamed.to_bytes(row["k"]), 3)][stored.to_bytes(row["k"])] = value
    for task in range(3):
        found = build.entries(files, task)
        assert list(found) == sorted(expected[task])
        decoded = {key: json.loads(value) for key, value in found.items()}
        for value in decoded.values():
            value["at"] = value["at"].removesuffix("+00:00").removesuffix("Z")
        assert decoded == expected[task]


def test_spark_and_pyarrow_build_the_same(build: Build) -> None:
    rows: list[dict[str, Any]] = [
        {
            "k": f"N{n}",
            "nested": {"list": [n, None], "deep": [{"x": n / 4}]},
            "none": None if n % 2 else "text",
            "at": dt.datetime(2013, 1, 2, 3, 4, 5, n, tzinfo=dt.UTC),
        }
        for n in range(50)
    ]
    build.push(pa.Table.from_pylist(rows), files=2)
    spec = store(build.side())
    with_spark = build.entries(build.build(spec, 1), 0)
    place = find_place(build.builder, build.side())
    assert place is not None
    source = read_version(build.builder, build.side(), place)
    arrow = ArrowTableBuilder(build.objects, PATHS)
    assert sorted(each.path for each in arrow.files(str(build.source))) == sorted(
        each.path for each in build.builder.files(str(build.source))
    )
    files = arrow.build(BuildRequest(spec, 1, source, "1-b", alone=True))
    assert [(file.rows, file.first, file.last) for file in files] == [(50, b"N0", b"N9")]
    assert {key: json.loads(value) for key, value in with_spark.items()} == {
        row["k"].encode(): {**row, "at": row["at"].isoformat()} for row in rows
    }


def test_folders_of_partitions_and_several_key_columns(build: Build) -> None:
    for year in (2012, 2013):
        (build.source / f"year={year}").mkdir()
        pq.write_table(pa.table({"k": ["a", "b"]}), build.source / f"year={year}" / "x.parquet")
    (build.source / "_SUCCESS").touch()
    key = ps.Tuple(ps.String(), ps.Long())
    files = build.build(store(build.side(key=("k", "year"), broadcast=True), key))
    assert [key.from_bytes(each) for each in build.entries(files, 0)] == [
        ("a", 2012),
        ("a", 2013),
        ("b", 2012),
        ("b", 2013),
    ]


def test_it_needs_no_pandas_and_takes_any_name_of_a_column(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ImportError("there is no pandas")

    for module in ("pyspark.sql.pandas.functions", "pyspark.sql.pandas.utils", "pyspark.sql.udf"):
        monkeypatch.setattr(f"{module}.require_minimum_pandas_version", refuse)
    build.push(pa.table({"k": ["a"], "odd.name `x`": [1]}))
    assert build.entries(build.build(build.side(), 1), 0) == {b"a": b'{"k":"a","odd.name `x`":1}'}


def test_csv_with_a_schema(build: Build) -> None:
    (build.source / "planes.csv").write_text("N1;1999;\nN2;2000;x\n")
    (build.source / "_SUCCESS").touch()
    side = build.side(format="csv", schema="k STRING, year INT, note STRING", options={"sep": ";"})
    assert build.entries(build.build(side, 1), 0) == {
        b"N1": b'{"k":"N1","year":1999,"note":null}',
        b"N2": b'{"k":"N2","year":2000,"note":"x"}',
    }


@pytest.mark.parametrize("text", ["year,k\n1999,N1\n", "k,year\nN1,new\n"], ids=["another order", "another type"])
def test_csv_that_does_not_fit_the_schema(build: Build, text: str) -> None:
    (build.source / "planes.csv").write_text(text)
    (build.source / "_SUCCESS").touch()
    side = build.side(format="csv", schema="k STRING, year INT", options={"header": "true"})
    with pytest.raises(RetryableError, match=r"CSV header|NumberFormatException"):
        build.build(side, 1)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("table", "options", "reason"),
    [
        ({"k": ["a", "b", "a"]}, {}, "two rows have the key 'a'"),
        ({"k": ["a", None, None]}, {}, "2 rows have no key: column `k` is null"),
        ({"k": ["a"]}, {"value": "seats"}, "has no column `seats`; it has `k`"),
        ({"k": ["a"], "price": [decimal.Decimal("1.50")]}, {}, r"key 'a': column `price` \(Decimal\) does not fit"),
        ({"k": [1]}, {}, "the key 1, from column `k`, does not fit the serde `string`"),
    ],
)
def test_what_is_no_table_is_refused(build: Build, table: dict[str, Any], options: dict[str, Any], reason: str) -> None:
    build.push(pa.table(table), files=2)
    with pytest.raises(TableRefusedError, match=reason):
        build.build(build.side(**options), alone=False)


def test_what_spark_cannot_read(build: Build) -> None:
    (build.source / "part-0.parquet").write_bytes(b"this is no Parquet file")
    (build.source / "_SUCCESS").touch()
    with pytest.raises((TableRefusedError, RetryableError), match="source"):
        build.build(build.side())
    for name in ("part-0.parquet", "_SUCCESS"):
        (build.source / name).unlink()
    (build.source / "_delta_log").mkdir()
    (build.source / "_delta_log" / f"{0:020d}.json").write_text("{}")
    with pytest.raises(ConfigError, match=r'format="delta": Spark has no Delta package. Add `io.delta:delta-spark'):
        build.build(build.side(format="delta"))


def test_folders_by_the_urls_that_spark_reads(build: Build) -> None:
    missing = f"{build.source.as_uri()}/missing"
    assert (build.builder.markers(missing), build.builder.files(missing)) == ([], [])
    with pytest.raises(NotFoundError, match="there is no"):
        build.builder.read(missing)
    with pytest.raises((ConfigError, RetryableError), match="`nonsense://x` cannot be listed"):
        build.builder.markers("nonsense://x")


def test_a_cancelled_build_ends(build: Build) -> None:
    build.push(pa.table({"k": [f"N{n}" for n in range(1000)]}))
    build.builder.cancel()
    with pytest.raises(RetryableError, match="was cancelled"):
        build.build(build.side())
