"""Batches for due work without new rows.

Spark makes a batch when a source has something new, and knows nothing of timers. So a query with timers reads a second
source, which has no rows: only its offset moves, when something is due. Spark runs that source in a Python process on
the driver's machine, and asks it whenever it asks the others; the driver writes to a small local file when the next
batch is due.

Spark's log of offsets has the sources by position, without names, and a start fails if their number is another one. A
query whose checkpoint location was made without this source therefore gets an offset of it in this log first.
"""

from __future__ import annotations

import inspect
import logging
import os
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceRegistration, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructField, StructType

from penstock.errors import ConfigError
from penstock.spark.query.checkpoint_location import HEARTBEAT, OffsetLog
from penstock.spark.session.session import scratch_folder
from penstock.spark.workers import early_worker

logger = logging.getLogger(__name__)

_SOURCE = "penstock-heartbeat"
_DUE = "due"
_READER_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"
_POSITIONAL = b"v1\n"
"""First bytes of the files of a log that has the sources by position."""
AT_ONCE = 0


class Heartbeat:
    """Says when the next batch is due. Thread-safe."""

    def __init__(self, scratch: Path, *, is_silent: bool = False) -> None:
        """The first batch is due at once: nobody knows yet what is due in the state.

        Args:
            scratch: a folder on this machine that does not outlive the program, however that ends.
            is_silent: True if no batch is ever due. The source is in the query nevertheless: Spark could not add it
                later.
        """
        self._is_silent = is_silent
        self._lock = threading.Lock()
        self._is_closed = False
        self._folder = tempfile.mkdtemp(prefix="penstock-heartbeat-", dir=scratch)
        self._path = os.path.join(self._folder, _DUE)
        self.set(AT_ONCE)

    def set(self, due_ms: int | None) -> None:
        """Set when the next batch is due, in epoch milliseconds; None: none is."""
        self.update(lambda: due_ms)

    def update(self, due_ms: Callable[[], int | None]) -> None:
        """As `set`, with a time that is computed while no other thread sets one: an older answer replaces no newer
        one."""
        with self._lock:
            due = None if self._is_silent else due_ms()
            if self._is_closed:
                return
            written = f"{self._path}.new"
            with open(written, "w", encoding="ascii") as file:
                file.write("" if due is None else str(due))
            os.replace(written, self._path)

    def added_to(self, df: DataFrame) -> DataFrame:
        """The same rows, with an extra batch when one is due."""
        spark = df.sparkSession
        session: Any = spark._jsparkSession  # noqa: SLF001
        source = f"{_SOURCE}-{session.sessionUUID()}"  # a second session could not register the name of the first
        if not session.sessionState().dataSourceManager().dataSourceExists(source):
            _register(spark, source)
        plain = StructType([StructField(each.name, each.dataType, each.nullable) for each in df.schema])
        return df.unionAll(spark.readStream.format(source).schema(plain).option(_DUE, self._path).load())

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        shutil.rmtree(self._folder, ignore_errors=True)


def python_here(folder: Path) -> str:
    """A program that is this process's Python, except that the process of a reader connects to Spark at once.

    Args:
        folder: gets the program. If nothing there can be run, this is Python itself.
    """
    early = [sys.executable, "-S", "-c", inspect.getsource(early_worker)]
    path = folder / "heartbeat-python"
    written = path.with_suffix(".new")
    written.write_text(
        f'#!/bin/sh\n[ "$2" = {_READER_PROCESS} ] && exec {shlex.join(early)} "$2"\n'
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    written.chmod(0o700)
    written.replace(path)
    return str(path) if os.access(path, os.X_OK) else sys.executable


class _HereOnly:
    """A Spark context whose Python is this process's."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self.pythonExec = python_here(scratch_folder(context))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _register(spark: SparkSession, source: str) -> None:
    """As `spark.dataSource.register`, but for processes on this machine only: the Python of executors may come to them
    in an archive, and need not be here."""
    here: Any = SimpleNamespace(sparkContext=_HereOnly(spark.sparkContext), _jsparkSession=spark._jsparkSession)  # noqa: SLF001
    DataSourceRegistration(here).register(heartbeat_source(source))


def heartbeat_source(source: str) -> type[DataSource]:
    """The source of this name. Its classes are local, so that they reach Spark's processes by value: those may lack
    Penstock."""

    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

    class HeartbeatReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        """Its offset counts the batches that were due."""

        def __init__(self, path: str) -> None:
            self._path = path
            self._until_ms: float | None = None

        def initialOffset(self) -> dict[str, int]:
            return {HEARTBEAT: 0}

        def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
            import time  # and not Penstock's clock: Spark's process is not to import Penstock

            try:
                with open(self._path, encoding="ascii") as file:
                    due = file.read()
            except FileNotFoundError:  # the query has ended
                return start
            now_ms = time.time_ns() // 1_000_000 if self._until_ms is None else self._until_ms
            return {HEARTBEAT: start[HEARTBEAT] + 1} if due and int(due) <= now_ms else start

        def prepareForTriggerAvailableNow(self) -> None:
            # Timers that come due while the query runs would keep it from its end.
            import time

            self._until_ms = time.time_ns() // 1_000_000

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return []

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            return iter(())

    class HeartbeatSource(DataSource):
        """Has no rows."""

        @classmethod
        def name(cls) -> str:
            return source

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return HeartbeatReader(self.options[_DUE])

    return HeartbeatSource


def prepare_heartbeat(log: OffsetLog, *, timed: bool, continues: Callable[[], bool]) -> bool:
    """Decide if a query reads the source, and make its log of offsets fit. Idempotent: the same call continues after
    a process that died.

    Args:
        log: the log of the query's checkpoint location.
        timed: True if anything can be due in the query.
        continues: True if Penstock has state for the query's next batch. Otherwise the start will be refused, and the
            log stays what another program needs.

    Raises:
        ConfigError: the log would have to be changed, and the query is running.
    """
    newest = log.newest()
    lacking = {batch: content for batch, content in newest.items() if f'"{HEARTBEAT}"'.encode() not in content}
    if not newest or not lacking:
        return timed or bool(newest)
    if lacking == newest and not (timed and continues()):
        return False
    if not all(content.startswith(_POSITIONAL) for content in lacking.values()):
        logger.warning(
            "the checkpoint location of the query was made without Penstock's heartbeat, and its log of offsets has "
            "sources by name, to which Penstock can add none: timers that are due fire in the next batch with new "
            "rows. With a new checkpoint location they would fire by themselves"
        )
        return False
    if log.is_read():
        raise ConfigError(
            "the query is running in this program without Penstock's heartbeat, which makes batches for timers, and "
            "can get it only between two runs. Nothing was started. Stop the query first, and wait until it has ended"
        )
    for batch, content in lacking.items():
        log.add_heartbeat(batch, content)
    return True
