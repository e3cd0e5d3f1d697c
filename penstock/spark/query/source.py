"""Stage 0 of a batch that Spark hands over: the rows of its DataFrames become messages."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.batch.batch import Batch
from penstock.batch.portions import Portion
from penstock.runtime.messages.packet import Packet
from penstock.runtime.messages.router import JointOutput
from penstock.runtime.stage.attempt import new_token
from penstock.runtime.stage.source import Chunk, ReadProgress, run_source
from penstock.spark.workers.worker import alive_packets, settle_worker, spark_partition
from penstock.wire.package import PackedPackage


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
