"""The output of a batch as a DataFrame: the rows are in the objects that the batch's record names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.api.ssp import SystemStream
from penstock.base.signing import RootKeys
from penstock.errors import NotFoundError
from penstock.objects.open import open_root
from penstock.objects.store import ObjectStore
from penstock.outbox.objects import decode
from penstock.outbox.unpublished import OutboxObject
from penstock.spark.workers.worker import hide_loaded

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
