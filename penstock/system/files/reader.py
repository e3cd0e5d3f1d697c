"""Reads ranges of a folder's rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import NotFoundError
from penstock.system.base import CHUNK_BYTES, ColumnChunk, OffsetRange, PartitionOffsets, RawMessage, SystemReader
from penstock.system.files.cursor import C, RowCursor
from penstock.system.files.formats import COLUMN_ROWS, ROWS, read_columns, read_rows
from penstock.system.files.listing import ROW_BITS, ROW_MASK, FoundFile
from penstock.system.files.listings import Listings
from penstock.system.ranges import check_call, check_inside, missing
from penstock.wording import counted

if TYPE_CHECKING:
    from penstock.system.files.system import FilesSystem


class FilesReader(SystemReader):
    """Reads files from any row on. It keeps the file open in which the last range ended."""

    def __init__(self, system: FilesSystem) -> None:
        self._system = system
        self._listings = Listings(system)
        self._cursor: RowCursor | None = None

    def read(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        check_call(offsets, chunk_messages, chunk_bytes)
        yield from self._read(offsets, None, lambda cursor: cursor.take(chunk_messages, chunk_bytes, offsets.end))

    def read_columns(
        self, offsets: OffsetRange, schema: pa.Schema, chunk_messages: int
    ) -> Iterator[ColumnChunk | list[RawMessage]]:
        """Parquet files come by column. Rows of other files are messages, whose cells have the types of the schema."""
        check_call(offsets, chunk_messages, CHUNK_BYTES)

        def take(cursor: RowCursor) -> ColumnChunk | list[RawMessage]:
            if cursor.by_column:
                return cursor.take_columns(chunk_messages, offsets.end)
            return cursor.take(min(chunk_messages, ROWS), CHUNK_BYTES, offsets.end)

        return self._read(offsets, schema, take)

    def _read(
        self, offsets: OffsetRange, schema: pa.Schema | None, take: Callable[[RowCursor], C]
    ) -> Generator[C, None, None]:
        """Yields what `take` takes from the files, one after the other."""
        files = self._files(offsets)
        position = offsets.start
        while position < offsets.end:
            cursor = self._cursor
            if cursor is None or (cursor.ssp, cursor.position, cursor.schema) != (offsets.ssp, position, schema):
                self._close_cursor()
                cursor = self._cursor = self._open(files[position >> ROW_BITS], offsets.ssp, position, schema)
            chunk = take(cursor)
            if not len(chunk):
                self._close_cursor()
                position = ((position >> ROW_BITS) + 1) << ROW_BITS
                continue
            position = cursor.position
            yield chunk

    def close(self) -> None:
        self._close_cursor()
        self._listings.close()

    def _files(self, offsets: OffsetRange) -> list[FoundFile]:
        ssp = offsets.ssp
        listing = self._listings.get(ssp.stream)
        if not listing.exists or (ssp.partition < listing.partitions and offsets.end > listing.upcoming(ssp.partition)):
            listing.read()
        if not listing.exists:
            raise missing(offsets, offsets.start, "its folder has no listing")
        if ssp.partition >= listing.partitions:
            raise NotFoundError(
                f"stream `{ssp.system_stream}` has {counted(listing.partitions, 'partition')}: no {ssp}"
            )
        check_inside(offsets, PartitionOffsets(0, listing.upcoming(ssp.partition)))
        return listing.files[ssp.partition]

    def _open(self, file: FoundFile, ssp: SystemStreamPartition, position: int, schema: pa.Schema | None) -> RowCursor:
        system, first = self._system, position & ROW_MASK
        by_column = schema is not None and system.format_of(file) == "parquet"

        def rows() -> Generator[bytes, None, None]:
            with system.source(ssp.stream, file) as source:
                yield from read_rows(source, system.format_of(file), first, schema)

        def columns(schema: pa.Schema) -> Generator[pa.StructArray, None, None]:
            with system.source(ssp.stream, file) as source:
                yield from read_columns(source, first, schema, COLUMN_ROWS)

        return RowCursor(ssp, position, schema, file.modified_ms, rows(), columns(schema) if by_column else None)

    def _close_cursor(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None
