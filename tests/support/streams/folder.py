"""A folder with data files, and systems that read it as a stream."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import ColumnChunk, OffsetRange, RawMessage
from penstock.system.files.system import FilesSystem

STREAM = "rides"


class Room:
    """A folder, and systems that read it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "data" / STREAM
        self.folder.mkdir(parents=True)

    def system(self, **options: object) -> FilesSystem:
        given = {"folder": str(self.home / "data"), "listing": str(self.home / "jobs" / "_files"), **options}
        return FilesSystem.configured("files", {key.replace("_", "."): str(value) for key, value in given.items()})

    def put(self, name: str, data: bytes, modified_s: int = 1_700_000_000) -> Path:
        """A file as it should come: complete, in one step."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}")
        hidden.write_bytes(data)
        os.utime(hidden, (modified_s, modified_s))
        return hidden.rename(path)

    def ends(self, **options: object) -> dict[int, int]:
        with closing(self.system(**options).admin()) as admin:
            return {partition: ends.upcoming for partition, ends in admin.offsets(STREAM).items()}

    def rows(self, ends: dict[int, int], **options: object) -> dict[int, list[RawMessage]]:
        """All messages of each partition."""
        with closing(self.system(**options).reader()) as reader:
            return {
                partition: [each for chunk in reader.read(of(partition, 0, end), 100) for each in chunk]
                for partition, end in ends.items()
            }

    def all(self, **options: object) -> list[Any]:
        rows = self.rows(self.ends(**options), **options)
        return [json.loads(m[3] or b"") for own in rows.values() for m in own]


def of(partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(SystemStreamPartition("files", STREAM, partition), start, end)


def parquet(rows: list[dict[str, Any]], group: int = 50) -> bytes:
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.Table.from_pylist(rows), sink, row_group_size=group)
    return bytes(sink.getvalue())


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return b"\n".join(json.dumps(row).encode() for row in rows) + b"\n\n"


def csv(rows: list[dict[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(pa.Table.from_pylist(rows), sink)
    return bytes(sink.getvalue())


def numbered(first: int, count: int) -> list[dict[str, Any]]:
    return [{"n": n, "text": f"line\n{n}", "none": None} for n in range(first, first + count)]


def chunks(room: Room, schema: pa.Schema, **options: object) -> list[ColumnChunk | list[RawMessage]]:
    """The chunks of all partitions that a reader of columns brings."""
    with closing(room.system(**options).reader()) as reader:
        found = (reader.read_columns(of(n, 0, end), schema, 100) for n, end in room.ends(**options).items())
        return [chunk for own in found for chunk in own]
