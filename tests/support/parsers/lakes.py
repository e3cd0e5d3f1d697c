"""Files that others write into a folder: the logs of tables in a lake, and a partition of a local stream."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import OffsetRange, WriterIdentity
from penstock.system.lake.log import TableLog
from penstock.system.local import LocalSystem
from tests.support.parsers.parser import Parser
from tests.support.world.lake_tables import SCHEMA, WrittenIceberg
from tests.support.world.lake_world import lake_of

STREAM = SystemStreamPartition("local", "s", 0)


_HOMES = TemporaryDirectory()  # until the process ends


@cache
def written_delta() -> Path:
    """A table as its protocol has it, without its library: a process that is forked behind the first use has none."""
    home = Path(_HOMES.name) / "delta"
    table = home / "tables" / "orders"
    (table / "_delta_log").mkdir(parents=True)
    field = {"nullable": True, "metadata": {}}
    fields = [{"name": "n", "type": "long", **field}, {"name": "text", "type": "string", **field}]
    described = {
        "id": "3f2504e0-4f89-41d3-9a0c-0305e82c3301",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": orjson.dumps({"type": "struct", "fields": fields}).decode(),
        "partitionColumns": [],
        "configuration": {"penstock.partitions": "1"},
    }
    commits: list[list[dict[str, Any]]] = [
        [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": described}]
    ]
    for n in (1, 2):
        name = f"part-{n}.parquet"
        pa.parquet.write_table(pa.table({"n": [n], "text": ["a"]}, SCHEMA), table / name)
        added = {"path": name, "partitionValues": {}, "size": (table / name).stat().st_size, "modificationTime": n}
        commits.append([{"add": {**added, "dataChange": True, "stats": '{"numRecords":1}'}}])
    commits.append([{"remove": {"path": "part-1.parquet", "deletionTimestamp": 3, "dataChange": True}}])
    for version, actions in enumerate(commits):
        info = {"commitInfo": {"timestamp": version + 1, "operation": "WRITE"}}
        lines = [orjson.dumps(each) for each in (info, *actions)]
        (table / "_delta_log" / f"{version:020}.json").write_bytes(b"\n".join(lines))
    return home


@cache
def written_iceberg(codec: str = "gzip") -> Path:
    """
    Args:
        codec: packs manifests. Damage of packed ones is seldom more than damage of what they are packed in."""
    home = Path(_HOMES.name) / f"iceberg-{codec}"
    table = WrittenIceberg(home)
    with table.table.transaction() as transaction:
        transaction.set_properties({"write.avro.compression-codec": codec})
    table.append([{"n": 1, "text": "a"}])
    table.append([{"n": 2, "text": None}])
    return home


@cache
def written_stream() -> Path:
    home = Path(_HOMES.name) / "streams"
    system = LocalSystem("local", str(home))
    admin, writer = system.admin(), system.writer(WriterIdentity("w", 3))
    admin.create_stream("s", 1)
    writer.append(STREAM, [(n, b"k%d" % (n % 2), b"v") for n in range(4)])
    admin.compact(OffsetRange(STREAM, 0, 3), WriterIdentity("w", 3))
    admin.close()
    writer.close()
    return home


def the_file(home: Path, pattern: str) -> Path:
    """The newest file with this name, as a path below the folder."""
    return max(home.rglob(pattern), key=lambda path: (path.name, path.stat().st_mtime_ns)).relative_to(home)


def walk(log: TableLog) -> None:
    """Ask a log everything that a reader asks of it."""
    log.refresh()
    log.partitions, log.identity, log.schema  # noqa: B018 - each is read
    log.oldest(1 << 42)
    for commit in log.commits(0):
        len(commit.files)
    for file in log.snapshot(log.head):
        log.count(file)
        for batch in log.batches(file, 0, 10, None):
            batch.to_pylist()
    log.refresh()


@contextmanager
def replaced(home: Path, file: Path, data: bytes) -> Iterator[None]:
    """With these bytes as one file of a folder."""
    before = (home / file).read_bytes()
    try:
        (home / file).write_bytes(data)
        yield
    finally:
        (home / file).write_bytes(before)


def of_delta(pattern: str) -> Parser:
    file = the_file(written_delta(), pattern)

    def read(data: bytes) -> None:
        with replaced(written_delta(), file, data):
            walk(lake_of("delta", written_delta()).lake.log("orders"))

    return Parser(read, [(written_delta() / file).read_bytes()], touches_files=True, memory=64 << 20)


def of_iceberg(pattern: str, codec: str = "gzip") -> Parser:
    home = written_iceberg(codec)
    file = the_file(home, pattern)

    def read(data: bytes) -> None:
        with replaced(home, file, data):
            walk(lake_of("iceberg", home).lake.log("orders"))

    return Parser(read, [(home / file).read_bytes()], touches_files=True, memory=64 << 20)


def read_partition(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        shutil.copytree(written_stream(), folder, dirs_exist_ok=True)
        (Path(folder) / "s" / "0.db").write_bytes(data)
        system = LocalSystem("local", folder)
        reader, admin = system.reader(), system.admin()
        try:
            admin.offsets("s")
            list(reader.read_compacted(OffsetRange(STREAM, 0, 4), 2))
            list(reader.read(OffsetRange(STREAM, 3, 4), 2))
        finally:
            admin.close()
            reader.close()


LAKES: dict[str, Parser] = {
    "newest commit of Delta": of_delta("00000000000000000003.json"),
    "first commit of Delta": of_delta("00000000000000000000.json"),
    "data file of Delta": of_delta("*.parquet"),
    "metadata of Iceberg": of_iceberg("*.metadata.json"),
    "list of manifests of Iceberg": of_iceberg("snap-*.avro"),
    "list of manifests of Iceberg, not packed": of_iceberg("snap-*.avro", "null"),
    "manifest of Iceberg": of_iceberg("*-m0.avro"),
    "manifest of Iceberg, not packed": of_iceberg("*-m0.avro", "null"),
    "partition of a local stream": Parser(
        read_partition, [(written_stream() / "s" / "0.db").read_bytes()], touches_files=True
    ),
}
