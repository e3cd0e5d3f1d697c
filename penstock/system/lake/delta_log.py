"""The log of a Delta table, read commit by commit.

delta-rs gives states of a table and not what a commit added, so commits are read here: each is a file of JSON lines, by
Delta's protocol. delta-rs makes snapshots, from its checkpoints, and opens object stores. Commit n is version n - 1.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec
import orjson
import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from msgspec import Struct

from penstock.base.documents import Count, convert
from penstock.errors import IncompatibleError, NotFoundError, SystemAwayError, SystemRefusedError
from penstock.system.lake.files import (
    PARTITIONS,
    ColumnSelection,
    TableFiles,
    count_rows,
    parsing,
    partitions_in,
    reading,
)
from penstock.system.lake.log import Commit, DataFile, TableLog, gone

_ESCAPED = re.compile(rb"(?:\\u00[0-9A-Fa-f]{2})+")
_READ_FEATURES = frozenset(
    ("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck")
)
_LOG = "_delta_log"
_NAME = re.compile(r"(\d{20})\.(json$|checkpoint\.)")
_PHYSICAL = b"delta.columnMapping.physicalName"
_KEPT_COMMITS = 64
_LIST_AGAIN_S = 600.0
_KEEPS = re.compile(r"interval\s+(\d+)\s+(second|minute|hour|day|week)s?", re.IGNORECASE)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_REFUSED = re.compile(r"\b40[13]\b|permission denied|credentials", re.IGNORECASE)
_WEEK_MS = 604_800_000
"""The default of `delta.deletedFileRetentionDuration`."""


class _Remove(Struct, rename="camel"):
    path: str
    data_change: bool = True


class _Add(_Remove, rename="camel"):
    stats: str | None = None
    partition_values: dict[str, str | None] | None = None


class _Stats(Struct, rename="camel"):
    num_records: Count | None = None


class _Metadata(Struct, rename="camel"):
    id: str
    schema_string: str
    configuration: Mapping[str, str | None] = msgspec.field(default_factory=dict)


class _Protocol(Struct, rename="camel"):
    reader_features: list[str] | None = None


class _Line(Struct, rename="camel"):
    """One action of a commit. A commit may have others, and other fields."""

    add: _Add | None = None
    remove: _Remove | None = None
    metadata: _Metadata | None = msgspec.field(name="metaData", default=None)
    protocol: _Protocol | None = None
    commit_info: dict[str, Any] | None = None
    """Whatever its writer says."""


@dataclass(frozen=True, slots=True)
class _Actions:
    """The parts of a commit."""

    commit: Commit
    removes_files: bool
    metadata: _Metadata | None
    protocol: _Protocol | None


@dataclass(frozen=True, slots=True)
class _KnownFile:
    values: Mapping[str, Any]
    """The values of the partition columns, by physical or logical name."""
    kept: pa.BooleanArray | None = None
    """True for each row that a deletion vector leaves; None if it leaves all."""


class DeltaLog(TableLog):
    """The log of a Delta table."""

    noun = "version"

    def __init__(self, folder: str, stream: str, url: str, options: Mapping[str, str]) -> None:
        self.title = f"the Delta table `{stream}` in `{folder}`"
        self._url = url
        self._options = dict(options)
        self._version = -1
        self._newest: tuple[int, int] | None = None
        """Size and time of the newest commit's file: a table that was made again has another one."""
        self._actions: dict[int, _Actions] = {}
        self._times: dict[int, int] = {}
        """The times of all commits that are in the log."""
        self._first = 0
        self._barrier = 0
        self._looked = -1
        self._list_at = 0.0

    def refresh(self) -> None:
        with self._errors():
            if self._newest is None:
                self._load()
                return
            if self._files.stamp(_commit_path(self._version)) != self._newest:
                self._load()
                return
            while (following := self._files.stamp(_commit_path(self._version + 1))) is not None:
                found = self._read(self._version + 1)
                self._describe(found.metadata, found.protocol)
                self._version += 1
                self._newest = following
                self._times[self._version] = found.commit.time_ms

    @property
    def identity(self) -> str:
        return self._metadata.id

    @property
    def partitions(self) -> int | None:
        return partitions_in(self._metadata.configuration.get(PARTITIONS), self.title)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def head(self) -> int:
        return self._version + 1

    def oldest(self, now_ms: int) -> int:
        """A file that was removed longer ago than the table keeps such files may be gone, so an older snapshot than the
        commit that removed it cannot be relied on."""
        if time.monotonic() >= self._list_at:
            with self._errors():
                self._list()
        keeps = _KEEPS.fullmatch(self._metadata.configuration.get("delta.deletedFileRetentionDuration") or "")
        keeps_ms = int(keeps[1]) * _SECONDS[keeps[2].lower()] * 1000 if keeps else _WEEK_MS
        old = [each for each, at in self._times.items() if each > self._looked and at < now_ms - keeps_ms]
        for version in sorted(old, reverse=True):
            if self._read(version).removes_files:
                self._barrier = version + 1
                break
        self._looked = max([self._looked, *old])
        return max(self._first, self._barrier)

    def number_of(self, name: str) -> int | None:
        return int(name) + 1 if int(name) <= self._version else None

    def name_of(self, number: int) -> str:
        return str(number - 1)

    def snapshot(self, number: int) -> Sequence[DataFile]:
        if number == 0:
            return []
        with self._errors():
            try:
                table = DeltaTable(self._url, number - 1, storage_options=self._options)
            except DeltaError:
                self._list()
                if number < self._first:
                    raise gone(self, number) from None
                raise
            kept = {
                unquote(path): pa.array(vector, pa.bool_())
                for batch in table.deletion_vectors()
                for path, vector in zip(*(column.to_pylist() for column in pa.record_batch(batch).columns), strict=True)
            }
            actions = pa.table(table.get_add_actions())
        wanted = ("path", "num_records", "modification_time", "partition")
        found = []
        for action in actions.select([name for name in wanted if name in actions.column_names]).to_pylist():
            path = self._path(action["path"])
            own = next((vector for each, vector in kept.items() if each.endswith(f"/{path}")), None)
            known = _KnownFile(action.get("partition") or {}, own)
            found.append(DataFile(path, action["num_records"], action["modification_time"], known))
        return sorted(found, key=lambda file: (file.time_ms, file.path))

    def commits(self, number: int) -> Iterator[Commit]:
        for version in range(max(number - 1, 0), self._version + 1):
            yield self._read(version).commit

    def count(self, file: DataFile) -> int:
        with reading(self.title, file.path, is_local=self._files.is_local):
            return count_rows(self._files.open(file.path))

    def batches(
        self, file: DataFile, first: int, rows: int, columns: Sequence[str] | None
    ) -> Generator[pa.RecordBatch, None, None]:
        shape = ColumnSelection(self._schema, columns, _key, lambda field: field.name)
        constants = {}
        for field in shape.schema:
            values = file.known.values
            for name in (shape.key(field.name), field.name):
                if name in values:
                    constants[shape.key(field.name)] = _typed(values[name], field.type)
                    break
        with reading(self.title, file.path, is_local=self._files.is_local):
            source = self._files.open(file.path)
            kept = file.known.kept
            if kept is None:
                yield from shape.read(source, file.path, file.rows, first, rows, constants)
                return
            at, skip = 0, first
            for batch in shape.read(source, file.path, file.rows, 0, rows, constants):
                left = batch.filter(kept.slice(at, batch.num_rows))
                at += batch.num_rows
                yield left.slice(min(skip, left.num_rows))
                skip -= min(skip, left.num_rows)

    def _load(self) -> None:
        """Begin with the newest state of the table."""
        self._newest = None
        try:
            table = DeltaTable(self._url, storage_options=self._options)
        except TableNotFoundError as error:
            raise NotFoundError(
                f"there is no Delta table at `{self._url}`: create it, or correct `systems.<name>.folder`"
            ) from error
        self._actions, self._barrier, self._looked = {}, 0, -1
        self._version = table.version()
        metadata, protocol = table.metadata(), table.protocol()
        self._describe(
            _Metadata(str(metadata.id), table.schema().to_json(), metadata.configuration),
            _Protocol(protocol.reader_features),
        )
        self._files = TableFiles(self._url, self._options)
        self._newest = self._files.stamp(_commit_path(self._version))
        self._list()

    def _describe(self, metadata: _Metadata | None, protocol: _Protocol | None) -> None:
        """Take over what a commit says of the table."""
        if protocol is not None:
            unknown = sorted({*(protocol.reader_features or ())} - _READ_FEATURES)
            if unknown:
                raise IncompatibleError(
                    f"{self.title} has features that Penstock does not read: {', '.join(unknown)}. Let Spark write its "
                    "rows to a folder, and read that with a system `files`"
                )
        if metadata is not None:
            with parsing(f"the schema of {self.title}"):
                schema = pa.schema(Schema.from_json(metadata.schema_string).to_arrow())
            self._metadata, self._schema = metadata, schema

    def _list(self) -> None:
        """Find the commits that the log still has, and the oldest state that they lead on from."""
        times: dict[int, int] = {}
        checkpoints = set()
        for name, (_, modified_ms) in self._files.stamps(_LOG):
            if named := _NAME.match(name):
                if named[2] == "json":
                    times[int(named[1])] = modified_ms
                else:
                    checkpoints.add(int(named[1]))
        first = self._version
        while first - 1 in times:
            first -= 1
        self._times = {version: at for version, at in times.items() if version >= first}
        self._first = min((each + 1 for each in checkpoints if each >= first - 1), default=first) if first else 0
        self._list_at = time.monotonic() + _LIST_AGAIN_S

    def _read(self, version: int) -> _Actions:
        known = self._actions.get(version)
        if known is None:
            with self._errors():
                try:
                    with self._files.open(_commit_path(version)) as file:
                        lines = file.read().splitlines()
                except FileNotFoundError:
                    raise gone(self, version + 1) from None
            with parsing(f"{self.title}: `{_commit_path(version)}`"):
                known = self._parsed(version, [convert(_Line, orjson.loads(line)) for line in lines if line])
            self._actions[version] = known
            if len(self._actions) > _KEPT_COMMITS:
                del self._actions[next(iter(self._actions))]
        return known

    def _parsed(self, version: int, actions: Sequence[_Line]) -> _Actions:
        info: Mapping[str, Any] = next((each.commit_info for each in actions if each.commit_info is not None), {})
        removes = [each.remove for each in actions if each.remove is not None]
        removed = {each.path for each in removes if each.data_change}
        said = (info.get(name) for name in ("inCommitTimestamp", "timestamp"))
        at = next((each for each in said if type(each) is int and each), None) or self._modified_ms(version)
        files = [
            DataFile(
                self._path(add.path),
                convert(_Stats, orjson.loads(add.stats or b"{}")).num_records,
                at,
                _KnownFile(add.partition_values or {}),
            )
            for add in (each.add for each in actions)
            if add is not None and add.data_change and add.path not in removed  # which a deletion vector makes smaller
        ]
        commit = Commit(version + 1, at, str(info.get("operation", "remove")) if removed else None, lambda: files)
        metadata = next((each.metadata for each in actions if each.metadata is not None), None)
        protocol = next((each.protocol for each in actions if each.protocol is not None), None)
        return _Actions(commit, bool(removes), metadata, protocol)

    def _modified_ms(self, version: int) -> int:
        stamp = self._files.stamp(_commit_path(version))
        return 0 if stamp is None else stamp[1]

    def _path(self, path: str) -> str:
        """The path of a data file below the table. A commit is written by others, and may name any file."""
        plain = unquote(path)
        if "://" in plain or plain.startswith("/") or ".." in plain.split("/"):
            raise IncompatibleError(
                f"{self.title} has files of another table (`{path}`), as a shallow clone has: read that table"
            )
        return plain

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except DeltaError as error:  # an unknown feature, or a log that is damaged; object stores raise OSError
            raise IncompatibleError(f"{self.title} cannot be read: {error}") from error
        except OSError as error:
            what = f"{self.title} cannot be read: {error}"
            if isinstance(error, PermissionError) or _REFUSED.search(str(error)):
                raise SystemRefusedError(f"{what}. Correct `systems.<name>.storage.*`, or the rights there") from error
            raise SystemAwayError(what) from error


def _commit_path(version: int) -> str:
    return f"{_LOG}/{version:020}.json"


def _key(field: pa.Field) -> str:
    """The name of a column in the files: columns of a table with column mapping have another one."""
    physical = (field.metadata or {}).get(_PHYSICAL)
    return str(field.name if physical is None else physical.decode())


def _typed(value: Any, kind: pa.DataType) -> pa.Scalar:
    """The value of a partition column. Commits have it as text, which for every type is null if it is empty."""
    if value is None or value == "":
        return pa.scalar(None, kind)
    if pa.types.is_binary(kind):
        return pa.scalar(_unescaped(value.encode() if isinstance(value, str) else value), kind)
    if not isinstance(value, str):
        return pa.scalar(value, kind)
    if pa.types.is_timestamp(kind):
        return pa.scalar(value.removesuffix("Z")).cast(pa.timestamp("us")).cast(kind)
    return pa.scalar(value).cast(kind)


def _unescaped(data: bytes) -> bytes:
    """The bytes of a partition. Where delta-rs wrote them, each is an escape of JSON, as text."""
    if not _ESCAPED.fullmatch(data):
        return data
    return bytes(int(each, 16) for each in data.split(b"\\u")[1:])
