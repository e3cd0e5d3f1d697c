"""Moves a job's state to another number of tasks, in Spark's tasks."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.config.model import JobConfig
from penstock.errors import IncompatibleError, PenstockError
from penstock.repartition.move import MadePart, Move, TaskPart
from penstock.spark.session.gateway import stop_context
from penstock.spark.session.session import create_context, idle_limit
from penstock.spark.session.spark_errors import cause_of
from penstock.spark.state_frames.by_part import ENTRY, SETTINGS, Made, entries_batch, make_parts
from penstock.spark.state_frames.stored_state import worker_scratch
from penstock.spark.workers.arrow_frames import map_in_arrow
from penstock.spark.workers.packages import pickled

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
