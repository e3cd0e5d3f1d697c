"""Runs a query's batches: the Spark jobs are the query's, and the rows come from its DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame

from penstock.base.wording import counted
from penstock.batch.batch import Batch
from penstock.batch.ranges import BatchRanges
from penstock.errors import ConfigError
from penstock.spark.batches.packet_rdd import PacketRdd, Step
from penstock.spark.batches.spark_runner import SparkRunner
from penstock.spark.query.source import FrameReader, QuerySource
from penstock.spark.versions import arrow_schema
from penstock.spark.workers.frames import RawFrames
from penstock.wire.address import Lane
from penstock.wire.ports import RunBrokenError


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
