"""Entries of state on their way to the parts that have them from now on: a part is a store of a task.

One Spark job makes the entries, brings those of each part together in the order of their keys, and makes something of
each part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

from penstock.errors import PenstockError
from penstock.spark.workers.arrow_frames import map_in_arrow

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
