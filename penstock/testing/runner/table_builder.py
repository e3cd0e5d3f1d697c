"""Builds versions of pushed tables in this process, with pyarrow: the `TableBuilder` of tests without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from penstock.errors import ConfigError, NotFoundError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.tables.versions.build import BuildRequest, check_columns, files_of
from penstock.tables.versions.encode import ENTRIES, RowEncoder
from penstock.tables.versions.files import FILE_BYTES, FileWriter
from penstock.tables.versions.manifest import TableFile
from penstock.tables.versions.registry import TableRegistry
from penstock.tables.versions.sources import MANIFEST, SUCCESS, TableSourceFile

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
