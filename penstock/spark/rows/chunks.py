"""The rows of a DataFrame on their way to the task that owns their key: chunks of rows as single messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own abbreviation
from pyspark.sql.types import StructType

from penstock.runtime.messages.packet import read_batch
from penstock.spark.processor.keys import KeyCodec, chunk
from penstock.system.base import RawMessage
from penstock.system.partitioner import partitions_of

_ROW, _INITIAL = "penstock.row", "penstock.initial"
_ROWS = 32_768
"""Rows that are split together: of fewer, each task would get very small chunks."""


@dataclass(frozen=True, slots=True)
class ChunkReader:
    """Splits rows by the task of their key."""

    key: StructType
    event_time: str | None = None
    """The column with the event time; None: there is none."""

    def read(self, batches: Iterable[pa.RecordBatch], offset: int, tasks: int) -> Iterator[list[RawMessage]]:
        codec = KeyCodec(self.key)
        for found in _gathered(batches):
            for rows, initial in _told_apart(found):
                keys = codec.encode_columns(rows)
                yield [
                    (offset, self._time(part, initial), keys[first].as_py(), chunk(part, initial=initial))
                    for first, part in _parted(rows, partitions_of(keys, tasks))
                ]

    def _time(self, rows: pa.RecordBatch, initial: bool) -> int:
        """The highest event time of the rows, in epoch milliseconds."""
        if self.event_time is None or initial:
            return 0
        times: Any = rows.column(rows.schema.get_field_index(self.event_time))
        if pa.types.is_struct(times.type):
            times = pc.struct_field(times, "end")
        micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
        return (pc.max(micros).as_py() or 0) // 1000


def with_initial(rows: DataFrame, initial: DataFrame) -> DataFrame:
    """The rows of a batch and the initial state as one DataFrame, for `ChunkReader`. Each has its own schema."""
    columns = (_ROW, _INITIAL)
    kinds = [StructType(rows.schema.fields), StructType(initial.schema.fields)]
    made = []
    for own, frame in enumerate((rows, initial)):
        whole = F.struct(*(frame[_quoted(name)] for name in frame.columns))
        made.append(
            frame.select(
                *(
                    (whole if at == own else F.lit(None).cast(kind)).alias(column)
                    for at, (column, kind) in enumerate(zip(columns, kinds, strict=True))
                )
            )
        )
    return made[0].unionAll(made[1])


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def _told_apart(rows: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Rows of `with_initial`, separated; the flag is True for initial state. Other rows are unchanged."""
    if rows.schema.names != [_ROW, _INITIAL]:
        yield rows, False
        return
    for number in (1, 0):
        column: Any = rows.column(number)
        own = column.filter(column.is_valid())
        if len(own):
            yield pa.RecordBatch.from_struct_array(own), number == 1


@dataclass(frozen=True, slots=True)
class ChunkWriter:
    """Takes rows out of chunks."""

    def write(self, values: Sequence[bytes | None], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for data in values:
            yield read_batch(data or b"", schema)


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
        if rows >= _ROWS:
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)


def _parted(rows: pa.RecordBatch, targets: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each task, in the order in which they came, with the index of the first one."""
    order = np.argsort(targets, kind="stable")
    ordered = rows.take(pa.array(order))
    ends = np.flatnonzero(np.diff(targets[order], append=-1)) + 1
    start = 0
    for end in ends.tolist():
        yield int(order[start]), ordered.slice(start, end - start)
        start = end
