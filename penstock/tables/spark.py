"""Builds versions of pushed tables with Spark, beside the batches of the job.

Rows are read, encoded in Python workers, brought to the partition of their task, sorted there by key, and written as
files of bounded size. Nothing of this is held in memory as a whole. Batches need Spark's slots too, and Spark gives a
free slot to the job that was submitted first. So a build beside batches takes at most a quarter of the slots: each of
its two stages is coalesced to so many tasks, which work through the partitions one after the other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.api.side_inputs import PushedTable
from penstock.base.secrets import RootKeys
from penstock.errors import ConfigError, NotFoundError, RetryableError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_root
from penstock.spark.session.executors import job_group, live_executors
from penstock.spark.versions import map_in_arrow
from penstock.start.job import ClaimedJob
from penstock.tables.build import (
    MANIFEST,
    SUCCESS,
    BuildRequest,
    TableRefusedError,
    TableSourceFile,
    check_columns,
    files_of,
)
from penstock.tables.files import FileWriter, RowEncoder
from penstock.tables.manifest import PublishedTables, TableFile
from penstock.tables.registry import TableRegistry
from penstock.tables.table_builds import TableBuilds

logger = logging.getLogger(__name__)
_ENTRIES = "task int, key binary, value binary"
_WRITTEN = (
    "name string, task int, sha256 string, size_bytes bigint, rows bigint, first binary, last binary, "
    "problem string, null_keys bigint"
)
_SHARE = 4
"""A build beside batches takes at most one slot in this many."""
_DELTA = "io.delta.sql.DeltaSparkSessionExtension"
_LONGEST = 600
_FOR_PEOPLE = ("AccessControlException", "UnsupportedFileSystemException", "IllegalArgumentException")


class SparkTableBuilder:
    """The `TableBuilder` of a job on Spark. Its session is made when the first table is looked for."""

    def __init__(self, context: SparkContext, root: str, keys: RootKeys, paths: JobPaths) -> None:
        """
        Args:
            context: Spark's.
            root: `job.root`, which executors reach.
            keys: those of the root.
            paths: the keys of the job's objects.
        """
        self._context = context
        self._root = root
        self._keys = keys
        self._paths = paths
        self._group = f"penstock-tables-{paths.root}"
        self._session: SparkSession | None = None
        self._cancelled = threading.Event()

    def markers(self, url: str) -> list[TableSourceFile]:
        found: list[TableSourceFile] = []
        for pattern in (f"{{{MANIFEST},{SUCCESS}}}", f"*/{{{MANIFEST},{SUCCESS}}}"):
            with _explained(f"`{url}` cannot be listed"):
                folder = self._path(url)
                listed = self._file_system(folder).globStatus(self._jvm.org.apache.hadoop.fs.Path(folder, pattern))
                found.extend(self._file(status, folder) for status in listed or ())
        return found

    def files(self, url: str) -> list[TableSourceFile]:
        found: list[TableSourceFile] = []
        with _explained(f"`{url}` cannot be listed"):
            folder = self._path(url)
            system = self._file_system(folder)
            if not system.exists(folder):
                return []
            listed = system.listFiles(folder, True)
            while listed.hasNext():
                found.append(self._file(listed.next(), folder))
        return found

    def read(self, url: str) -> bytes:
        with _explained(f"`{url}` cannot be read"):
            path = self._path(url)
            system = self._file_system(path)
            if not system.exists(path):
                raise NotFoundError(f"there is no `{url}`")
            stream = system.open(path)
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def build(self, request: BuildRequest) -> tuple[TableFile, ...]:
        encoder = RowEncoder.of(request.spec, request.tasks)
        writer = _Writer(self._root, self._keys, self._paths, request.spec.name, request.build, encoder)
        if self._cancelled.is_set():
            raise RetryableError(f"the build of table `{request.spec.name}` was cancelled")
        with job_group(self._context, self._group, f"Building table {request.spec.name}"), self._refusing(request):
            rows = self._rows(request)
            check_columns(request, encoder.needed(), rows.columns)
            width = self._width(request)
            if not request.alone:
                rows = rows.coalesce(width)
            entries = map_in_arrow(rows, encoder.__call__, _ENTRIES)
            by_task = entries.repartitionById(encoder.tasks, entries["task"]).sortWithinPartitions("task", "key")
            files = map_in_arrow(by_task, writer.__call__, _WRITTEN)
            written = files.coalesce(width).collect() if width < encoder.tasks else files.collect()
        return files_of([row.asDict() for row in written], encoder.key_columns)

    def cancel(self) -> None:
        self._cancelled.set()
        try:
            self._context.cancelJobGroup(self._group)
        except Exception as error:  # Spark is ending or dead, and its jobs with it
            logger.debug("the build was not cancelled: %s", error)

    def _rows(self, request: BuildRequest) -> DataFrame:
        side, source = request.side, request.source
        reader = self._spark().read.format(side.format).options(**{**_strict(side), **side.options})
        if side.schema is not None:
            reader = reader.schema(side.schema)
        if source.delta_version is not None:
            self._need_delta()
            return reader.option("versionAsOf", source.delta_version).load(source.url)
        if not source.files:
            raise TableRefusedError(f"`{source.url}` has no files: push at least one, even if it has no rows")
        return reader.option("basePath", source.url).load(list(source.files))

    def _need_delta(self) -> None:
        found = self._jvm.org.apache.spark.util.Utils.classIsLoadable(_DELTA)
        if not found:
            raise ConfigError(
                'format="delta": Spark has no Delta package. Add `io.delta:delta-spark_2.13` in a version for Spark '
                f"{self._context.version} to `spark.jars.packages`, and set `spark.sql.extensions` to `{_DELTA}`"
            )

    def _width(self, request: BuildRequest) -> int:
        """The number of tasks of a stage that run at the same time."""
        slots = sum(executor.slots for executor in live_executors(self._context)) or 1
        return slots if request.alone else max(1, slots // _SHARE)

    def _spark(self) -> SparkSession:
        """A session beside others: its settings are its own."""
        if self._session is None:
            self._session = SparkSession(self._context).newSession()
            self._session.conf.set("spark.sql.adaptive.enabled", "false")
            self._session.conf.set("spark.sql.session.timeZone", "UTC")
        return self._session

    @property
    def _jvm(self) -> Any:
        return self._context._jvm  # noqa: SLF001 - Hadoop's file systems exist in the JVM only

    def _path(self, url: str) -> Any:
        path = self._jvm.org.apache.hadoop.fs.Path(url)
        return self._file_system(path).makeQualified(path)

    def _file_system(self, path: Any) -> Any:
        return path.getFileSystem(self._context._jsc.hadoopConfiguration())  # noqa: SLF001

    def _file(self, status: Any, folder: Any) -> TableSourceFile:
        path = status.getPath().toUri().getPath()
        own = path.removeprefix(folder.toUri().getPath().rstrip("/")).lstrip("/")
        return TableSourceFile(own, int(status.getLen()), int(status.getModificationTime()))

    @contextmanager
    def _refusing(self, request: BuildRequest) -> Iterator[None]:
        """Turn Spark's errors into the error of the table that follows from them."""
        try:
            yield
        except AnalysisException as error:
            raise TableRefusedError(f"Spark cannot read `{request.source.url}`: {_first_line(error)}") from error
        except (PySparkException, Py4JError) as error:
            if self._cancelled.is_set():
                raise RetryableError(f"the build of table `{request.spec.name}` was cancelled") from error
            raise RetryableError(f"Spark did not build table `{request.spec.name}`: {_first_line(error)}") from error


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes the files of one partition, in a Python worker."""

    root: str
    keys: RootKeys
    paths: JobPaths
    table: str
    build: str
    encoder: RowEncoder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(open_root(self.root, self.keys)) as objects:
            registry = TableRegistry(objects, self.paths, self.table)

            def put(name: str, data: bytes) -> None:
                registry.put_file(self.build, name, data)

            yield from FileWriter(put, self.encoder.key_serde, self.encoder.key_columns).write(batches)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn errors of Hadoop's file systems into an error of Penstock that begins with `what`."""
    try:
        yield
    except Py4JJavaError as error:
        kind = str(error.java_exception.getClass().getName())
        said = f"{what}: {error.java_exception.getMessage() or kind}"
        if kind.endswith("FileNotFoundException"):
            raise NotFoundError(said) from error
        if kind.endswith(_FOR_PEOPLE):
            raise ConfigError(said) from error
        raise RetryableError(said) from error
    except Py4JError as error:
        raise RetryableError(f"{what}: {error}") from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "Caused by:" in line or "Error:" in line]
    return (causes[-1] if causes else lines[0] if lines else type(error).__name__)[:_LONGEST]


def _strict(side: PushedTable) -> dict[str, str]:
    """Options under which Spark refuses a file that does not fit. Spark's defaults take the columns of CSV by position,
    whatever the header says, and replace values of another type by null."""
    return {"mode": "FAILFAST", "enforceSchema": "false"} if side.format == "csv" else {}


def tables_on_spark(
    context: SparkContext, job: ClaimedJob, needed: Callable[[str], Collection[int]]
) -> PublishedTables:
    """The published tables of a run whose batches run on Spark. `needed`: see `TableBuilds`."""
    builder = SparkTableBuilder(context, job.config.job.root, job.config.job.root_keys, job.paths)
    return TableBuilds(job, builder, needed)
