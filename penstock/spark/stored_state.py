"""State in Spark's Python workers: the stores of a job are read there, and entries are brought to the parts that have
them from now on. A part is a store of a task. So a job's state moves to another number of tasks.

Each task is restored to scratch where it is read. One Spark job makes the entries, brings those of each part
together in the order of their keys, and makes something of each part.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.record import CheckpointRecord
from penstock.config.model import JobConfig
from penstock.errors import IncompatibleError, PenstockError
from penstock.job.paths import JobPaths
from penstock.objects.open import open_job_root
from penstock.repartition.move import MadePart, Move, TaskPart
from penstock.spark.session.gateway import cause_of, stop_context
from penstock.spark.session.session import create_context, idle_limit
from penstock.spark.state_columns import StateColumns
from penstock.spark.versions import map_in_arrow
from penstock.spark.workers.packages import pickled
from penstock.state.reading.comparison import diff
from penstock.state.reading.reader import StateReader, StoreVersion
from penstock.system.registry import open_systems

_SCRATCH = "penstock-read-"


@dataclass(frozen=True, slots=True)
class StoreSource:
    """A store of a job, and the backend to restore it from. Picklable."""

    config: JobConfig
    paths: JobPaths
    store: str
    backend: str | None

    @contextmanager
    def versions(self, *records: CheckpointRecord) -> Iterator[list[StoreVersion]]:
        """The store as of these checkpoints, while the block runs. Nothing is restored yet."""
        with (
            worker_scratch() as scratch,
            closing(open_job_root(self.config.job)) as objects,
        ):
            log = CheckpointLog(objects, self.paths)
            systems = open_systems(self.config)
            reader = StateReader(self.config, self.paths, objects, systems, scratch=scratch)
            with reader, ExitStack() as stack:
                versions = [StoreVersion(reader, log, record, self.store, self.backend) for record in records]
                yield [stack.enter_context(version) for version in versions]


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """A function for `map_in_arrow`: the entries of the tasks that the rows name."""

    source: StoreSource
    record: CheckpointRecord
    columns: StateColumns

    def __call__(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches with the columns task, key, value."""
        for task in _tasks(rows):
            with self.source.versions(self.record) as (version,):
                found = version.scan(tasks=[task])
                if self.columns.view is not None:
                    found = self.columns.view(found, self.record.batch_time_ms)
                yield from self.columns.entries(task, ((each.key, each.value) for each in found))


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """A function for `map_in_arrow`: the differences between two checkpoints in the tasks that the rows name."""

    source: StoreSource
    before: CheckpointRecord
    after: CheckpointRecord
    columns: StateColumns

    def __call__(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches with the columns change, task, key, before, after."""
        for task in _tasks(rows):
            with self.source.versions(self.before, self.after) as (before, after):
                found = diff(before, after, [task], self.columns.view)
                yield from self.columns.changes(
                    task, ((each.change, each.key, each.before, each.after) for each in found)
                )


def _tasks(rows: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in rows:
        yield from batch.column(0).to_pylist()


@contextmanager
def worker_scratch() -> Iterator[Path | None]:
    """A folder of this process in Spark's scratch folder, which Spark removes when the executor ends; None where there
    is none. Spark kills a worker whose rows nobody wants any more, as after `limit`: its folder is removed by the next
    read on that executor."""
    base = Path(os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0])
    if base == Path() or not base.is_dir():
        yield None
        return
    for left in base.glob(f"{_SCRATCH}*"):
        if not _lives(left.name.removeprefix(_SCRATCH)):
            shutil.rmtree(left, ignore_errors=True)
    own = base / f"{_SCRATCH}{os.getpid()}"
    own.mkdir(exist_ok=True)
    try:
        yield own
    finally:
        with suppress(OSError):  # another read of this process uses it
            own.rmdir()


def _lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError):  # somebody else's process, or not a folder of ours
        return True
    return True


ENTRY = "part INT, key BINARY, value BINARY"
"""The columns of entries."""
_DONE = "part INT, entries BIGINT, result STRING"

SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),  # not in Spark 4.0
    "spark.sql.execution.pyspark.udf.killOnIdleTimeout": "false",  # a worker sends nothing while it backs a store up
}
"""Settings of the session for such a job."""

Made = tuple[int, int, str]
"""A part, the number of its entries, and the text that was made of it."""


def entries_batch(parts: Any, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
    """Entries as a batch with the columns of `ENTRY`."""
    columns = [pa.array(parts, pa.int32()), pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["part", "key", "value"])


def make_parts(
    spark: SparkSession,
    frames: Iterable[DataFrame],
    parts: int,
    make: Callable[[Iterator[tuple[int, Iterator[tuple[bytes, bytes]]]]], Iterator[Made]],
) -> dict[int, Row]:
    """Make something of every part.

    Args:
        frames: the entries, with the columns of `ENTRY`.
        parts: the number of parts.
        make: runs in Spark's workers. It gets parts with their entries, in the order of their keys, and makes one
            result of each.

    Returns:
        By part, the number of entries and the result.

    Raises:
        PenstockError: not all parts were made.
    """
    # Every part has a row, so that an empty one is made as well.
    rows = spark.range(0, parts, 1, 1).selectExpr("CAST(id AS INT) part", "CAST(NULL AS BINARY) key", "X'' value")
    rows = reduce(DataFrame.unionAll, frames, rows)
    placed = rows.repartitionById if hasattr(rows, "repartitionById") else rows.repartition  # not in Spark 4.0
    in_order = placed(parts, "part").sortWithinPartitions("part", "key")
    done: dict[int, Row] = {row.part: row for row in map_in_arrow(in_order, _PartFunction(make), _DONE).collect()}
    if done.keys() != set(range(parts)):
        raise PenstockError(f"{len(done)} of {parts} parts of the state were made")
    return done


class _PartFunction:
    """A function for `map_in_arrow`."""

    def __init__(self, make: Callable[[Iterator[tuple[int, Iterator[tuple[bytes, bytes]]]]], Iterator[Made]]) -> None:
        self._make = make

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = ((part, _entries(rows)) for part, rows in groupby(_rows(batches), key=itemgetter(0)))
        for made in self._make(parts):
            columns = [pa.array([each], kind) for each, kind in zip(made, _KINDS, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, ["part", "entries", "result"])


_KINDS = (pa.int32(), pa.int64(), pa.string())


def _entries(rows: Iterable[tuple[int, bytes | None, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    return ((key, value) for _, key, value in rows if key is not None)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes | None, bytes]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


_ROWS = 4096
_REFUSED = "penstock.errors.IncompatibleError: "


def move_on_spark(spark: SparkSession, move: Move) -> list[MadePart]:
    """Carry a move out: one task of Spark reads each part of a store, and another one makes each part of the new
    checkpoint.

    Args:
        spark: the session.
        move: the move.

    Raises:
        IncompatibleError: an entry is not where its key belongs, or two tasks had the same.
        PenstockError: Spark's job failed.
    """
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())  # noqa: SLF001
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    sources, targets = move.sources(), move.targets()
    data = pickled(move)
    frames = []
    if sources:
        numbers = session.range(0, len(sources), 1, len(sources))
        frames.append(map_in_arrow(numbers, _Split(data, sources, targets), ENTRY))
    try:
        done = make_parts(session, frames, len(targets), _Fill(data, targets))
    except (Py4JJavaError, PySparkException) as error:
        cause = cause_of(error)
        if _REFUSED in str(error):
            raise IncompatibleError(cause) from error
        raise PenstockError(f"the state was not moved, and nothing was changed: {cause}") from error
    return [MadePart(targets[part], row.entries, orjson.loads(row.result)) for part, row in done.items()]


def mover(config: JobConfig, name: str) -> Callable[[Move], list[MadePart]]:
    """Carries out moves in a Spark that is started for it, with the `spark.*` keys of a configuration.

    Args:
        config: the configuration.
        name: of Spark's application.
    """

    def move(given: Move) -> list[MadePart]:
        context = create_context(name, config.spark, idle_limit(config.container))
        try:
            return move_on_spark(SparkSession(context), given)
        finally:
            stop_context(context)

    return move


@dataclass(frozen=True, slots=True)
class _Split:
    """A function for `map_in_arrow`: the entries of the parts whose numbers it gets, with the parts they move to."""

    move: bytes
    sources: Sequence[TaskPart]
    targets: Sequence[TaskPart]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        move: Move = pickle.loads(self.move)  # noqa: S301 - made by the program that sent this class
        numbers = {part: number for number, part in enumerate(self.targets)}
        with worker_scratch() as scratch:
            for source in (self.sources[number] for batch in batches for number in batch.column(0).to_pylist()):
                for task, entries in move.split(source, scratch):
                    number, keys, values = numbers[TaskPart(source.store, task)], list(entries), list(entries.values())
                    for first in range(0, len(keys), _ROWS):
                        some = slice(first, first + _ROWS)
                        yield entries_batch([number] * len(keys[some]), keys[some], values[some])


@dataclass(frozen=True, slots=True)
class _Fill:
    """Makes parts of the new checkpoint, in Spark's workers."""

    move: bytes
    targets: Sequence[TaskPart]

    def __call__(self, parts: Iterator[tuple[int, Iterator[tuple[bytes, bytes]]]]) -> Iterator[Made]:
        move: Move = pickle.loads(self.move)  # noqa: S301 - made by the program that sent this class
        with worker_scratch() as scratch:
            for number, entries in parts:
                with tempfile.TemporaryDirectory(prefix="part-", dir=scratch, ignore_cleanup_errors=True) as folder:
                    made = move.fill(self.targets[number], entries, Path(folder))
                yield number, made.entries, orjson.dumps(dict(made.markers)).decode()
