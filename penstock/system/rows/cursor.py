"""The rows of one data file as messages, from an offset on."""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice
from typing import TypeVar

import numpy as np
import pyarrow as pa

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import ColumnChunk, RawMessage
from penstock.system.ranges import take_chunk

C = TypeVar("C", list[RawMessage], ColumnChunk, ColumnChunk | list[RawMessage])


class RowCursor:
    """The rows of one file, from an offset on: by column, or as JSON."""

    def __init__(
        self,
        ssp: SystemStreamPartition,
        position: int,
        behind: int,
        schema: pa.Schema | None,
        time_ms: int,
        rows: Generator[bytes, None, None],
        columns: Generator[pa.StructArray, None, None] | None,
    ) -> None:
        """
        Args:
            position: the offset of the first row. It grows with each row that is taken.
            behind: the offset behind the file.
            schema: the columns that are wanted, if any are.
            time_ms: the timestamp of each row.
            rows: the rows as JSON. The file is opened when the first one is taken.
            columns: the same rows by column; None if they are not read so.
        """
        self.ssp = ssp
        self.position = position
        self.behind = behind
        self.schema = schema
        self._time_ms = time_ms
        self._rows = rows
        self._columns = columns
        self._left: pa.StructArray | None = None

    @property
    def by_column(self) -> bool:
        """True if the rows are to be taken by column."""
        return self._columns is not None

    def take(self, messages: int, size_bytes: int, end: int) -> list[RawMessage]:
        """The next rows before the offset `end`; none at the end of the file."""
        rows = islice(self._rows, min(messages, end - self.position))
        chunk = take_chunk(
            ((offset, self._time_ms, None, row) for offset, row in enumerate(rows, self.position)), size_bytes
        )
        if chunk:
            self.position = chunk[-1][0] + 1
        return chunk

    def take_columns(self, messages: int, end: int) -> ColumnChunk:
        """As `take`, by column."""
        rows = next(self._columns, None) if self._left is None and self._columns is not None else self._left
        count = 0 if rows is None else min(messages, end - self.position, len(rows))
        if rows is None:
            rows = pa.array([], pa.struct([]))
        self._left = rows.slice(count) if count < len(rows) else None
        offsets = np.arange(self.position, self.position + count, dtype=np.int64)
        self.position += count
        times = np.full(count, self._time_ms, np.int64)
        return ColumnChunk(offsets, times, pa.nulls(count, pa.binary()), rows.slice(0, count))

    def close(self) -> None:
        """Close the file."""
        self._rows.close()
        if self._columns is not None:
            self._columns.close()
