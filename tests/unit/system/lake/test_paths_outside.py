"""From the side of somebody who may write a table, and wants to see other files of the job's user."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock.errors import IncompatibleError, PenstockError
from penstock.system.lake.iceberg_log import _is_inside
from penstock.system.lake.system import IcebergSystem
from tests.support.world.lake_tables import SCHEMA, WrittenDelta, WrittenIceberg, all_rows
from tests.support.world.lake_world import options_of

pytestmark = pytest.mark.attack


@pytest.fixture
def private(tmp_path: Path) -> Path:
    path = tmp_path / "private.parquet"
    rows = [dict.fromkeys(SCHEMA.names) | {"n": 4711}]
    pa.parquet.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
    return path


def add_to_delta(table: WrittenDelta, path: str, private: Path) -> None:
    """A commit of somebody who writes the log by hand."""
    action = {
        "path": path,
        "partitionValues": {},
        "size": private.stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
        "stats": '{"numRecords": 1}',
    }
    newest = max(Path(table.path, "_delta_log").glob("*.json"))
    following = newest.with_name(f"{int(newest.stem) + 1:020}.json")
    following.write_bytes(b'{"commitInfo":{"timestamp":1,"operation":"WRITE"}}\n' + orjson.dumps({"add": action}))


def link(table: WrittenDelta, private: Path) -> str:
    os.symlink(private, f"{table.path}/link.parquet")
    return "link.parquet"


def linked_folder(table: WrittenDelta, private: Path) -> str:
    os.symlink(private.parent, f"{table.path}/more")
    return f"more/{private.name}"


PATHS: dict[str, Callable[[WrittenDelta, Path], str]] = {
    "above": lambda table, private: os.path.relpath(private, table.path),
    "encoded": lambda table, private: os.path.relpath(private, table.path).replace("..", "%2E%2E"),
    "by way of a folder": lambda table, private: f"_delta_log/../{os.path.relpath(private, table.path)}",
    "absolute": lambda table, private: str(private),
    "absolute, encoded": lambda table, private: str(private).replace("/", "%2F"),
    "a url": lambda table, private: f"file://{private}",
    "a url, encoded": lambda table, private: f"file%3A//{private}",
    "a link": link,
    "a linked folder": linked_folder,
}


@pytest.mark.parametrize("begin", ["", "snapshot"])
@pytest.mark.parametrize("way", PATHS)
def test_a_path_of_delta_that_leads_out_of_the_table(tmp_path: Path, private: Path, way: str, begin: str) -> None:
    table = WrittenDelta(tmp_path / "lake", SCHEMA)
    add_to_delta(table, PATHS[way](table, private), private)
    with pytest.raises(PenstockError, match=r"files of another table|leads out of its folder"):
        all_rows(table.system(), begin)


@pytest.mark.parametrize("begin", ["", "snapshot"])
def test_a_file_of_iceberg_that_is_not_below_the_table(tmp_path: Path, private: Path, begin: str) -> None:
    table = WrittenIceberg(tmp_path / "lake", SCHEMA)
    table.table.add_files([f"file://{private}"])
    with pytest.raises(IncompatibleError, match=r"is not below the table's location.*`systems.<name>.outside`"):
        all_rows(table.system(), begin)
    options = {**options_of("iceberg", tmp_path / "lake"), "outside": "read"}
    assert [row["n"] for row in all_rows(IcebergSystem.configured("lake", options), begin)] == [4711]


def test_a_link_below_an_iceberg_table(tmp_path: Path, private: Path) -> None:
    table = WrittenIceberg(tmp_path / "lake", SCHEMA)
    place = Path(table.table.location().removeprefix("file://"))
    inside, linked = place / "data" / "a.parquet", place / "data" / "link.parquet"
    inside.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(private, inside)
    table.table.add_files([f"file://{inside}"])
    assert [row["n"] for row in all_rows(table.system())] == [4711]
    linked.symlink_to(private)
    table.table.add_files([f"file://{linked}"])
    with pytest.raises(IncompatibleError, match="is not below the table's location"):
        all_rows(table.system())


@pytest.mark.parametrize(
    ("location", "path", "inside"),
    [
        ("s3://b/t", "s3://b/t/data/a", True),
        ("s3a://b/t/", "s3://b/t/data/a", True),
        ("s3://b/t", "s3://b/t2/a", False),
        ("s3://b/t", "s3://c/t/a", False),
        ("s3://b/t", "s3://b/t/../u/a", False),
        ("s3://b/t", "s3://b/t/%2e%2E/u/a", False),
        ("s3://b/t", "gs://b/t/a", False),
        ("s3://b/t", "/etc/passwd", False),
        ("/srv/t", "s3://b/a", False),
        ("file:/srv/t", "file:///srv/t/a", True),
        ("file:///srv/t", "/srv/t/a", True),
        ("/srv/t", "file:///srv/t/../u", False),
        ("/srv/t", "/srv/t2/a", False),
        ("file:///srv/t", "file:///srv/t/%2E%2E/u", False),
    ],
)
def test_paths_and_locations(location: str, path: str, inside: bool) -> None:
    assert _is_inside(location, path) == inside
