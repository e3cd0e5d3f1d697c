"""Reads ranges of the rows of data files, one file after the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator

import pyarrow as pa

from penstock.system.base import CHUNK_BYTES, ColumnChunk, OffsetRange, RawMessage, SystemReader
from penstock.system.ranges import check_call
from penstock.system.rows.cursor import C, RowCursor
from penstock.system.rows.messages import ROWS

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
