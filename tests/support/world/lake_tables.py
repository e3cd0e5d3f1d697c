"""Tables that another program writes, with its library alone, and what their rows are."""

from __future__ import annotations

import shutil
import uuid
from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import orjson
import pyarrow as pa
import pyarrow.parquet
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT, Record
from pyiceberg.types import StringType

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import OffsetRange, RawMessage
from penstock.system.lake.system import LakeSystem
from tests.support.world.lake_world import Kind, lake_of, options_of

SCHEMA = pa.schema({"n": pa.int64(), "text": pa.string()})
Row = dict[str, Any]


class WrittenTable(ABC):
    """The table `orders`."""

    kind: Kind

    def __init__(self, home: Path, schema: pa.Schema = SCHEMA) -> None:
        self.home = home
        self.schema = schema
        self.create()

    def system(self, **options: str) -> LakeSystem:
        """A system that looks at the table whenever it is asked."""
        return replace(lake_of(self.kind, self.home, **{"partitions": "2", **options}), poll_ms=0)

    @abstractmethod
    def create(self) -> None: ...

    @abstractmethod
    def append(self, rows: list[Row]) -> None: ...

    @abstractmethod
    def compact(self) -> None:
        """Join all files; the rows stay."""

    @abstractmethod
    def delete(self, n: int) -> None: ...

    @abstractmethod
    def add_column(self, name: str) -> None: ...

    @abstractmethod
    def drop(self) -> None: ...

    @abstractmethod
    def forget(self) -> None:
        """Delete the files that only older states of the table need, and these states."""

    @abstractmethod
    def rows(self) -> list[Row]:
        """Everything that is in the table now, by its library."""

    @abstractmethod
    def version(self) -> str:
        """The name of the newest state."""


class WrittenDelta(WrittenTable):
    kind = "delta"

    @property
    def path(self) -> str:
        return f"{self.home}/tables/orders"

    def create(self) -> None:
        DeltaTable.create(self.path, self.schema)

    def append(self, rows: list[Row]) -> None:
        write_deltalake(self.path, pa.Table.from_pylist(rows, self.schema), mode="append")

    def compact(self) -> None:
        DeltaTable(self.path).optimize.compact()

    def delete(self, n: int) -> None:
        DeltaTable(self.path).delete(f"n = {n}")

    def add_column(self, name: str) -> None:
        DeltaTable(self.path).alter.add_columns([Field(name, PrimitiveType("string"))])
        self.schema = self.schema.append(pa.field(name, pa.string()))

    def drop(self) -> None:
        shutil.rmtree(self.path)

    def forget(self) -> None:
        DeltaTable(self.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    def rows(self) -> list[Row]:
        found: list[Row] = DeltaTable(self.path).to_pyarrow_table().to_pylist()
        return found

    def version(self) -> str:
        return str(DeltaTable(self.path).version())


class WrittenIceberg(WrittenTable):
    kind = "iceberg"

    def __init__(self, home: Path, schema: pa.Schema = SCHEMA) -> None:
        options = options_of("iceberg", home)
        catalog = {key.removeprefix("catalog."): text for key, text in options.items() if key.startswith("catalog.")}
        self.catalog = load_catalog("lake", **catalog)
        self.catalog.create_namespace("default")
        super().__init__(home, schema)

    @property
    def table(self) -> Any:
        return self.catalog.load_table("default.orders")

    def create(self) -> None:
        self.catalog.create_table("default.orders", self.schema)

    def append(self, rows: list[Row]) -> None:
        self.table.append(pa.Table.from_pylist(rows, self.schema))

    def compact(self) -> None:
        """PyIceberg has no rewrite of files, so this does what `rewrite_data_files` does."""
        table = self.table
        files = [task.file for task in table.scan().plan_files()]
        joined = table.scan().to_arrow()
        with table.transaction() as transaction, _Rewrite(Operation.OVERWRITE, transaction, table.io) as snapshot:
            for file in files:
                snapshot.delete_data_file(file)
            for file in _written(transaction, joined):
                snapshot.append_data_file(file)

    def delete(self, n: int) -> None:
        self.table.delete(f"n = {n}")

    def delete_by_position(self, place: int) -> None:
        """Delete a row of each data file, as `merge-on-read` does."""
        table = self.table
        files = [task.file.file_path for task in table.scan().plan_files()]
        path = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
        with table.io.new_output(path).create() as sink:
            pa.parquet.write_table(
                pa.table({"file_path": files, "pos": pa.array([place] * len(files), pa.int64())}, _POSITIONS), sink
            )
        with table.transaction() as transaction, _RowDelta(Operation.OVERWRITE, transaction, table.io) as snapshot:
            cast("_RowDelta", snapshot).deletes = DataFile.from_args(
                content=DataFileContent.POSITION_DELETES,
                file_path=path,
                file_format=FileFormat.PARQUET,
                partition=Record(),
                record_count=len(files),
                file_size_in_bytes=1000,
            )

    def add_column(self, name: str) -> None:
        with self.table.update_schema() as update:
            update.add_column(name, StringType())
        self.schema = self.schema.append(pa.field(name, pa.string()))

    def drop(self) -> None:
        self.catalog.purge_table("default.orders")

    def forget(self) -> None:
        table = self.table
        newest = table.current_snapshot().snapshot_id
        old = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id != newest]
        table.maintenance.expire_snapshots().by_ids(old).commit()

    def rows(self) -> list[Row]:
        found: list[Row] = self.table.scan().to_arrow().to_pylist()
        return found

    def version(self) -> str:
        return str(self.table.current_snapshot().snapshot_id)


class _Rewrite(_OverwriteFiles):
    """A snapshot whose operation is `replace`, which PyIceberg does not make."""

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        return Summary(Operation.REPLACE, **super()._summary(snapshot_properties).additional_properties)


_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _RowDelta(_OverwriteFiles):
    """A snapshot with a file of deletes, which PyIceberg does not make."""

    deletes: DataFile

    def _manifests(self) -> list[ManifestFile]:
        table = self._transaction.table_metadata
        output = self.new_manifest_output()
        with _DeleteManifest(table.spec(), table.schema(), output, self._snapshot_id, self._compression) as writer:
            writer.add(self._entry())
        return [*super()._manifests(), writer.to_manifest_file()]

    def _entry(self) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=self._snapshot_id,
            sequence_number=None,
            file_sequence_number=None,
            data_file=self.deletes,
        )

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        found = super()._summary(snapshot_properties).additional_properties
        return Summary(Operation.OVERWRITE, **found, **{"added-delete-files": "1"})


def _written(transaction: Any, rows: pa.Table) -> Any:
    return _dataframe_to_data_files(transaction.table_metadata, rows, transaction._table.io)


def written(kind: Kind, home: Path, schema: pa.Schema = SCHEMA) -> WrittenTable:
    home.mkdir(exist_ok=True)
    return WrittenDelta(home, schema) if kind == "delta" else WrittenIceberg(home, schema)


class TableJob:
    """Reads a table as a job does: in portions, with a position for each partition."""

    def __init__(self, system: LakeSystem, begin: str = "") -> None:
        """
        Args:
            begin: the name of an offset; the oldest one without it."""
        self.system = system
        self.admin, self.reader = system.admin(), system.reader()
        self.read: list[RawMessage] = []
        self.positions = {
            partition: self.admin.named_offset(of(partition), begin) if begin else ends.oldest
            for partition, ends in self.admin.offsets("orders").items()
        }

    def restart(self) -> None:
        self.admin.close()
        self.reader.close()
        self.admin, self.reader = self.system.admin(), self.system.reader()

    def portion(self, partition: int, messages: int) -> int:
        """Read at most so many messages; returns how many there were."""
        end, found = self.admin.offsets("orders")[partition], list[RawMessage]()
        assert end.oldest <= self.positions[partition] <= end.upcoming
        for chunk in self.reader.read(OffsetRange(of(partition), self.positions[partition], end.upcoming), messages):
            found += chunk
            self.positions[partition] = chunk[-1][0] + 1
            break
        else:
            self.positions[partition] = end.upcoming
        self.read += found
        return len(found)

    def finish(self) -> list[Row]:
        """Read everything that is there. Returns all rows since the beginning, by their numbers."""
        for partition in self.positions:
            while self.portion(partition, 100):
                pass
        return self.rows()

    def rows(self) -> list[Row]:
        return sorted((orjson.loads(message[3] or b"") for message in self.read), key=lambda row: row["n"])

    def close(self) -> None:
        self.admin.close()
        self.reader.close()


def of(partition: int) -> SystemStreamPartition:
    return SystemStreamPartition("lake", "orders", partition)


def all_rows(system: LakeSystem, begin: str = "") -> list[Row]:
    with closing(TableJob(system, begin)) as job:
        return job.finish()
