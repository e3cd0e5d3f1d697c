"""A batch of a streaming query: its run, and a stop of the query beside it.

The Spark jobs of a run are the query's, and the rows come from its DataFrames. Spark tells nobody of a stop. So the
query is asked, and the stop is passed to the running batch. Once the job has drained, the query is stopped from
here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from penstock.base.wording import counted
from penstock.batch.batch import Batch
from penstock.batch.portions import BatchRanges
from penstock.driver.part import StopRequest
from penstock.errors import ConfigError, PenstockError
from penstock.spark.lineage import PacketRdd, Step
from penstock.spark.query.checkpoint_location import OffsetLog
from penstock.spark.query.rows import FrameReader, QuerySource
from penstock.spark.runner import SparkRunner
from penstock.spark.versions import arrow_schema
from penstock.spark.workers.worker import RawFrames
from penstock.wire.containers import Lane
from penstock.wire.ports import RunBrokenError


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """A batch that the query asks for."""

    spark: SparkSession
    query: str
    """The id of the query, which its checkpoint location keeps."""
    number: int

    def is_active(self) -> bool:
        found = self.spark.streams.get(self.query)
        return found is not None and found.isActive

    def stop(self) -> None:
        """Stop the query, and wait for its end. From any thread but the query's."""
        found = self.spark.streams.get(self.query)
        if found is not None:
            found.stop()


@dataclass(frozen=True, slots=True)
class OfferedRows:
    """The rows of one batch of the query, as an RDD of the JVM that each run of the batch reads again."""

    rows: PacketRdd
    inputs: tuple[int, ...]
    """For each Spark partition, the number of its input."""
    schemas: tuple[pa.Schema, ...]
    """For each input, the schema in which Spark sends its rows."""
    readers: tuple[FrameReader, ...]
    """For each input, like the schemas."""

    @classmethod
    def of(
        cls, context: SparkContext, frames: Sequence[DataFrame], readers: tuple[FrameReader, ...], tasks: int
    ) -> OfferedRows:
        """The rows of these DataFrames, which are the inputs in the order of their numbers, each with its reader.

        There are at most as many partitions of rows as tasks, because each is stage 0 of one task at least.
        """
        if len(frames) > tasks:
            raise ConfigError(
                f"the query has {len(frames)} inputs and its job {counted(tasks, 'task')}, each of which has the rows "
                "of one input at most. Give the query another root, with more partitions"
            )
        each = tasks // len(frames)
        rdds: list[Any] = []
        inputs: list[int] = []
        for number, frame in enumerate(frames):
            rdd = frame._jdf.toArrowBatchRdd()  # noqa: SLF001  # what `DataFrame.toArrow` collects
            if rdd.getNumPartitions() > each:
                rdd = rdd.toJavaRDD().coalesce(each).rdd()
            inputs += [number] * rdd.getNumPartitions()
            rdds.append(rdd.toJavaRDD())
        schemas = tuple(arrow_schema(frame.schema) for frame in frames)
        if not inputs:
            return cls(PacketRdd.empty(context, 1), (0,), schemas, readers)
        union = rdds[0]
        for rdd in rdds[1:]:
            union = union.union(rdd)
        return cls(PacketRdd.of(context, union.rdd(), RawFrames()), tuple(inputs), schemas, readers)

    def none(self, context: SparkContext) -> OfferedRows:
        return OfferedRows(PacketRdd.empty(context, 1), (0,), self.schemas, self.readers)


class QueryJobs:
    """The Spark jobs of a query's batch: they are in the query's job group, and have a tag of the run, so that a stop
    of the query ends them, and the run cancels nothing but its own. See `SparkJobs`."""

    def __init__(self, context: SparkContext, tag: str, is_active: Callable[[], bool]) -> None:
        self._context = context
        self._tag = tag
        self._is_active = is_active
        self._tracker = context._jsc.sc().statusTracker()  # noqa: SLF001

    def enter(self) -> None:
        if not self._is_active():
            raise RunBrokenError("the query was stopped")
        self._context.addJobTag(self._tag)

    def leave(self) -> None:
        """Detach this thread: its next jobs are not the run's."""
        self._context.removeJobTag(self._tag)

    def cancel(self) -> None:
        self._context.cancelJobsWithTag(self._tag)

    def ids(self) -> Sequence[int]:
        return list(self._tracker.getJobIdsForTag(self._tag))


class QueryRunner(SparkRunner):
    """The `BatchRunner` of a query."""

    _offered: OfferedRows | None = None

    def offer(self, rows: OfferedRows | None) -> None:
        """The rows of the batch that the query asks for now; None: it asks for none."""
        self._offered = rows

    def _source(self, epoch: int, lanes: tuple[Lane, ...], batch: Batch, ranges: BatchRanges) -> Step:
        package, tasks, offered = self._shipment.worker_package, self._job.settings.tasks, self._rows_now()
        rows = offered.inputs, offered.schemas, offered.readers
        return QuerySource(package, batch, ranges.by_task, tasks, *rows, epoch)

    def _partitions(self, lanes: tuple[Lane, ...]) -> tuple[Lane, ...]:
        return ()

    def _rows(self) -> PacketRdd | None:
        return self._rows_now().rows

    def _rows_now(self) -> OfferedRows:
        if self._offered is None:
            raise AssertionError("a batch runs that the query did not ask for")
        return self._offered


logger = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2


class QueryStoppedError(PenstockError):
    """The query was stopped while a batch was processed."""

    def __init__(self, batch: int) -> None:
        super().__init__(
            f"the query was stopped during batch {batch}. All of the batch counts if its checkpoint is complete, "
            "otherwise nothing. The next start gives its rows to the handler"
        )


class QueryStopWatch:
    """Ends the run at once when the query is stopped in a batch, whatever the batch waits for."""

    def __init__(self, stop: StopRequest) -> None:
        self.cancel: Callable[[], None] = _nothing
        self._stop = stop
        self._is_active: Callable[[], bool] | None = None
        self._watches, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-query-stop", daemon=True)
        self._thread.start()

    @contextmanager
    def over(self, batch: int, is_active: Callable[[], bool]) -> Iterator[None]:
        """Ask, while the block runs, if the query is active.

        Raises:
            QueryStoppedError: it was stopped; in the place of the error that its stop led to.
        """
        self._is_active = is_active
        self._watches.set()
        try:
            yield
        except Exception as error:
            if self.seen or not _is_active(is_active):
                raise QueryStoppedError(batch) from error
            raise
        finally:
            self._watches.clear()
            self._is_active = None
        if self.seen:
            raise QueryStoppedError(batch)

    @property
    def seen(self) -> bool:
        return self._stop.immediate.is_set()

    def look(self) -> bool:
        """True if the query is still active. If it is not, the run ends."""
        asked = self._is_active
        if asked is not None and not self.seen and not _is_active(asked):
            logger.info("the query was stopped: its batch ends at once")
            self._stop.immediate.set()
            self._stop.graceful.set()
            self.cancel()
        return not self.seen

    def close(self) -> None:
        self._closed.set()
        self._watches.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._watches.wait()
            if self._closed.wait(_LOOK_SECONDS):
                return
            self.look()


def _nothing() -> None: ...


def _is_active(asked: Callable[[], bool]) -> bool:
    try:
        return asked()
    except Exception as error:  # Spark is ending or dead: the batch fails by itself
        logger.debug("Spark did not say whether the query is active: %s", error)
        return True


_DRAINED_LOOK_SECONDS = 0.1


class DrainedQuery:
    """Stops a query once Spark has committed the batch with which its job has drained.

    Not before, because the handler should get the rows of the batch; and from another thread, because a stop within the
    handler would interrupt it.
    """

    def __init__(self, last: QueryBatch, log: OffsetLog) -> None:
        """
        Args:
            last: the batch.
            log: that of the query.
        """
        self._last = last
        self._log = log
        threading.Thread(target=self._stop, name="penstock-query-drained", daemon=True).start()

    def await_end(self, following: QueryBatch) -> NoReturn:
        """Wait until the query has been stopped. The batch that follows is the first one of the next start.

        Raises:
            QueryStoppedError: always.
        """
        waits = threading.Event()
        while following.is_active():
            waits.wait(_DRAINED_LOOK_SECONDS)
        raise QueryStoppedError(following.number)

    def _stop(self) -> None:
        number, waits = self._last.number, threading.Event()
        try:
            while not self._log.is_committed(number):
                if not self._last.is_active():
                    return
                waits.wait(_DRAINED_LOOK_SECONDS)
            logger.info("the job has drained, and the handler has its last rows, of batch %d: the query stops", number)
            self._last.stop()
        except Exception as error:  # Spark has ended
            logger.warning("the query was not stopped, although its job has drained: %s", error)
