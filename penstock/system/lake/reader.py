"""Reads ranges of a table's rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.api.ssp import SystemStreamPartition
from penstock.errors import NotFoundError
from penstock.system.base import CHUNK_BYTES, ColumnChunk, OffsetRange, PartitionOffsets, RawMessage, SystemReader
from penstock.system.files.cursor import C, RowCursor
from penstock.system.files.formats import COLUMN_ROWS, ROWS, fitted_rows, readable_rows
from penstock.system.lake.log import FileRows, Logs, PartitionFiles, TableLog, upcoming
from penstock.system.ranges import check_call, check_inside
from penstock.wording import counted

if TYPE_CHECKING:
    from penstock.system.lake.system import LakeSystem


class LakeReader(SystemReader):
    """Reads rows from any offset on. It keeps the file open in which the last range ended."""

    def __init__(self, system: LakeSystem) -> None:
        self._system = system
        self._logs = Logs(system.lake.log, system.poll_ms)
        self._files: dict[SystemStreamPartition, PartitionFiles] = {}
        self._identities: dict[str, tuple[str, int]] = {}
        self._cursor: RowCursor | None = None
        self._end = 0
        """The offset behind the cursor's file."""

    def read(
        self, offsets: OffsetRange, chunk_messages: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[list[RawMessage]]:
        check_call(offsets, chunk_messages, chunk_bytes)
        return self._read(offsets, None, lambda cursor: cursor.take(chunk_messages, chunk_bytes, offsets.end))

    def read_columns(self, offsets: OffsetRange, schema: pa.Schema, chunk_messages: int) -> Iterator[ColumnChunk]:
        check_call(offsets, chunk_messages, CHUNK_BYTES)
        return self._read(offsets, schema, lambda cursor: cursor.take_columns(chunk_messages, offsets.end))

    def close(self) -> None:
        self._close_cursor()

    def _read(
        self, offsets: OffsetRange, schema: pa.Schema | None, take: Callable[[RowCursor], C]
    ) -> Generator[C, None, None]:
        log, files = self._opened(offsets)
        position = offsets.start
        while position < offsets.end:
            cursor = self._cursor
            if cursor is None or (cursor.ssp, cursor.position, cursor.schema) != (offsets.ssp, position, schema):
                self._close_cursor()
                found = files.find(position, offsets.end)
                if found is None:
                    return
                position = max(position, found.start)
                cursor = self._cursor = _cursor(log, found, offsets.ssp, position, schema)
                self._end = found.end
            chunk = take(cursor)
            if not len(chunk):
                position = self._end
                self._close_cursor()
                continue
            position = cursor.position
            yield chunk

    def _opened(self, offsets: OffsetRange) -> tuple[TableLog, PartitionFiles]:
        ssp = offsets.ssp
        log = self._logs.get(ssp.stream, offsets.end)
        partitions = log.partitions or self._system.partitions
        if ssp.partition >= partitions:
            raise NotFoundError(f"stream `{ssp.system_stream}` has {counted(partitions, 'partition')}: no `{ssp}`")
        if self._identities.get(ssp.stream) != (log.identity, partitions):
            self._identities[ssp.stream] = log.identity, partitions
            self._close_cursor()
            self._files = {each: own for each, own in self._files.items() if each.stream != ssp.stream}
        check_inside(offsets, PartitionOffsets(0, upcoming(log)))
        if ssp not in self._files:
            self._files[ssp] = PartitionFiles(log, ssp.partition, partitions, self._system.changes)
        return log, self._files[ssp]

    def _close_cursor(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None


def _cursor(
    log: TableLog, found: FileRows, ssp: SystemStreamPartition, position: int, schema: pa.Schema | None
) -> RowCursor:
    file, first = found.file, position - found.start

    def rows() -> Generator[bytes, None, None]:
        row = first
        for batch in log.batches(file, first, ROWS, None):
            yield from readable_rows(file.path, batch, row, {})
            row += batch.num_rows

    def columns(wanted: pa.Schema) -> Generator[pa.StructArray, None, None]:
        for batch in log.batches(file, first, COLUMN_ROWS, wanted.names):
            if batch.num_rows:
                yield fitted_rows(batch, wanted, {}, file.path)

    return RowCursor(ssp, position, schema, file.time_ms, rows(), None if schema is None else columns(schema))
