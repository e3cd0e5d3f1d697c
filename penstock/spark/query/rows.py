"""The rows of a batch that Spark hands over, in Spark's workers.

Stage 0 makes messages of the rows of the batch's DataFrames. Its output is a DataFrame again: the rows are in the
objects that the batch's record names.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.api.ssp import SystemStream
from penstock.base.secrets import RootKeys
from penstock.batch.batch import Batch
from penstock.batch.portions import Portion
from penstock.errors import NotFoundError
from penstock.objects.open import open_root
from penstock.objects.store import ObjectStore
from penstock.outbox.task import decode
from penstock.outbox.wing import OutboxObject
from penstock.runtime.messages.packet import Packet
from penstock.runtime.messages.router import JointOutput
from penstock.runtime.stage.attempt import new_token
from penstock.runtime.stage.source import Chunk, ReadProgress, run_source
from penstock.spark.workers.worker import alive_packets, hide_loaded, settle_worker, spark_partition
from penstock.wire.ports import PackedPackage


class FrameReader(Protocol):
    """Makes messages of a DataFrame's rows. Sent to Spark's workers."""

    def read(self, batches: Iterable[pa.RecordBatch], offset: int, tasks: int) -> Iterator[Chunk]:
        """The messages of these rows, in chunks of bounded size.

        Args:
            batches: the rows.
            offset: of all the messages.
            tasks: how many tasks the job has.
        """
        ...


@dataclass(frozen=True, slots=True)
class QuerySource:
    """Stage 0. A Spark partition has rows of one input, and is the stage of several tasks; the first gets the rows."""

    package: PackedPackage
    batch: Batch
    portions: Mapping[int, Sequence[tuple[int, Portion]]]
    """For each task, the number of each input with the query's batch as a range."""
    tasks: int
    inputs: tuple[int, ...]
    """For each Spark partition, the number of its input."""
    schemas: tuple[pa.Schema, ...]
    readers: tuple[FrameReader, ...]
    """For each input, like the schemas."""
    epoch: int

    def __call__(self, frames: Iterable[pa.Buffer]) -> Iterator[pa.RecordBatch]:
        package = self.package.load()
        settle_worker(package.pages, self.epoch)
        partition = spark_partition()
        number = self.inputs[partition]
        batches = (pa.ipc.read_record_batch(frame, self.schemas[number]) for frame in frames)
        rows = _Rows(self.readers[number], batches, number, partition, self.tasks)
        progress = ReadProgress()

        def packets() -> Iterator[Packet]:
            tasks = range(partition, self.tasks, len(self.inputs))
            together, token = JointOutput(len(tasks)), new_token()
            for task in tasks:
                portions = self.portions.get(task, ())
                rows.expect(task, portions)
                yield from run_source(
                    package.topology,
                    package.settings,
                    self.batch,
                    task,
                    portions,
                    rows,
                    progress,
                    together=together,
                    token=token,
                )
            yield from together.end()
            for _ in frames:
                pass  # a worker whose input was not read to its end is not used again

        yield from alive_packets(packets(), progress)


class _Rows:
    """The rows of one Spark partition, in the place of readers of streams."""

    def __init__(
        self, reader: FrameReader, batches: Iterable[pa.RecordBatch], number: int, first: int, tasks: int
    ) -> None:
        self._reader = reader
        self._batches = batches
        self._number = number
        self._first, self._tasks = first, tasks
        self._mine: Portion | None = None

    def expect(self, task: int, portions: Sequence[tuple[int, Portion]]) -> None:
        """Expect this task next. Only the first one gets the rows."""
        found = [portion for number, portion in portions if number == self._number]
        self._mine = found[0] if task == self._first and found else None

    def read(self, portion: Portion, task: int) -> Generator[Chunk, None, None]:
        if portion is self._mine:
            yield from self._reader.read(self._batches, portion.offsets.start, self._tasks)

    def read_columns(self, portion: Portion, task: int, schema: pa.Schema) -> Generator[Chunk, None, None]:
        yield from self.read(portion, task)


IN_DRIVER_BYTES = 1 << 20
"""The driver itself reads at most this many bytes of rows: a Spark job with a Python worker would take longer."""


class RowWriter(Protocol):
    """Makes rows of a job's messages. Sent to Spark's workers."""

    def write(self, values: Sequence[bytes | None], schema: pa.Schema) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True, slots=True)
class OutputRows:
    """Reads one output of one batch."""

    root: str
    keys: RootKeys
    batch: int
    stream: SystemStream
    schema: pa.Schema
    writer: RowWriter

    def frame(
        self, spark: SparkSession, objects: Sequence[OutboxObject], schema: StructType, store: ObjectStore
    ) -> DataFrame:
        """The rows, in as many partitions as there are objects; few rows are read at once."""
        mine = [each for each in objects if any(ssp.system_stream == self.stream for ssp in each.parts)]
        if sum(each.size_bytes for each in mine) <= IN_DRIVER_BYTES:
            batches = [batch for each in mine for batch in self._rows(store, each)]
            return spark.createDataFrame(pa.Table.from_batches(batches, self.schema), schema)
        numbers = spark.range(0, len(mine), 1, len(mine))  # without an exchange, and a job of Spark less
        return numbers.mapInArrow(partial(self.read, mine), schema)

    def read(self, objects: Sequence[OutboxObject], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the objects with the numbers in the first column. Called in Spark's workers.

        Raises:
            NotFoundError: the query has gone on to the next batch.
        """
        hide_loaded()
        with closing(open_root(self.root, self.keys)) as store:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    try:
                        yield from self._rows(store, objects[number])
                    except NotFoundError as error:
                        raise self._gone() from error

    def _gone(self) -> NotFoundError:
        return NotFoundError(
            f"the rows of batch {self.batch} in output `{self.stream.stream}` are gone: they exist only until the "
            "query begins the next batch. Use the DataFrame in the handler, before it returns. To use it later, write "
            "it, or keep it with `.cache()` and count it, so that Spark has read all of it"
        )

    def _rows(self, store: ObjectStore, named: OutboxObject) -> Iterator[pa.RecordBatch]:
        contents = decode(named, store.get(named.key))
        for chunk in contents.chunks:
            if chunk.ssp.system_stream == self.stream:
                values = [value for _, _, value, *_ in contents.records(chunk)]
                yield from self.writer.write(values, self.schema)
