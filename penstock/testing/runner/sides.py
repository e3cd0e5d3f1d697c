"""The stores of a `TestRunner` that its job only reads: side inputs and pushed tables.

Versions of pushed tables are made of rows that a test gives, in this process, with pyarrow, without a source and
without Spark. `ArrowTableBuilder` is the `TableBuilder` of such tests.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from penstock.api.side_inputs import PushedTable, TableCandidate
from penstock.api.ssp import SystemStream
from penstock.container.container import Epoch
from penstock.errors import ConfigError, NotFoundError, PenstockTimeoutError, RetryableError
from penstock.graph.serdes import side_input_place
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import SideInputs, StoreSpec
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.side.inputs import SideInputService
from penstock.start.job import ClaimedJob
from penstock.state.engines.engine import Content
from penstock.tables.build import (
    MANIFEST,
    SUCCESS,
    BuildRequest,
    TableRefusedError,
    TableSourceFile,
    check_candidate,
    check_columns,
    files_of,
)
from penstock.tables.driver import Tables
from penstock.tables.files import ENTRIES, FILE_BYTES, FileWriter, RowEncoder
from penstock.tables.loaded import PushedTables
from penstock.tables.manifest import PublishedVersion, TableFile, TableManifest, fingerprint_of, pushed_table
from penstock.tables.registry import TableRegistry, build_name
from penstock.testing.in_process import InProcessDriver
from penstock.testing.runner.streams import StreamOfTest

_BATCH_ROWS = 10_000


class ArrowTableBuilder:
    """Reads folders of this machine: Parquet and CSV, without a schema of Spark and without options of its reader but
    `header`. A whole source is held in memory."""

    def __init__(self, objects: ObjectStore, paths: JobPaths, *, file_bytes: int = FILE_BYTES) -> None:
        """
        Args:
            objects: the object store of the job root.
            paths: the keys of the job's objects.
            file_bytes: about how large a file becomes.
        """
        self._objects = objects
        self._paths = paths
        self._file_bytes = file_bytes
        self._cancelled = threading.Event()

    def markers(self, url: str) -> list[TableSourceFile]:
        folder = local_folder(url)
        patterns = (name for own in (MANIFEST, SUCCESS) for name in (own, f"*/{own}"))
        return [_file(path, folder) for pattern in patterns for path in folder.glob(pattern)]

    def files(self, url: str) -> list[TableSourceFile]:
        folder = local_folder(url)
        return [_file(path, folder) for path in sorted(folder.rglob("*")) if path.is_file()]

    def read(self, url: str) -> bytes:
        try:
            return local_folder(url).read_bytes()
        except FileNotFoundError:
            raise NotFoundError(f"there is no `{url}`") from None

    def build(self, request: BuildRequest) -> tuple[TableFile, ...]:
        encoder = RowEncoder.of(request.spec, request.tasks)
        registry = TableRegistry(self._objects, self._paths, request.spec.name)
        put = partial(registry.put_file, request.build)
        return written_files(encoder, self._rows(request, encoder), put, self._file_bytes)

    def cancel(self) -> None:
        """Cancel the build before its next file is read."""
        self._cancelled.set()

    def _rows(self, request: BuildRequest, encoder: RowEncoder) -> Iterator[pa.RecordBatch]:
        for url in request.source.files:
            if self._cancelled.is_set():
                raise RetryableError(f"the build of table `{request.spec.name}` was cancelled")
            try:
                rows = self._read(request, local_folder(url))
            except FileNotFoundError as error:
                raise RetryableError(f"`{url}` is gone") from error
            check_columns(request, encoder.needed(), rows.column_names)
            yield from rows.combine_chunks().to_batches(_BATCH_ROWS)

    def _read(self, request: BuildRequest, path: Path) -> pa.Table:
        side = request.side
        if side.format == "parquet":
            return pq.read_table(path, partitioning=None)
        if side.format == "csv" and side.schema is None:
            names = side.options.get("header", "false") != "true"
            return arrow_csv.read_csv(path, arrow_csv.ReadOptions(autogenerate_column_names=names))
        raise ConfigError(
            f'table `{request.spec.name}`: tests without Spark read "parquet", and "csv" without a schema, not '
            f'"{side.format}"'
        )


def written_files(
    encoder: RowEncoder,
    rows: Iterable[pa.RecordBatch],
    put: Callable[[str, bytes], None],
    file_bytes: int = FILE_BYTES,
) -> tuple[TableFile, ...]:
    """Put the files of a version that has these rows. Raises TableRefusedError if the rows are no version."""
    entries = pa.Table.from_batches(encoder(rows), schema=ENTRIES)
    order = pc.sort_indices(entries, sort_keys=[("task", "ascending"), ("key", "ascending")])
    writer = FileWriter(put, encoder.key_serde, encoder.key_columns, file_bytes)
    written = writer.write(entries.take(order).to_batches(_BATCH_ROWS))
    return files_of([row for batch in written for row in batch.to_pylist()], encoder.key_columns)


def local_folder(url: str) -> Path:
    parts = urlsplit(url)
    if parts.scheme not in {"", "file"}:
        raise ConfigError(f"`{url}` is not on this machine: tests without Spark read folders of this machine only")
    return Path(unquote(parts.path) if parts.scheme else url)


def _file(path: Path, folder: Path) -> TableSourceFile:
    status = path.stat()
    return TableSourceFile(path.relative_to(folder).as_posix(), status.st_size, status.st_mtime_ns // 1_000_000)


_SOURCE = "test"


class TablesInProcess:
    """The pushed tables of one job: publishes versions, and is the `PublishedTables` of its drivers."""

    def __init__(self, objects: ObjectStore, paths: JobPaths, graph: ApplicationGraph, tasks: int) -> None:
        self._tasks = tasks
        self._specs = {spec.name: spec for spec in graph.stores if isinstance(spec.side, PushedTable)}
        self._registries = {name: TableRegistry(objects, paths, name) for name in self._specs}

    def start(self) -> None:
        """Do nothing: there is nothing to build."""

    def close(self) -> None:
        """Do nothing: the tables are the test's."""

    def published(self, table: str) -> PublishedVersion:
        """The published version, read now. Raises the store's errors."""
        registry = self._registries[table]
        choice = registry.choose(fingerprint_of(self._specs[table], self._tasks))
        chosen = choice.version is not None and registry.pinned() == choice.version.version
        return PublishedVersion(choice.version, chosen, choice.warning or "")

    def pin(self, table: str, version: int | None) -> None:
        """Choose a version, as `penstock table use` does."""
        self._registries[table].pin(version)

    def push(self, table: str, rows: Iterable[Mapping[str, Any]]) -> TableManifest:
        """Publish a version with these rows, by column, if it passes the table's check.

        Raises:
            ConfigError: the application has no such pushed table; or the rows are no table: a key occurs twice or is
            missing, or a value does not fit the table's serdes; or the check refuses them.
        """
        spec = self._specs.get(table)
        if spec is None:
            raise ConfigError(f"`{table}` is not a pushed table of the application")
        registry, build = self._registries[table], build_name(0, uuid.uuid4().hex)
        given = [dict(row) for row in rows]
        try:
            files = self._files(spec, given, partial(registry.put_file, build))
            before = registry.newest()
            previous = None if before is None else before.rows
            check_candidate(pushed_table(spec), TableCandidate(table, _SOURCE, build, len(given), previous))
        except TableRefusedError as error:
            raise ConfigError(f"a version of table `{table}`: {error}") from error
        fingerprint = fingerprint_of(spec, self._tasks)
        return registry.publish(TableManifest(table, 0, 0, build, _SOURCE, build, len(given), 0, fingerprint, files))

    def _files(
        self, spec: StoreSpec, rows: list[dict[str, Any]], put: Callable[[str, bytes], None]
    ) -> tuple[TableFile, ...]:
        """Put the files of a version.

        Raises:
            TableRefusedError: the rows are no version.
        """
        encoder = RowEncoder.of(spec, self._tasks)
        names = list(dict.fromkeys(name for row in rows for name in row))
        if rows and (missing := [name for name in encoder.needed() if name not in names]):
            raise TableRefusedError(f"its rows have no column `{missing[0]}`")
        batches = pa.table({name: _column(name, rows) for name in names}).to_batches() if rows else []
        return written_files(encoder, batches, put)


def _column(name: str, rows: list[dict[str, Any]]) -> pa.Array:
    try:
        return pa.array([row.get(name) for row in rows])
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise TableRefusedError(
            f"column `{name}` cannot be a column of a file, whose values all have one type that Arrow knows: {error}"
        ) from error


def tables_in_process(job: ClaimedJob, needed: Callable[[str], Collection[int]]) -> TablesInProcess:
    """The pushed tables of a run whose containers are objects of this process. `needed` is not asked."""
    return TablesInProcess(job.objects, job.paths, job.topology.graph, job.settings.tasks)


_SIDE_INPUTS_S = 60.0


def side_stream(graph: ApplicationGraph, stream: str) -> StreamOfTest:
    """A side input of the application.

    Raises:
        ConfigError: no store has it.
    """
    name = SystemStream.parse(stream)
    sides = [spec.side for spec in graph.side_stores if isinstance(spec.side, SideInputs)]
    found = next((each for side in sides for each in side.streams if each.stream == name), None)
    if found is None:
        raise ConfigError(f"`{stream}` is not a side input of a store of application `{graph.name}`")
    return StreamOfTest(name, side_input_place(name), found.key_serde, found.value_serde)


def check_pushed(graph: ApplicationGraph, tables: TablesInProcess) -> None:
    """Raise ConfigError if a pushed table has no version: no batch runs before each has one."""
    for spec in graph.side_stores:
        if isinstance(spec.side, PushedTable) and tables.published(spec.name).manifest is None:
            raise ConfigError(
                f"table `{spec.name}` has no version: call push({spec.name!r}, rows) before the first run()"
            )


def catch_up(driver: InProcessDriver, graph: ApplicationGraph) -> None:
    """Wait until stores have all messages of their side inputs.

    Raises:
        PenstockTimeoutError: they do not get there.
    """
    if not any(isinstance(spec.side, SideInputs) for spec in graph.side_stores):
        return
    for task in range(driver.job.settings.tasks):
        service = _epoch(driver, task).wings.of(SideInputService)
        if not service.catch_up(_SIDE_INPUTS_S) and service.failure is None:  # a failure ends the next batch
            raise PenstockTimeoutError(f"side inputs were not read within {_SIDE_INPUTS_S} s")


def side_content(driver: InProcessDriver, graph: ApplicationGraph, spec: StoreSpec, task: int) -> Content:
    if isinstance(spec.side, SideInputs):
        catch_up(driver, graph)
        return _epoch(driver, task).wings.of(SideInputService).engine(spec.name, task)
    driver.loop.parts.of(Tables).settle()
    return _epoch(driver, task).wings.of(PushedTables).newest(spec.name, task)


def _epoch(driver: InProcessDriver, task: int) -> Epoch:
    epoch = driver.fleet.container_of(task).current
    if epoch is None:
        raise ConfigError("the job has no open epoch: call run() first")
    return epoch
