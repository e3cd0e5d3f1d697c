"""The rows of a batch, brought together by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.runtime.messages.packet import read_batch
from penstock.spark.processor.values.keys import KeyCodec

INITIAL = b"\x01"
"""First byte of a chunk of initial state. A chunk of rows is a message of Arrow, which begins with FF."""


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Rows in the order of their keys; rows of one key are in the order in which they came."""

    rows: pa.RecordBatch
    keys: Sequence[bytes]
    """Each key once, in the order in which they came first."""
    ends: Sequence[int]
    """For each key, the index behind its last row."""


def chunk(rows: pa.RecordBatch, *, initial: bool = False) -> bytes:
    """Rows as the value of a message.

    Args:
        rows: some rows, with the schema that both sides know.
        initial: True if they are initial state.
    """
    data: bytes = rows.serialize().to_pybytes()
    return INITIAL + data if initial else data


def rows_of(chunks: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """The rows of several chunks. Raises CorruptError if one is damaged."""
    batches = [read_batch(data, schema) for data in chunks]
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def grouped(rows: pa.RecordBatch, codec: KeyCodec) -> RowGroups:
    if rows.num_rows == 0:
        return RowGroups(rows, [], [])
    found = codec.encode_columns(rows).dictionary_encode()
    numbers = found.indices.to_numpy(zero_copy_only=False)
    if (numbers[1:] < numbers[:-1]).any():
        rows = rows.take(pa.array(np.argsort(numbers, kind="stable")))
    ends = np.cumsum(np.bincount(numbers, minlength=len(found.dictionary)))
    return RowGroups(rows, found.dictionary.to_pylist(), ends.tolist())


def not_late(rows: pa.RecordBatch, column: str, watermark_ms: int) -> pa.RecordBatch:
    """The rows whose event time is above the watermark. A row without event time is never late, as in Spark."""
    times: Any = rows.column(rows.schema.get_field_index(column))
    if pa.types.is_struct(times.type):
        times = pc.struct_field(times, "end")
    zone = times.type.tz
    micros = times.cast(pa.timestamp("us", zone)).cast(pa.int64())
    return rows.filter(pc.greater(micros, watermark_ms * 1000).fill_null(True))
