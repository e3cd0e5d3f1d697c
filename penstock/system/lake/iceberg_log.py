"""The log of an Iceberg table: the snapshots that lead to the newest one, by their sequence numbers.

Files are read by the ids of their columns, as PyIceberg does; but row group by row group and from any row on, which it
does not. Files that rows were deleted from are read by PyIceberg itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import FileFormat, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.transforms import IdentityTransform

from penstock.errors import CorruptError, IncompatibleError
from penstock.system.lake.files import PARTITIONS, ColumnSelection, count_rows, parsing, partitions_in, reading
from penstock.system.lake.log import Commit, DataFile, TableLog, gone
from penstock.system.rows.reader import leads_out

_ID = b"PARQUET:field_id"
_KEPT_COMMITS = 64
Outside: TypeAlias = Literal["refuse", "read"]
"""The treatment of data files that are not below the table's location."""


@dataclass(frozen=True, slots=True)
class _KnownFile:
    file: IcebergFile
    task: FileScanTask | None = None
    """Set if rows were deleted from the file."""


class IcebergLog(TableLog):
    """The log of an Iceberg table."""

    noun = "snapshot"

    def __init__(
        self,
        title: str,
        load: Callable[[], IcebergTable],
        errors: Callable[[], AbstractContextManager[None]],
        outside: Outside,
    ) -> None:
        """
        Args:
            load: loads the table as it is now.
            errors: the context that explains errors of catalog and storage.
            outside: the treatment of data files that are not below the table's location."""
        self.title = title
        self._outside = outside
        self._load = load
        self._errors = errors
        self._chain: list[Snapshot] = []
        self._replaced: dict[int, str] = {}
        """The numbers of commits that do not follow on what was the newest one before."""
        self._commits: dict[int, Commit] = {}
        self._newest: tuple[int, Mapping[int, list[ManifestFile]]] | None = None
        """The newest snapshot, and its manifests by the commits that added them."""
        self._now: IcebergTable | None = None

    def refresh(self) -> None:
        table = self._load()
        if self._now is not None and table.metadata_location == self._now.metadata_location:
            return
        metadata = table.metadata
        if metadata.format_version < 2:
            raise IncompatibleError(
                f"{self.title} has format version 1, which does not number its commits: set the table's property "
                "`format-version` to 2"
            )
        self._now = table
        by_id = {each.snapshot_id: each for each in metadata.snapshots}
        chain, number = list[Snapshot](), metadata.current_snapshot_id
        while number is not None and (found := by_id.get(number)) is not None:
            if len(chain) == len(by_id):
                raise CorruptError(f"the metadata of {self.title} is damaged: a snapshot is its own ancestor")
            chain.append(found)
            if not _number(found):
                break  # the table had format version 1 then
            number = found.parent_snapshot_id
        self._chain = chain[::-1]
        self._is_whole = _is_first(self._chain[0]) if chain else True
        """True if no commit came before these. PyIceberg takes the parent from a snapshot whose parent was expired, so
        one without a parent says nothing."""
        own = {each.snapshot_id for each in chain}
        logged = {entry.snapshot_id for entry in metadata.snapshot_log} - own
        left = [by_id[each] for each in logged if each in by_id]
        before = 0
        self._replaced = {}
        for snapshot in self._chain:
            if any(before < _number(each) < _number(snapshot) for each in left):
                self._replaced[_number(snapshot)] = "the table was replaced, or rolled back before it"
            before = _number(snapshot)

    @property
    def _table(self) -> IcebergTable:
        if self._now is None:
            raise RuntimeError("refresh first")
        return self._now

    @property
    def identity(self) -> str:
        return str(self._table.metadata.table_uuid)

    @property
    def partitions(self) -> int | None:
        return partitions_in(self._table.properties.get(PARTITIONS), self.title)

    @property
    def schema(self) -> pa.Schema:
        with parsing(f"the schema of {self.title}"):
            found = schema_to_pyarrow(self._table.schema(), include_field_ids=True)
            return pa.schema([field.with_type(_plain(field.type)) for field in found])

    @property
    def head(self) -> int:
        return _number(self._chain[-1]) if self._chain else 0

    def oldest(self, now_ms: int) -> int:
        """A snapshot that is not expired has all its files."""
        return 0 if self._is_whole or not self._chain else _number(self._chain[0])

    def number_of(self, name: str) -> int | None:
        """By the id of the snapshot, or by its sequence number."""
        found = (each for each in self._chain if int(name) in (each.snapshot_id, _number(each)))
        return next(map(_number, found), None)

    def name_of(self, number: int) -> str:
        return next((str(each.snapshot_id) for each in self._chain if _number(each) == number), str(number))

    def snapshot(self, number: int) -> Sequence[DataFile]:
        found = next((each for each in self._chain if _number(each) == number), None)
        if found is None:
            if number == 0 and self._is_whole:
                return []
            raise gone(self, number)
        with self._reading(found.manifest_list):
            manifests = found.manifests(self._table.io)
            tasks = self._tasks(found) if any(each.content == ManifestContent.DELETES for each in manifests) else {}
            entries = [
                entry
                for manifest in manifests
                if manifest.content == ManifestContent.DATA
                for entry in manifest.fetch_manifest_entry(self._table.io)
            ]
        times = {each.snapshot_id: each.timestamp_ms for each in self._table.metadata.snapshots}
        entries.sort(key=lambda entry: entry.sequence_number or 0)
        oldest = self._chain[0].timestamp_ms
        return [_file(entry, times.get(entry.snapshot_id or 0, oldest), tasks) for entry in entries]

    def commits(self, number: int) -> Iterator[Commit]:
        if not self._is_whole and self._chain and number < _number(self._chain[0]):
            raise gone(self, number)
        for snapshot in self._chain:
            if _number(snapshot) >= max(number, 1):
                yield self._commit(snapshot)

    def count(self, file: DataFile) -> int:
        self._check_inside(file.path)
        with self._reading(file.path):
            return count_rows(self._table.io.new_input(file.path).open())

    def batches(
        self, file: DataFile, first: int, rows: int, columns: Sequence[str] | None
    ) -> Generator[pa.RecordBatch, None, None]:
        own: IcebergFile = file.known.file
        if own.file_format != FileFormat.PARQUET:
            raise IncompatibleError(
                f"{self.title}: `{file.path}` is a file of {own.file_format}, and Penstock reads Parquet. Let Spark "
                "write its rows to a folder, and read that with a system `files`"
            )
        deletes = () if file.known.task is None else file.known.task.delete_files
        for path in (file.path, *(each.file_path for each in deletes)):
            self._check_inside(path)
        shape = ColumnSelection(self.schema, columns, _key, self._file_key)
        with self._reading(file.path):
            if file.known.task is not None:
                yield from self._undeleted(file.known.task, shape, first)
                return
            source: Any = self._table.io.new_input(file.path).open()
            yield from shape.read(source, file.path, file.rows, first, rows, self._constants(own, shape))

    def _check_inside(self, path: str) -> None:
        """Manifests are written by others, and may name any file. Raises IncompatibleError if one is not of the
        table."""
        if self._outside == "refuse" and not _is_inside(self._table.metadata.location, path):
            raise IncompatibleError(
                f"{self.title} has the file `{path}`, which is not below the table's location "
                f"`{self._table.metadata.location}`: any writer of the table could show any file that this job may "
                "read. If such files belong to it, as after `add_files`, set `systems.<name>.outside` to `read`"
            )

    def _commit(self, snapshot: Snapshot) -> Commit:
        known = self._commits.get(snapshot.snapshot_id)
        if known is None:
            number = _number(snapshot)
            change = self._replaced.get(number) or _change(snapshot)
            files = partial(self._added, snapshot)
            known = self._commits[snapshot.snapshot_id] = Commit(number, snapshot.timestamp_ms, change, files)
            if len(self._commits) > _KEPT_COMMITS:
                del self._commits[next(iter(self._commits))]
        return known

    def _added(self, snapshot: Snapshot) -> Sequence[DataFile]:
        summary = snapshot.summary
        if summary is not None and summary.operation == Operation.REPLACE:
            return []
        with self._reading(snapshot.manifest_list):
            entries = [
                entry
                for manifest in self._manifests(snapshot)
                for entry in manifest.fetch_manifest_entry(self._table.io)
                if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
            ]
        files = [_file(entry, snapshot.timestamp_ms, {}) for entry in entries]
        return sorted(files, key=lambda file: file.path)

    def _manifests(self, snapshot: Snapshot) -> Sequence[ManifestFile]:
        """The manifests that a commit added. If nobody has merged any since, the newest snapshot lists them as well.
        One list is then read instead of one for each commit, and these are long in such tables."""
        newest = self._chain[-1]
        if self._newest is None or self._newest[0] != newest.snapshot_id:
            by_commit: dict[int, list[ManifestFile]] = {}
            for manifest in newest.manifests(self._table.io):
                if manifest.content == ManifestContent.DATA:
                    by_commit.setdefault(manifest.added_snapshot_id or 0, []).append(manifest)
            self._newest = newest.snapshot_id, by_commit
        found = self._newest[1].get(snapshot.snapshot_id, [])
        added = None if snapshot.summary is None else snapshot.summary.additional_properties.get("added-data-files")
        if added is not None and sum(each.added_files_count or 0 for each in found) == int(added):
            return found
        every = snapshot.manifests(self._table.io)
        data = [each for each in every if each.content == ManifestContent.DATA]
        return [each for each in data if each.added_snapshot_id == snapshot.snapshot_id]

    def _tasks(self, snapshot: Snapshot) -> dict[str, FileScanTask]:
        """The files that rows were deleted from."""
        try:
            tasks = self._table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
            return {task.file.file_path: task for task in tasks if task.delete_files}
        except ValueError as error:
            raise IncompatibleError(
                f"{self.title}: rows of snapshot {snapshot.snapshot_id} were deleted in a way that is not read: "
                f"{error}. Compact the table, or begin behind it with the startpoint `version:ID`"
            ) from error

    def _undeleted(
        self, task: FileScanTask, shape: ColumnSelection, first: int
    ) -> Generator[pa.RecordBatch, None, None]:
        table = self._table
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        skip = first
        for batch in scan.to_record_batches([task]):
            left = batch.slice(min(skip, batch.num_rows)).select(shape.schema.names)
            skip -= min(skip, batch.num_rows)
            yield left

    def _constants(self, file: IcebergFile, shape: ColumnSelection) -> Mapping[str | None, pa.Scalar]:
        """The values of columns that a file may lack: those of its partition, and defaults of columns added later."""
        wanted = {shape.key(field.name): field.type for field in shape.schema}
        found: dict[str | None, pa.Scalar] = {}
        for column in self._table.schema().fields:
            key = str(column.field_id)
            if key in wanted and column.initial_default is not None:
                found[key] = pa.scalar(column.initial_default, wanted[key])
        for place, part in enumerate(self._table.specs()[file.spec_id].fields):
            key = str(part.source_id)
            if key in wanted and isinstance(part.transform, IdentityTransform):
                found[key] = _scalar(file.partition[place], wanted[key])
        return found

    def _file_key(self, field: pa.Field) -> str:
        """Files that another program wrote may have no ids. The table then says them by name."""
        if (own := _key(field)) is not None:
            return own
        mapped = (each.field_id for each in self._table.name_mapping() or () if field.name in each.names)
        found = None if pa.types.is_nested(field.type) else next(mapped, None)
        if found is None:
            raise IncompatibleError(
                f"{self.title} has a file whose column `{field.name}` has no id. Plain columns without one are found "
                "by the table's property `schema.name-mapping.default`; let Spark rewrite files with others "
                "(`rewrite_data_files`)"
            )
        return str(found)

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        is_local = path.startswith(("/", "file:"))
        with parsing(f"{self.title}: `{path}`"), self._errors(), reading(self.title, path, is_local=is_local):
            yield


def _is_inside(location: str, path: str) -> bool:
    """True if a file is below the table's location. Links of this machine are followed to their end."""
    base, own = (_plain_url(each) for each in (location, path))
    if own.startswith("/"):
        return base.startswith("/") and leads_out(base, own) is None
    return own.startswith(f"{base.rstrip('/')}/") and ".." not in unquote(own).split("/")


def _plain_url(url: str) -> str:
    """The path on this machine, or the URL with one name for all clients of S3."""
    if url.startswith("file:"):
        return "/" + unquote(urlsplit(url).path).lstrip("/")
    return re.sub("^s3[an]://", "s3://", url)


def _number(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _is_first(snapshot: Snapshot) -> bool:
    """True if nothing was in the table before. A table that had format version 1 has counted from 1 since then."""
    counts = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    added, total = counts.get("added-data-files", "0"), counts.get("total-data-files")
    return _number(snapshot) == 1 and added == total


def _change(snapshot: Snapshot) -> str | None:
    """Writers report only counts that are not zero."""
    summary = snapshot.summary
    if summary is None:
        return "it does not say what it did"
    if summary.operation in (Operation.APPEND, Operation.REPLACE):
        return None
    counts = [summary.additional_properties.get(name, "0") for name in ("deleted-data-files", "added-delete-files")]
    says = "total-data-files" in summary.additional_properties
    return None if says and counts == ["0", "0"] else str(summary.operation.value)


def _file(entry: ManifestEntry, time_ms: int, tasks: Mapping[str, FileScanTask]) -> DataFile:
    file = entry.data_file
    return DataFile(file.file_path, file.record_count, time_ms, _KnownFile(file, tasks.get(file.file_path)))


def _key(field: pa.Field) -> str | None:
    own = (field.metadata or {}).get(_ID)
    return None if own is None else own.decode()


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Iceberg has times of partitions as integers."""
    if isinstance(value, int) and pa.types.is_temporal(kind):
        return pa.scalar(value, pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)
    return pa.scalar(value, kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without large texts and lists, and with the ids of its fields."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_plain(each.type)) for each in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_plain(key.type)), item.with_type(_plain(item.type)))
    return kind
