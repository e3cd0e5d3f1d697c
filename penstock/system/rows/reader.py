"""Reads ranges of the rows of data files, one file after the other. A cursor is in one file, from an offset on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import TypeVar

import numpy as np
import pyarrow as pa

from penstock.api.ssp import SystemStreamPartition
from penstock.system.base import CHUNK_BYTES, ColumnChunk, OffsetRange, RawMessage, SystemReader
from penstock.system.ranges import check_call, take_chunk
from penstock.system.rows.messages import ROWS

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


Opens = Callable[[int], RowCursor | None]
"""Opens the file with the row at an offset, or else the next one; None if there is none before the end of the range."""


class RowReader(SystemReader):
    """Reads rows from any offset on. It keeps the file open in which the last range ended."""

    def __init__(self) -> None:
        self._cursor: RowCursor | None = None

    @abstractmethod
    def opens(self, offsets: OffsetRange, schema: pa.Schema | None) -> Opens:
        """Look for the files of a range.

        Args:
            schema: the columns that are wanted, if any are.

        Raises:
            NotFoundError: the range is not there.
        """

    def read(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        check_call(offsets, chunk_messages, chunk_bytes)
        return self._read(offsets, None, lambda cursor: cursor.take(chunk_messages, chunk_bytes, offsets.end))

    def read_columns(
        self, offsets: OffsetRange, schema: pa.Schema, chunk_messages: int
    ) -> Iterator[ColumnChunk | list[RawMessage]]:
        """Rows of files that are not Parquet are messages, whose cells have the types of the schema."""
        check_call(offsets, chunk_messages, CHUNK_BYTES)

        def take(cursor: RowCursor) -> ColumnChunk | list[RawMessage]:
            if cursor.by_column:
                return cursor.take_columns(chunk_messages, offsets.end)
            return cursor.take(min(chunk_messages, ROWS), CHUNK_BYTES, offsets.end)

        return self._read(offsets, schema, take)

    def close(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _read(self, offsets: OffsetRange, schema: pa.Schema | None, take: Callable[[RowCursor], C]) -> Iterator[C]:
        """Yields what `take` takes from the files, one after the other."""
        opens = self.opens(offsets, schema)
        position = offsets.start
        while position < offsets.end:
            cursor = self._cursor
            if cursor is None or (cursor.ssp, cursor.position, cursor.schema) != (offsets.ssp, position, schema):
                RowReader.close(self)
                cursor = self._cursor = opens(position)
                if cursor is None:
                    return
            chunk = take(cursor)
            if len(chunk):
                position = cursor.position
                yield chunk
            else:
                position = cursor.behind
                RowReader.close(self)
